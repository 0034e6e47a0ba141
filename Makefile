# On a fresh machine with git, make and Python 3.11-3.13, run `make train` or `make test`. Safe to repeat.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/stamp
# The setup runs again when one of these files changes.
PACKAGING := setup.cfg pyproject.toml
ARGS ?=
# For `make fuzz`.
MINUTES ?= 10
SEED ?= 0

.PHONY: train test check constraints fuzz faults lint format reference docs docs-serve package gpu-plans slurm clean
.DELETE_ON_ERROR:

# Most of the time of the tests is compilation. What they compile is kept for the next time.
test check: export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/$(VENV)/programs

train: $(STAMP)-base  ## pretrain on the embedded novels; ARGS="--steps 3000" passes settings
	$(BIN)/python -m xlnet_jax.train $(ARGS)
	@echo "  first        . $(BIN)/activate    for python and xlnet-jax of $(VENV)"

test: $(STAMP)-test  ## run the tests in two processes; ARGS="-k masks" passes options
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

fuzz: $(STAMP)-test  ## run the commands on damaged inputs of every kind; MINUTES=60 SEED=1, ARGS="--only shard"
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) --seed $(SEED) $(ARGS)

check: lint $(STAMP)-test  ## lint, types and the tests of masks, parity and resume: run this before a commit
	$(BIN)/python -m pytest -n 2 --dist worksteal -m contract $(ARGS)

lint: $(STAMP)-lint  ## formatting, lint, types and shell scripts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/shellcheck --external-sources --check-sourced launch/*.sh launch/*.sbatch launch/gke/*.sh .ci/run .ci/package

constraints: $(STAMP)-base  ## write the newest versions of all packages to constraints.txt, and their hashes to launch/requirements.txt; ARGS="--upgrade-package jax": only one
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	echo transformers | $(BIN)/python -m uv pip compile --quiet --universal --python-version 3.11 --strip-extras --no-annotate \
		$(addprefix --extra ,tpu gpu gcs hub s3 https hf clean lm-eval notebook test tuners docs package lint) \
		--custom-compile-command "make constraints" --output-file constraints.txt $(or $(ARGS),--upgrade) setup.cfg -
	$(BIN)/python -m uv pip compile --quiet --python-version 3.12 --python-platform x86_64-manylinux_2_31 --strip-extras \
		--no-annotate --extra tpu --extra gcs --generate-hashes --constraint constraints.txt \
		--custom-compile-command "make constraints" --output-file launch/requirements.txt --upgrade setup.cfg

format: $(STAMP)-lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

reference: $(STAMP)-base  ## write docs/settings/ and docs/api/ from the code, and results into the pages
	$(BIN)/python -m docs.reference

docs: $(STAMP)-docs  ## build the documentation site in site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(STAMP)-docs  ## show the documentation site while you write
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

package: $(STAMP)-package  ## build the sdist, and from it the wheel, in dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python .ci/distributions.py

gpu-plans:  ## compile kernels and steps for GPUs without having one; needs a separate environment of 5 GB
	$(MAKE) VENV=.venv-gpu-plans .venv-gpu-plans/stamp-plan-gpu .venv-gpu-plans/stamp-test
	JAX_PLATFORMS=cpu .venv-gpu-plans/bin/python -m pytest tests/xlnet_jax/planning/test_fused_attention.py $(ARGS)

slurm: $(STAMP)-test  ## preempt and resume a run under a two-node Slurm on this machine; needs slurm-wlm
	@PATH="$$PATH:/usr/sbin" command -v munged slurmctld slurmd || { echo "make slurm needs Slurm: apt-get install slurm-wlm"; exit 2; }
	$(BIN)/python -m pytest tests/launch/test_slurm_real.py --long $(ARGS)

faults: $(STAMP)-test  ## kill and signal tiny runs, fill the disk or cut the power at every call that writes; takes hours, ARGS="--every 10" a tenth
	$(BIN)/python -m tests.faults $(ARGS)

clean:
	rm -rf $(VENV) runs dist site

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else f"xlnet_jax needs Python 3.11 to 3.13, {sys.executable} is {v[0]}.{v[1]}: make PYTHON=/path/to/python3.11")'
	@echo "set-up      a Python environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(STAMP)-base: $(PACKAGING) | $(BIN)/python
	@echo "set-up      jax, TensorFlow and the packages that they need into $(VENV): 2.5 GB on disk; this takes minutes, once"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(STAMP)-%: $(PACKAGING) | $(BIN)/python
	@echo "set-up      jax, TensorFlow and the packages of [$*] into $(VENV): 2.6 GB on disk or more; this takes minutes, once"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$*]'
	@touch $@

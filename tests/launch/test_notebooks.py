"""The notebooks run from top to bottom, and their outputs were made by the code in them."""

import getpass
import json
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_pipelines import sources

nbformat = pytest.importorskip("nbformat", reason="no nbformat: pip install -e '.[notebook]'")
pytest.importorskip("nbclient", reason="no nbclient: pip install -e '.[notebook]'")
pytest.importorskip("ipykernel", reason="no ipykernel: pip install -e '.[notebook]'")

from IPython.core.interactiveshell import InteractiveShell  # noqa: E402

from launch.colab.execute import COLAB, EXECUTED, NOTEBOOKS, digest, execute  # noqa: E402

ROOT = COLAB.parents[1]
REPOSITORY = re.search(r"^url = (.*)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)[1]
SMALL = {"XLNET_STEPS": "2", "XLNET_VOCAB_SIZE": "500", "XLNET_TEST_SIZE": "40", "XLNET_TEXT": "my.txt"}
TPU, CPU = ("pretrain_tpu.ipynb", "finetune_tpu.ipynb"), ("library.ipynb", "any_order.ipynb", "sequences.ipynb")
EXTRAS = dict.fromkeys(TPU, "tpu,hub") | dict.fromkeys(CPU, "hub")
DEVICES = dict.fromkeys(TPU + CPU, 1) | {"finetune_tpu.ipynb": 8}  # as on a v5e-1, a v2-8, a CPU


PIP = """import os, pathlib, sys
with open(os.environ["CALLS"], "a") as calls:
    print(*sys.argv[1:], file=calls)
if sys.argv[1] == "install" and os.environ.get("REPLACES"):
    metadata = pathlib.Path(os.environ["REPLACES"])
    metadata.write_text(metadata.read_text().replace("Version: 1", "Version: 2"))
sys.exit(sys.argv[1] == os.environ["FAILS"])
"""


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(notebook):
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    texts = [output.get("text", "") for output in outputs]
    return "\n".join([*texts, *(str(v) for o in outputs for k, v in o.get("data", {}).items() if "image" not in k)])


@pytest.mark.long
def test_the_notebooks_run_from_top_to_bottom(tmp_path, monkeypatch):
    """Execute all in one folder, on some pages of a novel. Check the output too: a failing cell raises, but a failing
    command only prints."""
    lines = Path(sources.embedded()[1]).read_text().splitlines(keepends=True)
    (tmp_path / "my.txt").write_text("".join(lines[:300]))
    for setting, value in SMALL.items():
        monkeypatch.setenv(setting, value)
    # Tests that kill runs leave half a program there, of which jax warns in the notebook's output.
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    printed, flags = [], os.environ["XLA_FLAGS"]
    for name in NOTEBOOKS:
        monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_force_host_platform_device_count={DEVICES[name]}")
        printed.append(shown(execute(name, tmp_path, cell_timeout=300)))
        assert not re.search(r"^error: |Traceback|Warning", printed[-1], re.MULTILINE)
    pretrained, finetuned, library, any_order, sequences = printed
    assert "500 pieces in runs/notebook/tokenizer" in pretrained
    assert re.search(r"^step 2/2 +loss", pretrained, re.MULTILINE)
    assert "| hidden | its probability | likeliest |" in pretrained
    assert "devices     8 x cpu: data 8" in finetuned
    assert re.search(r"\d+\.\d% of an unseen novel is labeled correctly", finetuned)
    assert "runs/notebook/classifier/checkpoints/" in finetuned
    assert re.search(r"loss \d+\.\d+, after 2 steps \d+\.\d+ nats", library)
    assert "the most confident four first, 16 passes:" in any_order
    assert re.search(r"^mean over all \d+ orders +-\d+\.\d+ nats$", any_order, re.MULTILINE)
    assert re.search(r"^the network +\d+\.\d+, \d+\.\d+ more$", sequences, re.MULTILINE)
    predicted = re.findall(r"^(\w+) \((\S+)%\), labeled", library, re.MULTILINE)
    exported = re.findall(r"^(\w+) \((\S+)%\) without xlnet_jax", library, re.MULTILINE)
    assert len(predicted) == 2
    for (label, percent), (expected_label, expected) in zip(exported, predicted, strict=True):
        assert label == expected_label
        assert float(percent) == pytest.approx(float(expected), abs=0.11)  # they are rounded to 0.1


@pytest.fixture
def fake_pip(tmp_path, monkeypatch):
    """Replace pip, on a machine without xlnet_jax."""
    (tmp_path / "pip.py").write_text(PIP)
    variables = {"CALLS": tmp_path / "calls", "PYTHONPATH": tmp_path, "TERM": "dumb", "FAILS": ""}
    for variable, value in variables.items():
        monkeypatch.setenv(variable, str(value))
    monkeypatch.delenv("XLNET_REPOSITORY", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_the_first_cell_installs_from_the_repository_or_changes_nothing(fake_pip, tmp_path, monkeypatch):
    def install(name, fails=""):
        """Return pip's words, and the error of the cell. fails: the word with which pip ends in an error."""
        (tmp_path / "calls").write_text("")
        monkeypatch.setenv("FAILS", fails)
        cell = code_cells(nbformat.read(COLAB / name, as_version=4))[0]
        error = InteractiveShell().run_cell(cell.source).error_in_exec
        return [line.split() for line in (tmp_path / "calls").read_text().splitlines()], str(error)

    cells = [code_cells(nbformat.read(COLAB / name, as_version=4))[0].source for name in NOTEBOOKS]
    of_all = {cell.replace(f'"xlnet_jax[{EXTRAS[name]}]"', "") for name, cell in zip(NOTEBOOKS, cells, strict=True)}
    assert len(of_all) == 1  # they differ in the extras alone
    calls, error = install(NOTEBOOKS[0])
    assert error == "None"
    assert [words[0] for words in calls] == ["wheel", "uninstall", "install"]
    assert " ".join(calls[0]).endswith(f"xlnet_jax[{EXTRAS[NOTEBOOKS[0]]}] @ git+{REPOSITORY}")
    assert calls[2][-4:-1] == ["--no-index", "--find-links", calls[0][3]]  # from what the first call has fetched
    calls, error = install(NOTEBOOKS[0], fails="install")
    assert len(calls) == 3
    assert "delete runtime, then run all again" in error
    monkeypatch.setenv("XLNET_REPOSITORY", "https://example.org/fork@branch")
    ((first, *_, source),), error = install(NOTEBOOKS[0], fails="wheel")
    assert (first, source) == ("wheel", "git+https://example.org/fork@branch")
    assert "cannot install xlnet_jax from https://example.org/fork@branch, and changed nothing" in error
    assert "set REPOSITORY to the folder of a clone" in error


def test_python_restarts_once_after_pip_replaced_a_loaded_package(fake_pip, tmp_path, monkeypatch, capsys):
    (tmp_path / "loaded_one.py").touch()
    (tmp_path / "loaded_one-1.dist-info").mkdir()
    metadata = tmp_path / "loaded_one-1.dist-info/METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: loaded-one\nVersion: 1\n")
    metadata.with_name("RECORD").write_text("loaded_one.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_module("loaded_one")
    cells, shell, restarts = code_cells(nbformat.read(COLAB / NOTEBOOKS[0], as_version=4)), InteractiveShell(), []
    shell.kernel = SimpleNamespace(do_shutdown=lambda restart: restarts.append(restart))
    for replaces, expected in (("", []), (str(metadata), [True]), (str(metadata), [True])):
        monkeypatch.setenv("REPLACES", replaces)
        for cell in cells[:2]:
            shell.run_cell(cell.source).raise_error()
        assert restarts == expected
    assert "pip replaced loaded-one: Python restarts now" in capsys.readouterr().out


def test_kept_outputs_are_those_of_the_code_show_learning_and_hold_nothing_of_the_machine():
    kept = [nbformat.read(COLAB / name, as_version=4) for name in NOTEBOOKS]
    for notebook in kept:
        assert notebook.metadata[EXECUTED] == digest(notebook), "run: python launch/colab/execute.py"
        cells = code_cells(notebook)
        assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
        outputs = [output for cell in cells for output in cell.outputs]
        assert not any(output.output_type == "error" for output in outputs)
        for own in ("/work", "/tmp", "/home", "/root", "site-packages", sys.prefix, f"{getpass.getuser()}@", "\\u001b"):
            assert own not in json.dumps(outputs)
    pretrained, finetuned, library, any_order, sequences = map(shown, kept)
    assert re.search(r"held-out loss .* below the unigram line", pretrained)
    assert float(re.search(r"(\S+)% of an unseen novel is labeled correctly", finetuned)[1]) > 80
    first, last = map(float, re.search(r"loss (\S+), after \d+ steps (\S+) nats", library).groups())
    assert last < first - 0.3
    assert "the most confident four first, 16 passes:" in any_order
    assert float(re.search(r"^the network .* (\S+) more$", sequences, re.MULTILINE)[1]) < 1  # nats
    assert "'plm'" in library  # the objective of the loop's own checkpoint, loaded

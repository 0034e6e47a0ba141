"""The notebooks run from top to bottom, and their outputs were made by the code in them."""

import getpass
import json
import os
import re
import sys
from pathlib import Path

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
DEVICES = {"pretrain_tpu.ipynb": 1, "finetune_tpu.ipynb": 8, "library.ipynb": 1}  # as on a v5e-1, a v2-8, a CPU


PIP = """import os, sys
with open(os.environ["CALLS"], "a") as calls:
    print(*sys.argv[1:], file=calls)
sys.exit(sys.argv[1] == os.environ["FAILS"])
"""


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def markdown_of(path):
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]


def shown(notebook):
    """Return everything that is printed or displayed, without pictures."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    texts = [output.get("text", "") for output in outputs]
    return "\n".join([*texts, *(str(v) for o in outputs for k, v in o.get("data", {}).items() if "image" not in k)])


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Execute all notebooks in one folder, on some pages of a novel."""
    folder = tmp_path_factory.mktemp("notebooks")
    lines = Path(sources.embedded()[1]).read_text().splitlines(keepends=True)
    (folder / "my.txt").write_text("".join(lines[:300]))
    with pytest.MonkeyPatch.context() as patch:
        for setting, value in SMALL.items():
            patch.setenv(setting, value)
        # Tests that kill runs leave half a program there, of which jax warns in the notebook's output.
        patch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
        notebooks, flags = {}, os.environ["XLA_FLAGS"]
        for name in NOTEBOOKS:
            patch.setenv("XLA_FLAGS", f"{flags} --xla_force_host_platform_device_count={DEVICES[name]}")
            notebooks[name] = execute(name, folder, cell_timeout=300)
        return notebooks


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_runs_as_it_stands(name, executed):
    """Check the output too: a failing cell raises in `execute`, but a failing command only prints."""
    kept = nbformat.read(COLAB / name, as_version=4)
    assert [cell.source for cell in executed[name].cells] == [cell.source for cell in kept.cells]
    assert [cell.execution_count for cell in code_cells(kept)] == list(range(1, len(code_cells(kept)) + 1))
    printed = shown(executed[name])
    assert not re.search(r"^error: |Traceback|Warning", printed, re.MULTILINE)


@pytest.mark.slow
def test_a_text_becomes_curves_gaps_and_a_classifier(executed):
    pretrained, finetuned = (shown(executed[name]) for name in NOTEBOOKS[:2])
    assert "500 pieces in runs/notebook/tokenizer" in pretrained
    assert re.search(r"^step 2/2 +loss", pretrained, re.MULTILINE)
    assert "| hidden | expected with | likeliest |" in pretrained
    assert "devices     8 x cpu: data 8" in finetuned
    assert re.search(r"\d+\.\d% of an unseen novel are right", finetuned)
    assert "runs/notebook/classifier/checkpoints/" in finetuned


@pytest.mark.slow
def test_the_library_trains_predicts_and_exports_what_it_predicts(executed):
    printed = shown(executed["library.ipynb"])
    assert re.search(r"loss \d+\.\d+, after 2 steps \d+\.\d+ nats", printed)
    predicted = re.findall(r"^(\w+) \((\S+)%\), said to be", printed, re.MULTILINE)
    exported = re.findall(r"^(\w+) \((\S+)%\) without xlnet_jax", printed, re.MULTILINE)
    assert len(predicted) == 2
    assert [label for label, _ in exported] == [label for label, _ in predicted]
    percents = [[float(percent) for _, percent in pairs] for pairs in (exported, predicted)]
    assert percents[0] == pytest.approx(percents[1], abs=0.11)  # they are rounded to 0.1


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that runs a notebook's first code cell where xlnet_jax is not installed, with a stand-in for pip.

    It returns pip's words, and the error of the cell. `fails`: the word with which pip ends in an error.
    """

    def run(name, fails, repository=None):
        (tmp_path / "pip.py").write_text(PIP)
        calls = tmp_path / "calls"
        calls.unlink(missing_ok=True)
        monkeypatch.setenv("CALLS", str(calls))
        monkeypatch.setenv("FAILS", fails)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        if repository:
            monkeypatch.setenv("XLNET_REPOSITORY", repository)
        else:
            monkeypatch.delenv("XLNET_REPOSITORY", raising=False)
        cell = code_cells(nbformat.read(COLAB / name, as_version=4))[0]
        result = InteractiveShell().run_cell(cell.source)
        return [line.split() for line in calls.read_text().splitlines()], result.error_in_exec

    return run


def test_the_first_cell_installs_from_the_repository_or_leaves_the_runtime_as_it_was(install):
    for name in NOTEBOOKS:
        calls, error = install(name, fails="")
        assert error is None
        assert [words[0] for words in calls] == ["wheel", "uninstall", "install"]
        assert " ".join(calls[0]).endswith(f"xlnet_jax[tpu,hub] @ git+{REPOSITORY}")
        assert calls[2][-4:-1] == ["--no-index", "--find-links", calls[0][3]]  # from what the first call has fetched
        calls, error = install(name, fails="wheel", repository="https://example.org/fork@branch")
        assert [words[0] for words in calls] == ["wheel"]
        assert calls[0][-1] == "git+https://example.org/fork@branch"
        assert "nothing was changed: xlnet_jax cannot be had from https://example.org/fork@branch" in str(error)
    calls, error = install(NOTEBOOKS[0], fails="install")
    assert len(calls) == 3
    assert "delete runtime, then run all again" in str(error)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "launch/README.md", *(COLAB / name for name in NOTEBOOKS)])
def test_links_into_colab_and_the_repository_lead_to_files(page):
    """Colab opens a notebook alone: links between its files have to be whole addresses."""
    text = page.read_text()
    place = f"{REPOSITORY.partition('github.com')[2]}/blob/main/"
    paths = re.findall(rf"https://(?:colab\.research\.google\.com/github|github\.com){place}([^)\s#]+)", text)
    assert set(NOTEBOOKS) & {Path(path).name for path in paths}
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    if page.suffix == ".ipynb":
        assert re.findall(r"\]\((?!https://)[^)]*\)", "".join(markdown_of(page))) == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_kept_outputs_are_those_of_the_code_and_hold_nothing_of_the_machine(name):
    kept = nbformat.read(COLAB / name, as_version=4)
    assert kept.metadata[EXECUTED] == digest(kept), "run: python launch/colab/execute.py"
    assert not any(output.output_type == "error" for cell in code_cells(kept) for output in cell.outputs)
    outputs = json.dumps([cell.outputs for cell in code_cells(kept)])
    for own in ("/work", "/tmp", "/home", "/root", "site-packages", sys.prefix, f"{getpass.getuser()}@", "\\u001b"):
        assert own not in outputs


def test_kept_outputs_show_learning():
    pretrained, finetuned, library = (shown(nbformat.read(COLAB / name, as_version=4)) for name in NOTEBOOKS)
    assert re.search(r"held-out loss .* below the unigram line", pretrained)
    assert float(re.search(r"(\S+)% of an unseen novel are right", finetuned)[1]) > 80
    first, last = map(float, re.search(r"loss (\S+), after \d+ steps (\S+) nats", library).groups())
    assert last < first - 0.3
    assert "'plm'" in library  # the objective of the loop's own checkpoint, loaded

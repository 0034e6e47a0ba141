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

from launch.colab.execute import COLAB, EXECUTED, NOTEBOOKS, digest, execute  # noqa: E402

SMALL = {"XLNET_STEPS": "2", "XLNET_VOCAB_SIZE": "500", "XLNET_TEST_SIZE": "40", "XLNET_TEXT": "my.txt"}
DEVICES = {"pretrain_tpu.ipynb": 1, "finetune_tpu.ipynb": 8}  # as on a v5e-1, and on a v2-8


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(notebook):
    """Return everything that is printed or displayed, without pictures."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    texts = [output.get("text", "") for output in outputs]
    return "\n".join([*texts, *(str(v) for o in outputs for k, v in o.get("data", {}).items() if "image" not in k)])


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Execute both notebooks in one folder, on some pages of a novel."""
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
    pretrained, finetuned = (shown(executed[name]) for name in NOTEBOOKS)
    assert "500 pieces in runs/notebook/tokenizer" in pretrained
    assert re.search(r"^step 2/2 +loss", pretrained, re.MULTILINE)
    assert "| hidden | expected with | likeliest |" in pretrained
    assert "devices     8 x cpu: data 8" in finetuned
    assert re.search(r"\d+\.\d% of an unseen novel are right", finetuned)
    assert "runs/notebook/classifier/checkpoints/" in finetuned


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_kept_outputs_are_those_of_the_code_beside_them(name):
    kept = nbformat.read(COLAB / name, as_version=4)
    assert kept.metadata[EXECUTED] == digest(kept), "run: python launch/colab/execute.py"
    assert not any(output.output_type == "error" for cell in code_cells(kept) for output in cell.outputs)


def test_kept_outputs_show_learning():
    pretrained, finetuned = (nbformat.read(COLAB / name, as_version=4) for name in NOTEBOOKS)
    assert sum("image/png" in o.get("data", {}) for cell in code_cells(pretrained) for o in cell.outputs) == 2
    assert re.search(r"held-out loss .* below the unigram line", shown(pretrained))
    assert float(re.search(r"(\S+)% of an unseen novel are right", shown(finetuned))[1]) > 80


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_kept_outputs_hold_nothing_of_the_machine(name):
    outputs = json.dumps([cell.outputs for cell in code_cells(nbformat.read(COLAB / name, as_version=4))])
    for own in ("/work", "/tmp", "/home", "/root", "site-packages", sys.prefix, f"{getpass.getuser()}@", "\\u001b"):
        assert own not in outputs

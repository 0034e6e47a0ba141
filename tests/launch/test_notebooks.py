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

ROOT = COLAB.parents[1]
REPOSITORY = re.search(r"^url = (.*)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)[1]
SMALL = {"XLNET_STEPS": "2", "XLNET_VOCAB_SIZE": "500", "XLNET_TEST_SIZE": "40", "XLNET_TEXT": "my.txt"}
TPU, CPU = ("pretrain_tpu.ipynb", "finetune_tpu.ipynb"), ("library.ipynb", "any_order.ipynb", "sequences.ipynb")
EXTRAS = dict.fromkeys(TPU, "tpu,hub") | dict.fromkeys(CPU, "hub")
DEVICES = dict.fromkeys(TPU + CPU, 1) | {"finetune_tpu.ipynb": 8}  # as on a v5e-1, a v2-8, a CPU


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
    assert re.search(r"^four at a time, 16 passes:$", any_order, re.MULTILINE)
    assert re.search(r"^four at a time, exactly: 64 pieces in \d+ passes$", any_order, re.MULTILINE)
    assert re.search(r"^mean over all \d+ orders +-\d+\.\d+ nats$", any_order, re.MULTILINE)
    assert re.search(r"^the network +\d+\.\d+, \d+\.\d+ more$", sequences, re.MULTILINE)
    predicted = re.findall(r"^(\w+) \((\S+)%\), labeled", library, re.MULTILINE)
    exported = re.findall(r"^(\w+) \((\S+)%\) without xlnet_jax", library, re.MULTILINE)
    assert len(predicted) == 2
    for (label, percent), (expected_label, expected) in zip(exported, predicted, strict=True):
        assert label == expected_label
        assert float(percent) == pytest.approx(float(expected), abs=0.11)  # they are rounded to 0.1


def test_the_first_cell_installs_the_package_in_two_lines_and_is_not_executed_here():
    for name in NOTEBOOKS:
        install, *others = code_cells(nbformat.read(COLAB / name, as_version=4))
        package = f'"xlnet_jax[{EXTRAS[name]}] @ git+{REPOSITORY}"'
        uninstalls, installs = install.source.splitlines()
        assert re.fullmatch(r"%pip uninstall -qy tensorflow tensorflow-tpu  # .*", uninstalls)
        assert installs == f"%pip install -q {package}"
        assert install.metadata.tags == ["skip-execution"]  # of nbclient: the tests have the package already
        assert not any("%pip" in cell.source for cell in others)


def test_kept_outputs_are_those_of_the_code_show_learning_and_hold_nothing_of_the_machine():
    kept = [nbformat.read(COLAB / name, as_version=4) for name in NOTEBOOKS]
    for notebook in kept:
        assert notebook.metadata[EXECUTED] == digest(notebook), "run: python launch/colab/execute.py"
        install, *cells = code_cells(notebook)
        assert (install.execution_count, install.outputs) == (None, [])
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
    assert re.search(r"^four at a time, 16 passes:$", any_order, re.MULTILINE)
    assert re.search(r"^four at a time, exactly: 64 pieces in \d+ passes$", any_order, re.MULTILINE)
    assert float(re.search(r"^the network .* (\S+) more$", sequences, re.MULTILINE)[1]) < 1  # nats
    assert "'plm'" in library  # the objective of the loop's own checkpoint, loaded

"""A run that Python code starts, wherever Python runs: its worker processes do not import the code that calls it."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from data_pipelines import sources

ROOT = Path(__file__).parents[4]
LINES = ("from xlnet_jax import pretrain, preset", 'pretrain(preset("demo", corpus="novel.txt", steps=3, workdir="w"))')


def run_script(place):
    (place / "run.py").write_text("\n".join(LINES))
    subprocess.run([sys.executable, "run.py"], cwd=place, check=True, timeout=600)


def run_standard_input(place):
    subprocess.run([sys.executable, "-"], input="\n".join(LINES), cwd=place, check=True, text=True, timeout=600)


def run_shell(place):
    master, terminal = pty.openpty()
    with subprocess.Popen([sys.executable, "-i"], stdin=terminal, stdout=terminal, stderr=terminal, cwd=place) as shell:
        os.close(terminal)
        os.write(master, "".join(f"{line}\n" for line in (*LINES, "exit()")).encode())
        shown = b""
        while chunk := _read(master):
            shown += chunk
        assert shell.wait(600) == 0
    assert b"Traceback" not in shown


def _read(master):
    try:
        return os.read(master, 4096)
    except OSError:  # the other end is closed
        return b""


def run_notebook(place):
    for name in ("nbformat", "nbclient", "ipykernel"):
        pytest.importorskip(name, reason=f"no {name}: pip install -e '.[notebook]'")
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(line) for line in LINES])
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(place)}}).execute()


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [run_standard_input, *(pytest.param(run, marks=pytest.mark.long) for run in (run_script, run_shell, run_notebook))],
)
def test_two_lines_train(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "novel.txt").write_text(Path(sources.embedded()[1]).read_text()[:60_000])
    run(tmp_path)
    assert (tmp_path / "w" / "checkpoints" / "3").is_dir()

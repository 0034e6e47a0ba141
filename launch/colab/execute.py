"""python launch/colab/execute.py: run the notebooks here from top to bottom, and keep their outputs in them.

Environment variables that the notebooks read (XLNET_STEPS, XLNET_TEXT, …) set the size.
"""

import hashlib
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

COLAB = Path(__file__).resolve().parent
NOTEBOOKS = ("pretrain_tpu.ipynb", "finetune_tpu.ipynb", "library.ipynb", "any_order.ipynb", "sequences.ipynb")
"""File names, in order: the second notebook uses the model of the first. The others stand alone."""
EXECUTED = "executed_sources"
"""Key of a notebook's metadata with the digest of the code that made its outputs."""


def digest(notebook: nbformat.NotebookNode) -> str:
    """Return the SHA-256 of all code of a notebook, in hex."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()


def execute(name: str, folder: Path, cell_timeout: int | None = None) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of a run in `folder`, with this Python and this checkout.

    cell_timeout: seconds; None = no limit. Raises nbclient's CellExecutionError if a cell fails.
    """
    notebook = nbformat.read(COLAB / name, as_version=4)
    metadata = dict(notebook.metadata)
    client = NotebookClient(
        notebook,
        timeout=cell_timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,
    )
    paths = {
        "PATH": (Path(sys.executable).parent, os.environ["PATH"]),
        "PYTHONPATH": (COLAB.parents[1], *filter(None, [os.environ.get("PYTHONPATH")])),
    }
    client.execute(env=os.environ | {name: os.pathsep.join(map(str, parts)) for name, parts in paths.items()})
    # Drop the version of Python from the metadata, as it differs between machines.
    notebook.metadata = nbformat.from_dict({**metadata, EXECUTED: digest(notebook)})
    return notebook


def main() -> None:
    """Execute all notebooks in one temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        for name in NOTEBOOKS:
            nbformat.write(execute(name, Path(folder)), COLAB / name)
            print(name, "executed")


if __name__ == "__main__":
    main()

"""Models that come with the package: a name and a folder in the form of Hugging Face for each."""

import os
from pathlib import Path

_FOLDERS = Path(__file__).parents[1] / "weights"
NAMES = ("tiny",)


def is_bundled(source: object) -> bool:
    """Return True for the name of a model that comes with the package. A path on this machine wins, as it does over the
    names of models on the Hub."""
    return isinstance(source, str) and source in NAMES and not os.path.lexists(source)


def folder(name: str) -> Path:
    """Return the folder of a model that comes with the package."""
    return _FOLDERS / name

"""Keep the current folder from choosing what is imported: `python -m` searches it first, and it may hold texts and
models of strangers with a module among them."""

import os
import sys
from pathlib import Path

_PACKAGES = ("xlnet_jax", "data_pipelines")
_ROOT = str(Path(__file__).resolve().parents[2])


def environment_of_command() -> dict[str, str]:
    """Return the environment in which `python -m` of a command searches the current folder only where this package is
    found there: in a checkout."""
    return {} if os.path.realpath(os.getcwd()) == _ROOT else {"PYTHONSAFEPATH": "1"}


def leave_current_folder() -> None:
    """Drop the current folder from the search path where `python -m` has started a command of this project; processes
    that the command starts do not search it either.

    A checkout that is not installed and is the current folder is searched last. A program that imports this package
    keeps its search path. Called before anything else is imported.
    """
    if sys.argv[:1] != ["-m"] or sys.flags.safe_path or "-m" not in sys.orig_argv:  # -m: runpy looks for the module
        return
    command = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    here = os.path.realpath(os.getcwd())
    if command.partition(".")[0] not in _PACKAGES or not sys.path or os.path.realpath(sys.path[0]) != here:
        return
    del sys.path[0]
    if here == _ROOT:
        sys.path.append(here)
    else:
        os.environ["PYTHONSAFEPATH"] = "1"

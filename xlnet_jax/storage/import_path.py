"""Keep the current folder from choosing what is imported: it may hold texts and models of strangers, with a module
among them. `python -m` searches it first, and so do the processes that Python starts with -c, as those of
multiprocessing.

This module imports nothing but `os` and `sys`, which Python has loaded by itself: whatever else is imported before
`leave_current_folder` may be a module of the current folder.
"""

import os
import sys

_PACKAGES = ("xlnet_jax", "data_pipelines")
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def leave_current_folder() -> None:
    """Drop the current folder from the search path where `python -m` has started a command of this project.

    A checkout that is not installed and is the current folder is searched last. A program that imports this package
    keeps its search path. Called before anything else is imported.
    """
    if sys.argv[:1] != ["-m"] or sys.flags.safe_path or "-m" not in sys.orig_argv:  # -m: runpy looks for the module
        return
    command = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    here = _current_folder()
    if command.partition(".")[0] not in _PACKAGES or not here:
        return
    if not sys.path or os.path.realpath(sys.path[0]) != here:
        return
    del sys.path[0]
    if here == _ROOT:
        sys.path.append(here)


def keep_children_out() -> None:
    """Keep Python processes that this one starts from searching the current folder, unless it is the checkout in which
    this package was found. Every command calls this (`xlnet_jax.__main__.run`)."""
    if _current_folder() != _ROOT:
        os.environ["PYTHONSAFEPATH"] = "1"


def _current_folder() -> str:
    """Return the path of the current folder; an empty string where it was deleted."""
    try:
        return os.path.realpath(os.getcwd())
    except FileNotFoundError:
        return ""

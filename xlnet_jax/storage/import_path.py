"""Keep Python from importing modules from the current folder, which may contain untrusted files. `python -m` searches
it first, and so do processes that Python starts with -c, such as those of multiprocessing.

This module and those that a command imports before it import only `os` and `sys`, which Python has already loaded: any
other import before `leave_current_folder` could come from the current folder.
"""

import os
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def leave_current_folder() -> None:
    """Drop the current folder from the search path if `python -m` has put it there. If it is the checkout itself, it is
    searched last."""
    here = _current_folder()
    if "-m" in sys.orig_argv and not sys.flags.safe_path and here and os.path.realpath(sys.path[0]) == here:
        del sys.path[0]
        if here == _ROOT:
            sys.path.append(here)


def keep_children_out() -> None:
    """Keep child processes from searching the current folder, unless it is the checkout that this package comes from.
    Every command calls this (`xlnet_jax.__main__.run`)."""
    if _current_folder() != _ROOT:
        os.environ["PYTHONSAFEPATH"] = "1"


def _current_folder() -> str:
    """Return the path of the current folder; an empty string if it was deleted."""
    try:
        return os.path.realpath(os.getcwd())
    except FileNotFoundError:
        return ""

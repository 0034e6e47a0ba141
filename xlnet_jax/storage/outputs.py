"""Outputs that a user names: a new file or folder. A command enters one of these contexts before it does any work.

An output is made in .NAME.partial beside it, which is locked, and moved to its name when it is complete. So of two
commands with one output the second ends at once, in one line, and a reader sees all of an output or nothing. The next
command for the same output removes or continues what a killed process left.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import beside, in_bucket, move_folder, name_file, require_on_disk, sync, sync_tree
from xlnet_jax.storage.lock import is_held, lock


@contextlib.contextmanager
def new_file(out: epath.PathLike, overwrite: bool = False) -> Iterator[Path]:
    """Yield a path to write to. When the body succeeds, the file becomes `out`, durably; else nothing is left.

    Raises InputError if another process makes `out`, if it cannot be a file on a disk, or if it exists and `overwrite`
    is False.
    """
    path = Path(out)
    with _made_beside(epath.Path(path), lambda: _require_new_file(out, overwrite)) as (finished, _):
        file = Path(finished) / path.name
        yield file
        sync(file)
        file.replace(path)


@contextlib.contextmanager
def complete_folder(out: epath.PathLike) -> Iterator[epath.Path]:
    """Yield an empty folder. When the body succeeds, it becomes `out`; else nothing is left.

    Raises InputError if another process makes `out`, if it exists, or if it cannot be created.
    """
    with resumable_folder(out, keep=False) as (finished, _):
        yield finished


@contextlib.contextmanager
def resumable_folder(out: epath.PathLike, keep: bool = True) -> Iterator[tuple[epath.Path, epath.Path]]:
    """Yield two folders: one that becomes `out` when the body succeeds, and one for intermediate files.

    keep: if the body fails or the process is killed, both keep their files, and the next call for the same `out` yields
    them again. Errors as in `complete_folder`.
    """
    out = epath.Path(out)
    with _made_beside(out, lambda: _require_new_folder(out), keep) as (finished, work):
        yield finished, work
        sync_tree(finished)
        move_folder(finished, out)
        if not in_bucket(out):
            sync(out.parent)


def drop_leftovers(out: epath.PathLike) -> None:
    """Remove temporary files beside a complete folder `out` on a disk, whose process was killed before it cleaned
    up."""
    if not in_bucket(out) and beside(epath.Path(out)).exists():
        with contextlib.suppress(InputError), _made_beside(epath.Path(out), lambda: None):
            pass


@contextlib.contextmanager
def _made_beside(
    out: epath.Path, check: Callable[[], None], keep: bool = False
) -> Iterator[tuple[epath.Path, epath.Path]]:
    """Yield two folders beside `out`, locked for this process, and remove them at the end. check: raises InputError if
    `out` cannot be made. keep: as in `resumable_folder`."""
    try:
        check()
    except InputError:
        drop_leftovers(out)  # of a process that was killed when `out` was complete
        raise
    partial = beside(out)
    try:
        held = None if is_held(partial) else lock(partial, out)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{out}: {error.filename} is in the way: remove it, or give another path") from None
    folders = finished, work = partial / "finished", partial / "work"

    def remove() -> None:
        for folder in folders:
            folder.rmtree(missing_ok=True)

    try:
        check()  # another process may have made it before this one had the lock
        if not keep:
            remove()
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            yield finished, work
        except BaseException as error:
            name_file(partial, error)
            if not keep or not any(files for folder in folders for _, _, files in folder.walk()):
                remove()
            raise
        remove()
    finally:
        if held:
            held.release()
        if not in_bucket(out):
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(partial)


def _require_new_file(out: epath.PathLike, overwrite: bool) -> None:
    path = Path(out)
    require_on_disk(out)
    if path.is_dir():
        raise InputError(f"{out} is a folder; give a file")
    if os.path.lexists(path) and not overwrite:
        raise InputError(f"{out} exists: give another file, or `overwrite`")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{out}: there is no folder {path.parent}; create it, or give another path")


def _require_new_folder(out: epath.Path) -> None:
    if in_bucket(out):
        if out.exists():
            raise InputError(f"{out} exists: name a folder that does not")
        return
    require_on_disk(out)
    if not str(out).isprintable():
        raise InputError(f"{str(out)!r}: give a folder whose name has only printable characters")
    if os.path.lexists(out):
        raise InputError(f"{out} exists: name a folder that does not")
    parent = next(folder for folder in Path(out).absolute().parents if folder.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise InputError(f"{out}: you cannot write to {parent}; give another path")

"""Folders and files that exist complete or not at all, on disk and in the cloud."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from xlnet_jax.config import InputError


@contextlib.contextmanager
def complete_folder(out: epath.PathLike) -> Iterator[epath.Path]:
    """Yields an empty folder beside `out`; when the body ends well it becomes `out`, durably, else it is removed.

    What a killed process left is removed by the next one that writes the same `out`. One process at a time.
    """
    out = epath.Path(out)
    partial = _beside(out)
    partial.rmtree(missing_ok=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        _publish(partial, out)
    except BaseException as error:
        _name(partial, error)
        partial.rmtree(missing_ok=True)
        raise


@contextlib.contextmanager
def resumable_folder(out: epath.PathLike) -> Iterator[tuple[epath.Path, epath.Path]]:
    """Yields two folders beside `out`: what becomes `out` when the body ends well, and one for work on the way.

    Both keep what is in them when the body fails or the process is killed, and the next one finds it there. One process
    at a time: on a disk, InputError in a second one.
    """
    out = epath.Path(out)
    partial = _beside(out)
    finished, work = partial / "finished", partial / "work"
    for folder in (finished, work):
        folder.mkdir(parents=True, exist_ok=True)
    with _alone_in(partial, out):
        try:
            yield finished, work
        except BaseException as error:
            _name(partial, error)
            if not any(files for _, _, files in partial.walk()):
                partial.rmtree()
            raise
        _publish(finished, out)
        partial.rmtree()


def demand_new_file(out: epath.PathLike, overwrite: bool = False) -> None:
    """InputError where a file cannot be made on a disk, or stands there already and may not be overwritten."""
    path = Path(out)
    if "://" in str(out):
        raise InputError(f"{out}: results are written to a disk; copy them from there")
    if path.is_dir():
        raise InputError(f"{out} is a folder; give the name of a file in it")
    if os.path.lexists(path) and not overwrite:
        raise InputError(f"{out} exists: name a file that does not, or give --overwrite")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{out}: there is no folder {path.parent}; make it, or give another name")


@contextlib.contextmanager
def complete_file(out: epath.PathLike) -> Iterator[Path]:
    """Yields the name of a file beside `out`, to be written; when the body ends well it takes the place of `out`,
    durably, else it is removed."""
    partial = Path(_beside(epath.Path(out)))
    try:
        yield partial
        _sync(epath.Path(partial))
        partial.replace(out)
    except BaseException as error:
        _name(epath.Path(partial), error)
        partial.unlink(missing_ok=True)
        raise


def demand_place(out: epath.Path) -> None:
    """InputError where no folder can be made: a mistake that is better found before the work than after it."""
    if "://" in str(out) or out.exists():
        return
    if not str(out).isprintable():
        raise InputError(f"{str(out)!r}: name a folder with letters and signs that can be printed")
    if os.path.islink(out) and not out.exists():
        raise InputError(f"{out}: a link to nothing; name another place")
    parent = next(folder for folder in Path(out).absolute().parents if folder.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise InputError(f"{out}: {parent} is no folder that you may write to; name another place")


@contextlib.contextmanager
def _alone_in(folder: epath.Path, out: epath.Path) -> Iterator[None]:
    if "://" in str(folder):
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes with the process, however that ends
        except BlockingIOError:
            raise InputError(f"{out}: another process is making it; wait for it, or name another place") from None
        except OSError:
            pass  # a disk without locks
        yield
    finally:
        os.close(descriptor)


def _name(folder: epath.Path, error: BaseException) -> None:
    """A write into an open file fails without a name: the system knows it by a number."""
    if isinstance(error, OSError) and error.errno and error.filename is None:
        error.filename = str(folder)


def _beside(out: epath.Path) -> epath.Path:
    return out.parent / f".{out.name}.partial"


def _publish(folder: epath.Path, out: epath.Path) -> None:
    if "://" in str(out):  # a store of objects has no folders to rename: what names the others must come last
        files = [root / name for root, _, names in folder.walk() for name in names]
        for file in sorted(files, key=lambda f: f.name == "manifest.json"):
            file.copy(out / str(file.relative_to(folder)), overwrite=True)
        folder.rmtree()
        return
    for root, _, names in folder.walk(top_down=False):
        for path in (*(root / name for name in names), root):
            _sync(path)
    folder.rename(out)
    _sync(out.parent)


def _sync(path: epath.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Folders that appear whole or not at all, and that outlive a crash of the machine once they are there."""

import contextlib
import os
from collections.abc import Iterator

from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import beside, in_bucket, lock_descriptor, name_file, sync

_LAST = "manifest.json"  # names the other files of its folder


@contextlib.contextmanager
def complete_folder(out: epath.PathLike) -> Iterator[epath.Path]:
    """Yield an empty folder beside `out`, which becomes `out` when the body ends well and is removed when it fails.

    The next call for the same `out` removes what a killed process left. Raises InputError where another process is
    making `out` on this disk; in a bucket the caller sees to it that there is one.
    """
    with _in_the_making(out, keep=False) as (finished, _):
        yield finished


@contextlib.contextmanager
def resumable_folder(out: epath.PathLike) -> Iterator[tuple[epath.Path, epath.Path]]:
    """Yield two folders beside `out`: one that becomes `out` when the body ends well, and one for intermediate files.

    Both keep their files when the body fails or the process is killed, and the next call for the same `out` yields them
    again. Errors as `complete_folder`.
    """
    with _in_the_making(out, keep=True) as folders:
        yield folders


def drop_leftovers(out: epath.PathLike) -> None:
    """Remove what lies beside a complete folder `out` on a disk: its process was killed before it had cleaned up."""
    partial = beside(epath.Path(out))
    if in_bucket(out) or not partial.exists():
        return
    with contextlib.suppress(InputError), _alone_in(partial, epath.Path(out)):
        partial.rmtree(missing_ok=True)


def move_folder(folder: epath.Path, target: epath.Path) -> None:
    """Rename a folder. A bucket copies object by object and removes the originals at the end, so that a stop on the way
    leaves `folder` complete; manifest.json comes last."""
    if not in_bucket(folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(target)
        return
    files = [root / name for root, _, names in folder.walk() for name in names]
    for file in sorted(files, key=lambda f: f.name == _LAST):
        file.copy(target / str(file.relative_to(folder)), overwrite=True)
    folder.rmtree()


def sync_tree(folder: epath.Path) -> None:
    """Make all files below a folder on a disk, and their names, outlive a crash of the machine. A bucket keeps what it
    has taken."""
    if in_bucket(folder):
        return
    for root, _, names in folder.walk(top_down=False):
        for path in (*(root / name for name in names), root):
            sync(path)


@contextlib.contextmanager
def _in_the_making(out: epath.PathLike, keep: bool) -> Iterator[tuple[epath.Path, epath.Path]]:
    out = epath.Path(out)
    partial = beside(out)
    finished, work = partial / "finished", partial / "work"
    partial.mkdir(parents=True, exist_ok=True)
    with _alone_in(partial, out):
        try:
            for folder in (finished, work):
                if not keep:
                    folder.rmtree(missing_ok=True)
                folder.mkdir(exist_ok=True)
            yield finished, work
            sync_tree(finished)
            move_folder(finished, out)
        except BaseException as error:
            name_file(partial, error)
            if not keep or not any(files for _, _, files in partial.walk()):
                partial.rmtree(missing_ok=True)
            raise
        if not in_bucket(out):
            sync(out.parent)
        partial.rmtree(missing_ok=True)


@contextlib.contextmanager
def _alone_in(folder: epath.Path, out: epath.Path) -> Iterator[None]:
    if in_bucket(folder):
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not lock_descriptor(descriptor):
            raise InputError(f"{out}: another process is making it; wait for it, or name another place")
        yield
    finally:
        os.close(descriptor)

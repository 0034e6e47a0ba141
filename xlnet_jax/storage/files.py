"""Files and folders on a disk or in a bucket: complete or not at all, durable, and read with errors a user can mend."""

import contextlib
import errno
import fcntl
import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

from xlnet_jax.errors import InputError

SMALL_FILES = 1 << 20  # bytes that a checkpoint takes beside its arrays: tokenizer, settings, metadata
_SIGNS = ("No space left", "os error 28", "RESOURCE_EXHAUSTED")


def in_bucket(path: epath.PathLike) -> bool:
    """Is it no place on a disk, as gs://bucket/folder? A bucket has objects and no folders: they appear whole, cannot
    be appended to, and are renamed one by one."""
    return "://" in str(path)


def demand_bucket_library() -> None:
    """InputError where Orbax could not write to gs://, which it would notice after all other work."""
    try:
        importlib.import_module("google.cloud.storage")
    except ImportError:
        raise InputError("checkpoints in gs:// need google-cloud-storage: pip install 'xlnet_jax[gcs]'") from None


def absolute(path: epath.PathLike) -> epath.Path:
    """The same place, whatever folder is the current one."""
    return epath.Path(path) if in_bucket(path) else epath.Path(os.path.abspath(path))


def write_durably(path: epath.Path | Path, content: bytes) -> None:
    """All of it or nothing, whenever the process or the machine stops."""
    if in_bucket(path):
        path.write_bytes(content)
        return
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


class Spool:
    """A folder on this machine for files that grow, as those of `home` do: a bucket cannot append. On a disk it is
    `home` itself."""

    def __init__(self, home: epath.Path):
        self._home = home
        self.folder = Path(tempfile.mkdtemp() if in_bucket(home) else home)

    def publish(self) -> None:
        """Copies the files to where they belong."""
        if in_bucket(self._home):
            for file in filter(Path.is_file, self.folder.rglob("*")):
                epath.Path(file).copy(self._home / file.relative_to(self.folder), overwrite=True)


def move_folder(folder: epath.Path, target: epath.Path) -> None:
    """In a bucket object by object: what is stopped on the way leaves `folder` as it was."""
    if not in_bucket(folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(target)
        return
    for root, _, names in folder.walk():
        for name in names:
            (root / name).copy(target / root.relative_to(folder) / name, overwrite=True)
    folder.rmtree()


def demand_space(folder: epath.PathLike, size: int) -> None:
    """OSError where `size` bytes and small files do not fit: a write that is known to fail is not begun."""
    if not in_bucket(folder) and shutil.disk_usage(folder).free < size + SMALL_FILES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


@contextlib.contextmanager
def full_disk_as_os_error(folder: epath.PathLike) -> Iterator[None]:
    """TensorStore, safetensors, TensorFlow and shutil wrap a full disk in errors of their own."""
    try:
        yield
    except Exception as error:
        message = str(error)  # a device out of memory is RESOURCE_EXHAUSTED too
        if any(sign in message for sign in _SIGNS) and "memory" not in message:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
        raise


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


def read_json(file: Path) -> dict[str, Any]:
    """The object in the file. InputError where there is none."""
    try:
        content = json.loads(file.read_text())
    except FileNotFoundError:
        raise InputError(f"{file} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{file} holds no JSON object")
    return content

"""Where files lie, a disk or a bucket; and a full disk, said as the operating system says it, whoever meets it."""

import errno
import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etils import epath

from xlnet_jax.config import InputError

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


@contextmanager
def full_disk_as_os_error(folder: epath.PathLike) -> Iterator[None]:
    """TensorStore, safetensors, TensorFlow and shutil wrap a full disk in errors of their own."""
    try:
        yield
    except Exception as error:
        message = str(error)  # a device out of memory is RESOURCE_EXHAUSTED too
        if any(sign in message for sign in _SIGNS) and "memory" not in message:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
        raise

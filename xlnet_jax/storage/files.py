"""Write files and folders to a disk or a bucket: check the destination first, write all or nothing, durably, and report
clear errors.
"""

import contextlib
import errno
import importlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from etils import epath
from etils.epath import register

from xlnet_jax.errors import FAILING, FULL, REFUSED, InputError

SMALL_FILES = 1 << 20  # bytes of a checkpoint without its arrays: tokenizer, settings, metadata

_LOST_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class _Schemes(dict[str, type[epath.Path]]):
    """Schemes of `epath.Path`; an unknown one raises InputError instead of KeyError."""

    def __missing__(self, scheme: str) -> type[epath.Path]:
        raise InputError(f"{scheme} is not supported: give a path on a disk or in a Google Cloud bucket (gs://)")


# Of the schemes that etils supports, TensorFlow reads only gs://.
register._URI_PREFIXES_TO_CLS = _Schemes({"gs://": register._URI_PREFIXES_TO_CLS["gs://"]})


def in_bucket(path: epath.PathLike) -> bool:
    """Return True for a path such as gs://bucket/folder. A bucket has objects, no folders: an object appears all at
    once, cannot be appended to, and is renamed by copying it."""
    return "://" in str(path)


def _is_url(path: epath.PathLike) -> bool:
    """Return True for a URL, also after pathlib removed one of its two slashes."""
    return in_bucket(path) or _LOST_SLASH.match(str(path)) is not None


def require_weights_on_disk(path: epath.PathLike, argument: str = "") -> None:
    """Raise InputError for weights at a URL. argument: name of the path in messages, followed by a space."""
    if _is_url(path):
        raise InputError(
            f"{argument}{path}: weights are read only from a disk; copy them there first (gcloud storage cp -r)"
        )


def name_on_disk(folder: str) -> tuple[str, str | None]:
    """Return the local path of the weights in a folder, and the command that copies them there from a bucket; None for
    a folder on a disk."""
    if not in_bucket(folder):
        return folder, None
    return folder.rstrip("/").rpartition("/")[2], shlex.join(["gcloud", "storage", "cp", "-r", folder, "."])


def require_bucket_library() -> None:
    """Raise InputError if Orbax cannot write to gs://: it would fail only at the first checkpoint."""
    try:
        importlib.import_module("google.cloud.storage")
    except ImportError:
        raise InputError(
            "checkpoints in gs:// need google-cloud-storage: pip install -e '.[gcs]' in the clone"
        ) from None


def absolute(path: epath.PathLike) -> epath.Path:
    """Return the absolute path."""
    return epath.Path(path) if in_bucket(path) else epath.Path(os.path.abspath(path))


@contextlib.contextmanager
def complete_file(out: epath.PathLike, writer: str = "") -> Iterator[Path]:
    """Yield a path on this machine to write to. When the body succeeds, the file becomes `out`, durably.

    If the body fails, nothing is left. A reader sees the old file or the new one, even if this process or the machine
    stops at any time. writer: distinguishes processes that write the same `out` at the same time.
    """
    out = epath.Path(out)
    with contextlib.ExitStack() as stack:
        if in_bucket(out):
            partial = Path(stack.enter_context(tempfile.TemporaryDirectory())) / out.name
        else:
            partial = Path(beside(out, writer))
        try:
            yield partial
            if in_bucket(out):
                epath.Path(partial).copy(out, overwrite=True)
            else:
                sync(partial)
                partial.replace(out)
        except BaseException as error:
            name_file(partial, error)
            with contextlib.suppress(OSError):
                partial.unlink()
            raise


def write_durably(path: epath.PathLike, content: bytes) -> None:
    """Write a small file with `complete_file`."""
    with complete_file(path) as file:
        file.write_bytes(content)


def beside(out: epath.Path, writer: str = "") -> epath.Path:
    """Return the path where `out` is written until it is complete."""
    return out.parent / f".{out.name}{writer}.partial"


def sync(path: epath.PathLike) -> None:
    """Sync a file, or the names in a folder, so that they survive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def name_file(path: epath.PathLike, error: BaseException) -> None:
    """Add the path to an OSError without one: a failing write to an open file does not name it."""
    if isinstance(error, OSError) and error.errno and error.filename is None:
        error.filename = str(path)


class Spool:
    """Folder on this machine for growing files that belong in `home`, because a bucket cannot append. On a disk it is
    `home` itself."""

    def __init__(self, home: epath.Path):
        self._home = home
        self.folder = Path(tempfile.mkdtemp() if in_bucket(home) else home)

    def publish(self) -> None:
        """Copy the files to `home`."""
        if in_bucket(self._home):
            for file in filter(Path.is_file, self.folder.rglob("*")):
                epath.Path(file).copy(self._home / file.relative_to(self.folder), overwrite=True)


def require_space(folder: epath.PathLike, size: int) -> None:
    """Raise OSError (ENOSPC) if `size` bytes and some small files do not fit on the disk, before the write begins."""
    if not in_bucket(folder) and shutil.disk_usage(folder).free < size + SMALL_FILES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


@contextlib.contextmanager
def disk_errors_as_os_error(folder: epath.PathLike) -> Iterator[None]:
    """Raise OSError for a full, failing or read-only disk. TensorStore, safetensors, TensorFlow, ArrayRecord and shutil
    raise other errors, which only contain the system's message or number."""
    try:
        yield
    except Exception as error:
        name_file(folder, error)
        if (isinstance(error, OSError) and error.errno) or not (code := _disk_error(str(error))):
            raise
        raise OSError(code, os.strerror(code), str(folder)) from error


def _disk_error(message: str) -> int | None:
    for code in (*FULL, *FAILING, *REFUSED):
        if os.strerror(code) in message or re.search(rf"(?i)\bos error:? {code}\b", message):
            return code
    full = "RESOURCE_EXHAUSTED" in message and "memory" not in message  # also the status of a device without memory
    return errno.ENOSPC if full else None


def require_on_disk(out: epath.PathLike) -> None:
    """Raise InputError for a URL."""
    if _is_url(out):
        raise InputError(f"{out}: results are written only to a disk; give a local path, and copy them from there")


_LAST = "manifest.json"  # names the other files of its folder


def move_folder(folder: epath.Path, target: epath.Path) -> None:
    """Rename a folder. In a bucket, copy object by object, manifest.json last, and remove the originals at the end, so
    that an interruption leaves `folder` complete."""
    if not in_bucket(folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(target)
        return
    files = [root / name for root, _, names in folder.walk() for name in names]
    for file in sorted(files, key=lambda f: f.name == _LAST):
        file.copy(target / str(file.relative_to(folder)), overwrite=True)
    folder.rmtree()


def sync_tree(folder: epath.Path) -> None:
    """Sync all files in a folder on a disk, and their names, so that they survive a crash of the machine. Buckets need
    no sync."""
    if in_bucket(folder):
        return
    for root, _, names in folder.walk(top_down=False):
        for path in (*(root / name for name in names), root):
            sync(path)

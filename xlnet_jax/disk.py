"""A full disk, said as the operating system says it, whichever library meets it."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SMALL_FILES = 1 << 20  # bytes that a checkpoint takes beside its arrays: tokenizer, settings, metadata
_SIGNS = ("No space left", "os error 28", "RESOURCE_EXHAUSTED")


def demand_space(folder: Path, size: int) -> None:
    """OSError where `size` bytes and small files do not fit: a write that is known to fail is not begun."""
    if shutil.disk_usage(folder).free < size + SMALL_FILES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


@contextmanager
def full_disk_as_os_error(folder: Path) -> Iterator[None]:
    """TensorStore, safetensors, TensorFlow and shutil wrap a full disk in errors of their own."""
    try:
        yield
    except Exception as error:
        message = str(error)  # a device out of memory is RESOURCE_EXHAUSTED too
        if any(sign in message for sign in _SIGNS) and "memory" not in message:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
        raise

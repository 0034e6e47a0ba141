"""Open files of text, compressed or not, on disk or in the cloud. Every failure is an InputError with the file name."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from etils import epath

from data_pipelines.remote import Unreachable, file_name, is_remote, open_file
from xlnet_jax.errors import InputError
from xlnet_jax.storage.reading import demand_regular

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COMPRESSED_BYTES = 2**16
COPIED_BYTES = 2**20
DAMAGED = (gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstd.ZstdError)


class _Streams:
    """Consecutive compressed streams, with nothing but zeros between them. lzma.open and bz2.open would silently skip
    everything after a damaged header."""

    def __init__(self, raw: IO[bytes], new: Callable[[], Any]):
        self._raw, self._new = raw, new
        self._stream = new()

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes, none at the end. Raises EOFError if a stream is cut short."""
        data = b""
        while not data:
            given = b""
            if self._stream.eof:
                given = self._stream.unused_data.lstrip(b"\0")
                while not given:
                    if not (more := self._raw.read(COMPRESSED_BYTES)):
                        return b""
                    given = more.lstrip(b"\0")
                self._stream = self._new()
            elif self._stream.needs_input and not (given := self._raw.read(COMPRESSED_BYTES)):
                raise EOFError
            data = self._stream.decompress(given, size)
        return data


OPENERS: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".xz": lambda raw: contextlib.nullcontext(_Streams(raw, lzma.LZMADecompressor)),
    ".zst": zstd.open,
    ".bz2": lambda raw: contextlib.nullcontext(_Streams(raw, bz2.BZ2Decompressor)),
}


@contextlib.contextmanager
def open_text(path: str) -> Iterator[IO[bytes]]:
    """Open a file, decompressing it by the end of its name. Raises InputError if it cannot be read to the end."""
    opener = next((opener for end, opener in OPENERS.items() if file_name(path).lower().endswith(end)), None)
    try:
        with _raw(path) as raw, opener(raw) if opener else contextlib.nullcontext(raw) as file:
            yield file
    except EOFError:
        raise InputError(f"text {path}: the compressed data ends too soon; fetch it again") from None
    except DAMAGED as error:
        raise InputError(f"text {path}: the compressed data is damaged ({error}); fetch it again") from None
    except FileNotFoundError:
        raise missing_file(path) from None
    except OSError as error:
        if error.errno is None:  # bz2 raises OSError for damaged data
            raise InputError(f"text {path}: the compressed data is damaged ({error}); fetch it again") from None
        raise InputError(f"text {path} cannot be read: {error.strerror or error}") from None


def _raw(path: str) -> Any:
    if is_remote(path):
        return open_file(path, in_order=True)
    _demand_no_pipe(path)
    return epath.Path(path).open("rb")


def _demand_no_pipe(path: str) -> None:
    """Raise InputError where a pipe or a device, which has no end, stands in the place of a file on a disk."""
    if os.path.exists(path):
        demand_regular(path)


@contextlib.contextmanager
def seekable(path: str) -> Iterator[Any]:
    """Yield what is read out of order: a path on disk, or a file that fetches ranges of a URL.

    A file in gs://, or on a web server that knows no ranges, is copied to this machine while the body works.
    """
    if "://" not in path:
        _demand_no_pipe(path)
        yield path
        return
    if is_remote(path):
        with open_file(path, in_order=False) as file:
            if _gives_ranges(file):
                yield file
                return
    with tempfile.TemporaryFile() as copy:
        with _raw(path) as raw:
            shutil.copyfileobj(raw, copy, COPIED_BYTES)
        copy.seek(0)
        yield copy


def _gives_ranges(file: Any) -> bool:
    """Return whether any part of a remote file can be read by itself; some web servers send whole files only."""
    try:
        file.seek(-1, os.SEEK_END)
        file.read(1)
        file.seek(0)
    except Unreachable:
        raise
    except ValueError:  # InputError too
        return False
    return True


def missing_file(path: str) -> InputError:
    """Return the error for a file that was deleted after it was listed."""
    return InputError(
        f"text {path}: it was there when the text was listed, and is gone; bring it back, or leave it out"
    )

"""Read the bytes of a file behind a URL. A connection that breaks is opened again where it broke."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from data_pipelines.network_failures import Unreachable, failure
from data_pipelines.remote import filesystem, on_web, version_of
from xlnet_jax.errors import InputError

PAUSES = (1, 5, 20)  # seconds before a broken connection is opened again
BLOCK_BYTES = 2**23  # fetched in one request, except in order from a web server
SKIP_BYTES = 2**20
Result = TypeVar("Result")


class Download(io.RawIOBase):
    """A remote file, open for reading. Every failure is an InputError, and Unreachable if it may pass by itself.

    in_order: without `seek`; then a web server sends the file in one response.
    """

    def __init__(self, url: str, in_order: bool = True):
        """Open the file. Raises InputError where that is not possible."""
        self._url, self._in_order = url, in_order
        self._at = 0
        self._version: str | None = None  # None = never opened, "" = the server does not say
        self._file: Any = None
        self._patiently(self._opened)

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.RawIOBase`."""
        return not self._in_order

    def tell(self) -> int:
        """See `io.RawIOBase`."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """See `io.RawIOBase`."""
        if self._in_order:
            raise io.UnsupportedOperation("this file is read in order")
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._patiently(self._opened).size}[whence]
        self._at = begin + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return at most `size` bytes, none at the end. Raises InputError where the file has changed meanwhile."""
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(BLOCK_BYTES), b""))
        data = self._patiently(lambda: self._opened().read(size))
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """See `io.RawIOBase`."""
        self._hang_up()
        super().close()

    def _patiently(self, act: Callable[[], Result]) -> Result:
        for pause in PAUSES:
            try:
                return self._try(act)
            except Unreachable:
                time.sleep(pause)
        return self._try(act)

    def _try(self, act: Callable[[], Result]) -> Result:
        try:
            return act()
        except InputError:
            raise
        except Exception as error:
            self._hang_up()
            raise failure(self._url, error, was_reached=self._version is not None) from None

    def _opened(self) -> Any:
        """Return the open file, at the byte that is read next."""
        streams = self._in_order and on_web(self._url)
        if self._file is None:
            system = filesystem(self._url)
            if streams:
                self._file = self._streamed(system)
            else:
                self._file = system.open(self._url, "rb", block_size=BLOCK_BYTES)
                self._demand_version(version_of(self._file.details))
        if not streams:
            self._file.seek(self._at)
        return self._file

    def _streamed(self, system: Any) -> Any:
        # Uncompressed on the way, so that the bytes can be counted.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={self._at}-"} if self._at else {})
        file = system.open(self._url, "rb", block_size=0, size=1, headers=headers)  # size: it need not ask
        try:
            self._demand_version(version_of(file.r.headers))
            left = 0 if file.r.status == 206 else self._at  # 200: the server sends the whole file once more
            while left:
                left -= len(file.read(min(left, SKIP_BYTES))) or left
        except BaseException:
            file.close()
            raise
        return file

    def _demand_version(self, version: str | None) -> None:
        if self._version not in (None, version or ""):
            raise InputError(f"text {self._url}: it was changed while it was read; run the command again")
        self._version = version or ""

    def _hang_up(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def by_ranges(url: str) -> Download | None:
    """Return a file with `seek`, or None of a web server that sends nothing but whole files."""
    file = Download(url, in_order=False)
    try:
        file.seek(-1, os.SEEK_END)
        file.read(1)
        file.seek(0)
    except (InputError, TypeError) as error:  # TypeError: the server does not tell the size
        file.close()
        if isinstance(error, Unreachable) or not on_web(url):
            raise
        return None
    return file

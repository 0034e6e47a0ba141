"""Lock a folder for one process: with the kernel's lock on a disk, and with an object that is rewritten every few
seconds in a bucket."""

import atexit
import contextlib
import os
import socket
import sys
import threading
import time
import uuid
from pathlib import Path

from etils import epath

from xlnet_jax.errors import USER_ERROR, InputError
from xlnet_jax.printing import printable
from xlnet_jax.storage.files import lock_descriptor

NAME = ".lock"
SECONDS_BETWEEN_BEATS = 10.0
_PATIENCE = 4  # beats


class DiskLock:
    """Lock on a folder until `release` or the end of this process. Raises InputError that names the host and the
    process that hold it."""

    def __init__(self, folder: epath.Path):
        # Keep the file open: the kernel releases the lock whenever and however the process ends.
        self._file = (Path(folder) / NAME).open("a+")
        if not lock_descriptor(self._file.fileno()):
            self._file.seek(0)
            raise _in_use(folder, self._file.read())
        self._file.truncate(0)
        self._file.write(_owner())
        self._file.flush()

    def release(self) -> None:
        self._file.close()


class BucketLock:
    """Lock on a folder in a bucket. Buckets have no locks, so the holder rewrites an object every few seconds, and a
    second process waits to see whether it changes. Raises InputError as DiskLock does. A process that loses the lock,
    because it was offline for too long, ends with the same line."""

    def __init__(self, folder: epath.Path):
        self._folder, self._path = folder, folder / NAME
        self._id = uuid.uuid4().hex  # two containers may have the same host name and process id
        self._over = threading.Event()
        self._beating = threading.Thread(target=self._beat_on, daemon=True)
        self._demand_silence()
        self._beat(0)
        time.sleep(SECONDS_BETWEEN_BEATS / 10)
        if self._id not in (there := self._read()):  # another process started at the same time and wrote later
            raise _in_use(folder, there)
        self._beating.start()
        atexit.register(self.release)

    def release(self) -> None:
        atexit.unregister(self.release)
        self._over.set()
        self._beating.join()
        with contextlib.suppress(Exception):  # a leftover lock becomes stale by itself
            if self._id in self._read():
                self._path.unlink(missing_ok=True)

    def _demand_silence(self) -> None:
        there = self._read()
        if not there:
            return
        print(f"workdir {self._folder}: waiting to see whether {_first_line(there)} still runs", file=sys.stderr)
        until = time.monotonic() + _PATIENCE * SECONDS_BETWEEN_BEATS
        while time.monotonic() < until:
            time.sleep(SECONDS_BETWEEN_BEATS / 4)
            now = self._read()
            if not now:
                return
            if now != there:
                raise _in_use(self._folder, now)

    def _beat_on(self) -> None:
        number = 1
        while not self._over.wait(SECONDS_BETWEEN_BEATS):
            try:
                there = self._read()
                if there and self._id not in there:  # another process took the lock because this one was silent
                    # End at once: two runs in one folder would corrupt it.
                    os.write(2, printable(f"error: {_in_use(self._folder, there)}\n").encode())
                    os._exit(USER_ERROR)
                self._beat(number)
            except Exception:  # the network may fail for a while; waiting processes allow for that
                continue
            number += 1

    def _beat(self, number: int) -> None:
        self._path.write_text(f"{_owner()}\n{self._id} {number:08}\n")

    def _read(self) -> str:
        try:
            return self._path.read_text()
        except FileNotFoundError:
            return ""


def _owner() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _first_line(lock: str) -> str:
    return lock.partition("\n")[0] or "another process"


def _in_use(folder: epath.Path, lock: str) -> InputError:
    return InputError(f"workdir {folder} is in use by {_first_line(lock)}: wait, or give another folder")

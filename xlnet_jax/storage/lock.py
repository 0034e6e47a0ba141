"""Lock a folder for one process: with the kernel's lock on a disk, and with an object that is rewritten every few
seconds in a bucket."""

import atexit
import contextlib
import fcntl
import os
import socket
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import IO, ClassVar

from etils import epath

from xlnet_jax.errors import USER_ERROR, InputError
from xlnet_jax.printing import printable
from xlnet_jax.storage.files import absolute, in_bucket

NAME = ".lock"
SECONDS_BETWEEN_BEATS = 10.0
_PATIENCE = 4  # beats


def lock(folder: epath.PathLike, name: object) -> "DiskLock | BucketLock":
    """Create a folder and lock it until `release` or the end of this process. name: what is locked, for messages.

    Raises InputError, with the host and the process that hold it, if it is locked.
    """
    folder = absolute(folder)
    return BucketLock(folder, name) if in_bucket(folder) else DiskLock(folder, name)


class DiskLock:
    """Lock on a folder, which the kernel releases whenever and however the process ends."""

    def __init__(self, folder: epath.Path, name: object):
        self._path = Path(folder) / NAME
        self._created = [parent for parent in self._path.parents if not parent.exists()]
        self._file = self._open_locked(name)
        self._file.truncate(0)
        self._file.write(_owner())
        self._file.flush()

    def release(self) -> None:
        """Remove the lock, and the folders that it created if they are empty."""
        with contextlib.suppress(OSError):
            self._path.unlink()
            for folder in self._created:
                folder.rmdir()
        self._file.close()

    def _open_locked(self, name: object) -> IO[str]:
        for attempts_left in reversed(range(100)):
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                file = self._path.open("a+")
                if not _lock_descriptor(file.fileno()):
                    file.seek(0)
                    with file:
                        raise _in_use(name, file.read())
                if os.path.samestat(os.fstat(file.fileno()), os.stat(self._path)):
                    return file
                file.close()
            except (FileNotFoundError, FileExistsError):  # the process before has just removed the file or its folder
                if not attempts_left:
                    raise
        raise InputError(f"{name}: other processes make it again and again; give another path")


def _lock_descriptor(descriptor: int) -> bool:
    """Return False if another process holds the lock. On a disk without locks, always return True."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def is_held(path: epath.PathLike) -> bool:
    """Return True for a path in a bucket whose folder this process has locked: another lock would take a second."""
    return any(folder in BucketLock.held for folder in epath.Path(path).parents)


class BucketLock:
    """Lock on a folder in a bucket. Buckets have no locks, so the holder rewrites an object every few seconds, and a
    second process waits to see whether it changes. Raises InputError as DiskLock does. A process that loses the lock,
    because it was offline for too long, ends with the same line."""

    held: ClassVar[set[epath.Path]] = set()  # by this process

    def __init__(self, folder: epath.Path, name: object):
        self._name, self._folder, self._path = name, folder, folder / NAME
        self._id = uuid.uuid4().hex  # two containers may have the same host name and process id
        self._over = threading.Event()
        self._beating = threading.Thread(target=self._beat_on, daemon=True)
        self._require_silence()
        self._beat(0)
        time.sleep(SECONDS_BETWEEN_BEATS / 10)
        if self._id not in (there := self._read()):  # another process started at the same time and wrote later
            raise _in_use(name, there)
        self._beating.start()
        self.held.add(folder)
        atexit.register(self.release)

    def release(self) -> None:
        atexit.unregister(self.release)
        self._over.set()
        self._beating.join()
        self.held.discard(self._folder)
        with contextlib.suppress(Exception):  # a leftover lock becomes stale by itself
            if self._id in self._read():
                self._path.unlink(missing_ok=True)

    def _require_silence(self) -> None:
        there = self._read()
        if not there:
            return
        print(f"{self._name}: waiting to see whether {_first_line(there)} still runs", file=sys.stderr)
        until = time.monotonic() + _PATIENCE * SECONDS_BETWEEN_BEATS
        while time.monotonic() < until:
            time.sleep(SECONDS_BETWEEN_BEATS / 4)
            now = self._read()
            if not now:
                return
            if now != there:
                raise _in_use(self._name, now)

    def _beat_on(self) -> None:
        number = 1
        while not self._over.wait(SECONDS_BETWEEN_BEATS):
            try:
                there = self._read()
                if there and self._id not in there:  # another process took the lock because this one was silent
                    # End at once: two runs in one folder would corrupt it.
                    os.write(2, printable(f"error: {_in_use(self._name, there)}\n").encode())
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


def _in_use(name: object, lock: str) -> InputError:
    return InputError(f"{name} is in use by {_first_line(lock)}: wait, or give another path")

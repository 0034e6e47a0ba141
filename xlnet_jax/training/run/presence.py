"""Which processes of a run live, and why one has ended: files in the workdir that all hosts share. Nothing listens.

WORKDIR/.hosts/START/1-TOKEN.json   who process 1 is; rewritten every few seconds, for as long as its host lives
WORKDIR/.hosts/START/state.json     whether all are connected, who ended before the run was over and why

jax tells that a process is lost by ending all others (SIGABRT), and not which one. A file that is rewritten no more
tells it; an exit status, known to the process that supervises another, tells it at once.
"""

import contextlib
import dataclasses
import json
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from etils import epath

from xlnet_jax.errors import CRASH, INTERRUPTED, RESTART, USER_ERROR, InputError
from xlnet_jax.settings.config import DistributedConfig
from xlnet_jax.storage.files import beside, in_bucket
from xlnet_jax.storage.reading import read_json

STATE = "state.json"
_BEATS = 4
"""a process that has not rewritten its file for so many beats is lost"""
_CODES = (CRASH, USER_ERROR, INTERRUPTED, RESTART)


def seconds_between_beats(folder: epath.PathLike) -> float:
    """Return how often a process rewrites its file: a bucket takes money for each time."""
    return 10.0 if in_bucket(folder) else 2.0


class Ended(InputError):
    """The end of a run because of another of its processes. code: exit code, never that of a run that is done."""

    def __init__(self, why: str, code: int) -> None:
        self.exit_code = code if code in _CODES else RESTART
        again = "; the same command on all hosts goes on from the last checkpoint"
        super().__init__(why + (again if self.exit_code == RESTART else ""))


class Note(NamedTuple):
    """The end of one process, as it is told to the others."""

    why: str
    """as "process 1 on host-b was lost"; "" where all processes left in order"""
    code: int
    """exit code for the others"""
    process: int
    """number of the process that ended; -1 where no single process did"""


@dataclasses.dataclass(frozen=True)
class Roll:
    """The processes that make a run, after all have arrived."""

    folder: str
    """WORKDIR/.hosts/START"""
    place: DistributedConfig
    """place of this process"""
    files: tuple[str, ...]
    """name of the file of each process"""
    hosts: tuple[str, ...]
    """name of the host of each process"""

    @property
    def process_id(self) -> int:
        """Number of this process."""
        return int(self.place.process_id or 0)

    def name(self, process: int) -> str:
        """Return process and host, as "process 1 on host-b"."""
        return f"process {process} on {self.hosts[process]}"

    def as_json(self) -> dict[str, Any]:
        """Return the roll as JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Roll":
        """Return the roll that `as_json` returned."""
        place = DistributedConfig(**values["place"])
        return cls(values["folder"], place, tuple(values["files"]), tuple(values["hosts"]))


class Beat:
    """A file that is written at once, and again every few seconds until `stop`. Raises OSError where that cannot be."""

    def __init__(self, path: epath.Path, content: dict[str, Any]) -> None:
        self._path, self._content = path, content
        self._number, self._over, self._writing = 0, threading.Event(), threading.Lock()
        self._write()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()

    def change(self, **values: Any) -> None:
        """Add values to the content, and write it."""
        self._content = self._content | values
        with contextlib.suppress(Exception):  # the disk may be full, or the network gone
            self._write()

    def stop(self) -> None:
        """Write no more, and leave the file as it is."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def remove(self) -> None:
        """Write no more, and delete the file."""
        self.stop()
        with contextlib.suppress(Exception):
            self._path.unlink(missing_ok=True)

    def _go_on(self) -> None:
        while not self._over.wait(seconds_between_beats(self._path)):
            with contextlib.suppress(Exception):  # the next time may succeed
                self._write()

    def _write(self) -> None:
        with self._writing:
            self._number += 1
            write(self._path, self._content | {"beat": self._number})


class Presence:
    """Knowledge of one process about the others, and its word to them, by the files of the roll."""

    def __init__(self, roll: Roll) -> None:
        self.roll = roll
        self._folder = epath.Path(roll.folder)
        self._state = self._folder / STATE
        self.pace = seconds_between_beats(self._folder)
        """seconds between two looks"""

    def tell_connected(self) -> None:
        """Tell that jax has connected all processes."""
        if not self.news():
            self._tell({"connected": True})

    def tell_over(self) -> None:
        """Tell that all processes have come to the end of the run, or to a stop that all made together."""
        self._tell({"over": True})

    def tell_end(self, why: str, code: int) -> None:
        """Tell that this process ends before the run is over. code: exit code for the others. The first word stays."""
        if not self.news():
            self._tell({"why": why, "code": code, "process": self.roll.process_id})

    @property
    def connected(self) -> bool:
        """True once jax has connected all processes."""
        state = read(self._state)
        return state is None or bool(state)

    def news(self) -> Note | None:
        """Return why the run is over; None as long as it goes on."""
        state = read(self._state) or {}
        if state.get("over"):
            return Note("", 0, -1)
        if isinstance(why := state.get("why"), str) and isinstance(code := state.get("code"), int):
            return Note(why, code, state["process"] if isinstance(state.get("process"), int) else -1)
        return None

    @property
    def is_gone(self) -> bool:
        """True if the files of this start are gone, while the folder of the run can be read."""
        with contextlib.suppress(Exception):
            return self._folder.parent.parent.exists() and not self._state.exists()
        return False

    def await_others(self, seconds: float) -> None:
        """Wait until no other process goes on: jax aborts processes that are alive when process 0 ends."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(not self._look(p).get("status") for p in self._others()):
            time.sleep(0.2)

    def explain(self, aborted: bool) -> Note | None:
        """Find out, in some seconds, which process made the work of this one fail; None where none did.

        aborted: this process was ended by a signal; otherwise its work failed, as the network broke.
        """
        pace = self.pace
        first = {p: self._look(p).get("beat") for p in self._others()}
        until = time.monotonic() + _BEATS * pace
        now: dict[int, dict[str, Any]] = {}
        while time.monotonic() < until:
            time.sleep(pace / 4)
            if (note := self.news()) and note.process != self.roll.process_id:
                return note if note.why else None
            now = {p: self._look(p) for p in first}
            alive = [p for p in first if now[p].get("beat") != first[p] or now[p].get("status")]
            if not aborted and len(alive) == len(first) and time.monotonic() > until - (_BEATS - 2) * pace:
                break
        status = {p: now[p].get("status") for p in first}
        lost = [p for p in first if now[p].get("beat") == first[p] and not status[p]]
        lost = lost or [p for p in first if not aborted and status[p]]
        if lost:
            verb = "was lost" if len(lost) == 1 else "were lost"
            return Note(f"{self._names(lost)} {verb}", RESTART, lost[0])
        if aborted and (going_on := [p for p in first if not status[p]]):
            own = self.roll.name(self.roll.process_id)
            verb = "hangs" if len(going_on) == 1 else "hang"
            return Note(f"{own} was aborted: it broke, or {self._names(going_on)} {verb}", RESTART, -1)
        return None

    def _others(self) -> list[int]:
        return [p for p in range(len(self.roll.files)) if p != self.roll.process_id]

    def _names(self, processes: list[int]) -> str:
        return ", ".join(self.roll.name(p) for p in processes)

    def _look(self, process: int) -> dict[str, Any]:
        return read(self._folder / self.roll.files[process]) or {}

    def _tell(self, state: dict[str, Any]) -> None:
        with contextlib.suppress(Exception):  # the disk may be full: the others see that this process beats no more
            write(self._state, state, str(self.roll.process_id))


def read(path: epath.Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None where there is none, or it cannot be read now."""
    try:
        return read_json(path)
    except Exception:  # InputError on a disk, any type of the library that accesses a bucket
        return None


def write(path: epath.Path, content: dict[str, Any], writer: str = "") -> None:
    """Write a file that readers see whole. It need not outlive a crash of the machine. writer: as of `beside`."""
    text = json.dumps(content)
    if in_bucket(path):
        path.write_text(text)
        return
    partial = Path(beside(path, writer))
    partial.write_text(text)
    partial.replace(path)

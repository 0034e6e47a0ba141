"""Run a command on several hosts in a child process, and tell why it ended.

jax ends a process by SIGABRT when it loses another one: nothing that runs inside it can say which. The parent process
judges by the exit status of its child, and by what the other parents tell (presence.py). It imports no jax.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from xlnet_jax.errors import INTERRUPTED, RESTART, InputError
from xlnet_jax.settings.config import DistributedConfig
from xlnet_jax.storage.reading import decode_json
from xlnet_jax.training.run.listening import listening_of
from xlnet_jax.training.run.presence import Ended, Note, Roll
from xlnet_jax.training.run.roll_call import Attendance, attended

VARIABLE = "XLNET_JAX_ROLL"
"""environment of the child: the roll, where to listen, and the parent's number, as JSON"""
SECONDS_TO_END = 4.0
"""time for a child to end by itself, once another process has"""
_SECONDS_GONE = 30.0
"""time after which a folder that is gone does not come back"""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_PR_SET_PDEATHSIG = 1


def supervise(
    place: DistributedConfig, folder: str, settings: dict[str, Any], names: Sequence[str], command: Sequence[str]
) -> int:
    """Call the roll in `folder`, run `python -m COMMAND` as one of the processes of the run; return its exit code.

    settings, names: as of `attended`. command: module and arguments. SIGINT, SIGTERM and SIGUSR1 are passed on. Raises
    Ended where another process ended the run, or jax or a signal ended the child, with the code for launchers;
    HostsMissing and InputError as `attended` does.
    """
    bind = None
    if place.process_id == 0:
        bind, why = listening_of(place)
        if why:
            print(f"coordinator listens on all addresses: {why}", file=sys.stderr)
    with attended(place, folder, settings, names) as attendance:
        given = {"roll": attendance.roll.as_json(), "bind": bind, "parent": os.getpid()}
        words = [sys.executable, *subprocess._args_from_interpreter_flags(), "-m", *command]  # type: ignore[attr-defined]
        with _forwarding() as forwarding:
            child = subprocess.Popen(words, env=os.environ | {VARIABLE: json.dumps(given)})
            forwarding.to(child)
            watch = _Watch(attendance, child)
            try:
                code = child.wait()
            finally:
                watch.stop()
            return _judge(code, attendance, watch.told, forwarding.asked)


def given_roll() -> tuple[Roll, str | None] | None:
    """Return the roll and where to listen, in a child of `supervise`; None in any other process.

    The child ends when its parent does, however that ends.
    """
    if VARIABLE not in os.environ:
        return None
    given = decode_json(os.environ.pop(VARIABLE), VARIABLE, "unset it: a run sets it for its own child")
    try:
        roll, bind, parent = Roll.from_json(given["roll"]), given["bind"], int(given["parent"])
    except (LookupError, TypeError, ValueError, AttributeError):
        raise InputError(f"{VARIABLE} is not what a run gives its own child: unset it") from None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os._exit(RESTART)
    return roll, bind


class _Forwarding:
    """Signals that this process got, which its child gets too."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self._child: subprocess.Popen[bytes] | None = None

    def to(self, child: "subprocess.Popen[bytes]") -> None:
        """Name the child; it gets what came before."""
        self._child = child
        if self.asked is not None:
            child.send_signal(self.asked)

    def handle(self, signum: int, _: FrameType | None) -> None:
        self.asked = signum
        if self._child:
            self._child.send_signal(signum)


@contextmanager
def _forwarding() -> Iterator[_Forwarding]:
    forwarding = _Forwarding()
    before = {s: signal.signal(s, forwarding.handle) for s in _SIGNALS}
    try:
        yield forwarding
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


class _Watch:
    """Thread that ends the child when another process has ended the run, and the child does not see it by itself."""

    def __init__(self, attendance: Attendance, child: "subprocess.Popen[bytes]") -> None:
        self.told: Note | None = None
        """why the thread has ended the child"""
        self._attendance, self._child = attendance, child
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more, and kill the child where it still lives."""
        self._over.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._child.kill()

    def _look_on(self) -> None:
        attendance, gone = self._attendance, 0.0
        while not self._over.wait(attendance.pace):
            note = attendance.news()
            if note and not note.why:  # all leave in order
                return
            gone = gone + attendance.pace if attendance.is_gone else 0.0
            if gone > _SECONDS_GONE:
                note = Note(f"{attendance.roll.folder} is gone, by which this run knows its hosts", RESTART, -1)
            if note and note.process != attendance.roll.process_id:
                if not self._over.wait(SECONDS_TO_END):
                    self.told = note
                    self._child.kill()
                return


def _judge(code: int, attendance: Attendance, told: Note | None, asked: int | None) -> int:
    """Return the exit code of a child that told its end by itself; otherwise raise Ended."""
    own = attendance.roll.name(attendance.roll.process_id)
    if told and code == -signal.SIGKILL:
        attendance.tell_status("over")
        raise Ended(told.why, told.code)
    if code >= 0:
        if code:  # only the first word is told: nothing where the child has said why, or all leave in order
            lost = code in (INTERRUPTED, RESTART)
            why, theirs = ("was lost", RESTART) if lost else (f"ended with exit code {code}", code)
            attendance.tell_end(f"{own} {why}", theirs)
        attendance.tell_status("over")
        return code
    attendance.tell_status("aborted")
    if asked is not None and code in (-asked, -signal.SIGKILL):  # before the child could handle the signal
        attendance.tell_end(f"{own} was lost", RESTART)
        return INTERRUPTED if asked == signal.SIGINT else RESTART
    name = signal.Signals(-code).name
    note = None
    if -code == signal.SIGABRT:
        if not attendance.connected:
            place = attendance.roll.place
            why = (
                f"jax could not connect the processes at {place.coordinator_address} within "
                f"{place.initialization_timeout} s (distributed.initialization-timeout): see that every host reaches "
                f"this port of {attendance.roll.hosts[0]}"
            )
            note = Note(why, RESTART, -1)
        note = attendance.explain(aborted=True) or note
    if note is None:
        attendance.tell_end(f"{own} was lost", RESTART)
        stranger = f"a stranger has reached {attendance.roll.place.coordinator_address}"
        cause = f", while no other host was lost: memory ran out, or {stranger}" if -code == signal.SIGABRT else ""
        raise Ended(f"{own} was ended by {name}{cause}", RESTART)
    attendance.tell_end(note.why, note.code)
    raise Ended(note.why, note.code)

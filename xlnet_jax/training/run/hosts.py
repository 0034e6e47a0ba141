"""The processes of a run, one on each host: values that they exchange, and the end of one when another is lost."""

import atexit
import contextlib
import itertools
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from xlnet_jax.errors import InputError, exit_code, first_line
from xlnet_jax.storage.reading import decode_json
from xlnet_jax.training.run import coordination
from xlnet_jax.training.run.presence import Ended, Presence, Roll

_SECONDS_TO_LEAVE = 10.0


class Hosts:
    """Processes of a run: here, this one alone."""

    process_id = 0
    seconds_between_signals = 0.0
    """time within which a second signal is the first one again, which came on two ways"""
    is_command = False
    """True where the process does nothing but this run, as that of a command: a second signal then ends it at once"""

    @property
    def first(self) -> bool:
        """True in process 0, which writes everything but the checkpoints alone."""
        return self.process_id == 0

    def gather(self, name: str, value: Any) -> list[Any]:
        """Wait for all processes; return the values (plain JSON) that they give under this name, by process.

        All processes call this in the same order.
        """
        return [value]


ALONE = Hosts()


class Command(Hosts):
    """The process of a command that runs alone."""

    is_command = True


class Team(Hosts):
    """One of several processes, connected by jax."""

    is_command = True
    seconds_between_signals = 1.0  # the launcher may signal this process and its parent, which passes the signal on

    def __init__(self, process_id: int, count: int) -> None:
        self.process_id = process_id
        self._count, self._numbers = count, itertools.count()

    def gather(self, name: str, value: Any) -> list[Any]:
        key = f"xlnet_jax/{next(self._numbers)} {name}"
        coordination.put(f"{key}/{self.process_id}", json.dumps(value))
        if self.first:  # the others read one value each, not one of every process
            values = [decode_json(coordination.get(f"{key}/{p}"), f"{key} of {p}") for p in range(self._count)]
            coordination.put(f"{key}/all", json.dumps(values))
        return list(decode_json(coordination.get(f"{key}/all"), key))


@contextmanager
def joined(roll: Roll | None, bind: str | None = None) -> Iterator[Hosts]:
    """Connect the processes of a roll by jax.distributed; call this before anything asks for a device.

    roll: processes that have arrived, None = this one alone. bind: as of `coordination.connect`. Raises Ended where the
    work fails because another process is gone; the error of the body otherwise, which the others are told.
    """
    if roll is None:
        yield Command()
        return
    presence = Presence(roll)
    try:
        coordination.connect(roll.place, bind)
        if roll.process_id == 0:
            presence.tell_connected()
        team = Team(roll.process_id, len(roll.files))
        yield team
        team.gather("done", None)
        if team.first:
            presence.tell_over()
        team.gather("over", None)
    except BaseException as error:
        told = _end_of(error, presence)
        _leave_at_exit(exit_code(told), presence)
        if told is error:
            raise
        raise told from None


def _end_of(error: BaseException, presence: Presence) -> BaseException:
    """Return why this process ends, after telling the others."""
    own = isinstance(error, InputError | OSError | KeyboardInterrupt)
    # Anything else may be a collective that failed because another process is gone.
    if not own and (note := presence.explain(aborted=False)):
        error = Ended(note.why, note.code)
        presence.tell_end(note.why, note.code)
    else:
        name = presence.roll.name(presence.roll.process_id)
        why = str(error).partition("\n")[0] if isinstance(error, InputError) else first_line(error)
        presence.tell_end(f"{name} ended: {why}", exit_code(error))
    return error


def _leave_at_exit(code: int, presence: Presence) -> None:
    """Let this process end without waiting for the others, as jax's own handler at exit would."""

    def leave() -> None:
        if presence.roll.process_id == 0:
            presence.await_others(_SECONDS_TO_LEAVE)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)

    atexit.register(leave)  # later than jax, so it runs first
    # Threads that save must not keep the process alive.
    watchdog = threading.Timer(3 * _SECONDS_TO_LEAVE, leave)
    watchdog.daemon = True
    watchdog.start()

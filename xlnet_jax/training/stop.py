"""Stop a run before its last step, after saving its state.

Ctrl-C, SIGTERM, SIGUSR1 (which Slurm can send before a time limit), SIGHUP (the terminal is gone), the end of the
program that reads a command's output, and Google Cloud's notice that it is about to preempt the machine all stop a run.
All processes stop at the same step, whichever of them got the signal.
"""

import functools
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from types import FrameType

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlnet_jax.errors import INTERRUPTED, RESTART, UNREAD
from xlnet_jax.printing import calling_when_unread
from xlnet_jax.training import machine

SECONDS_BETWEEN_QUESTIONS = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_UNREAD = "the end of the program that reads its output"
# Values of the metadata server, and how each begins before the machine is preempted.
_NOTICES = {"instance/preempted": "TRUE", "instance/maintenance-event": "TERMINATE"}
_PRODUCT = Path("/sys/class/dmi/id/product_name")


class LoopRequest(IntEnum):
    """What a process asks all of them to do; the most severe request wins."""

    GO_ON = 0
    SAVE = 1
    END = 2
    """end as after the last step: a callback asks"""
    STOP = 3
    """save and end, to continue later"""


PATIENCE, CALLBACK = "patience", "a callback"
"""What ends a run early besides an interrupt (`Result.stopped`)"""


def is_interrupt(stopped: str) -> bool:
    """Return True if a signal or the platform stopped a run (`Result.stopped`), so that work is left."""
    return stopped not in ("", PATIENCE, CALLBACK)


def exit_code_of(stopped: str) -> int:
    """Return the exit code of a command whose run was stopped by this (`Result.stopped`): 0 if no work is left,
    INTERRUPTED for Ctrl-C, UNREAD without a reader of the output, else RESTART."""
    return {"SIGINT": INTERRUPTED, _UNREAD: UNREAD}.get(stopped, RESTART) if is_interrupt(stopped) else 0


class Interrupt:
    """What the processes of a run ask for. `reason` is the cause of a stop in this process, or None."""

    reason: str | None = None

    def __init__(self) -> None:
        self._asked = self._accepted = LoopRequest.GO_ON
        self._answer: jax.Array | None = None  # to the previous poll

    def ask(self, request: LoopRequest) -> None:
        """Ask for this at the next poll."""
        self._asked = max(self._asked, request)

    def poll(self) -> LoopRequest:
        """Return the most severe request of all processes since `take`.

        All processes call this at the same points of the program. If there are several, they get the answer to their
        previous call, which the devices have computed meanwhile, so that none of them waits.
        """
        accepted = own = LoopRequest.STOP if self.reason else self._asked
        self._asked = LoopRequest.GO_ON
        if jax.process_count() > 1:
            accepted = LoopRequest(int(self._answer)) if self._answer is not None else LoopRequest.GO_ON
            # else the same request would be acted on twice
            self._answer = _most_severe(LoopRequest.GO_ON if accepted is own is LoopRequest.SAVE else own)
        self._accepted = max(self._accepted, accepted)
        return self._accepted

    def take(self) -> LoopRequest:
        """Poll, and forget what was asked."""
        accepted, self._accepted = self.poll(), LoopRequest.GO_ON
        return accepted

    def __str__(self) -> str:
        return self.reason or "another process"


@contextmanager
def stop_after_step(is_command: bool = False) -> Iterator[Interrupt]:
    """Record the first signal or notice. A second signal ends the process of a command at once. In other processes it
    goes to the previous handler, which raises KeyboardInterrupt on Ctrl-C.

    SIGHUP is never the second signal, nor the first of two: the kernel, the shell and systemd each send it when a
    session ends, systemd together with SIGTERM. Where it was ignored before, as under nohup, it stays ignored.

    Only the main thread can handle signals. In another thread only a notice stops the run.
    """
    interrupt, over = Interrupt(), threading.Event()
    handled = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {s: signal.getsignal(s) for s in handled}
    if before.get(signal.SIGHUP) is signal.SIG_IGN:
        del before[signal.SIGHUP]

    def restore() -> None:
        for s, handler in before.items():
            signal.signal(s, signal.SIG_DFL if handler is None else handler)  # None: not of Python

    def ask(signum: int, _: FrameType | None) -> None:
        # Write and exit with os: buffered streams and saving threads may be in any state when a signal arrives.
        if interrupt.reason and signum == signal.SIGHUP:
            return
        is_second = interrupt.reason not in (None, "SIGHUP")
        if is_second and is_command:
            _note("stopped at once; the same command continues from the last save")
            os._exit(INTERRUPTED if signum == signal.SIGINT else RESTART)
        if is_second:
            restore()
            signal.raise_signal(signum)
            return
        interrupt.reason = signal.Signals(signum).name
        _note("finishing this step and saving; once more stops at once")

    def end_unread() -> None:
        interrupt.reason = interrupt.reason or _UNREAD
        _note("nothing reads the output any more: finishing this step and saving")

    for s in before:
        signal.signal(s, ask)
    if _on_google_cloud():
        threading.Thread(target=_await_notice, args=(interrupt, over), daemon=True).start()
    try:
        with calling_when_unread(end_unread):
            yield interrupt
    finally:
        over.set()
        restore()


def _note(message: str) -> None:
    """Write a line to the standard error. On a terminal, first clear the line of the progress bar, which is drawn again
    below, and show the cursor, which the bar hides."""
    start = "\r\x1b[K\x1b[?25h" if os.isatty(2) else ""
    with suppress(OSError):  # a terminal that is gone
        os.write(2, f"{start}{message}\n".encode())


def _await_notice(interrupt: Interrupt, over: threading.Event) -> None:
    while not over.wait(SECONDS_BETWEEN_QUESTIONS):
        for name, sign in _NOTICES.items():
            if machine.metadata(name).startswith(sign):
                interrupt.reason = interrupt.reason or f"a notice of the platform ({name})"
                _note("the platform is about to preempt this machine: finishing this step and saving")
                return


def _on_google_cloud() -> bool:
    """Return True on a machine of Google Cloud. This does not use the network."""
    return "GCE_METADATA_HOST" in os.environ or (_PRODUCT.exists() and _PRODUCT.read_text().startswith("Google"))


@functools.cache
def _compile_maximum() -> tuple[NamedSharding, jax.stages.Wrapped]:
    mesh = Mesh(np.array(jax.devices()), ("all",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    return NamedSharding(mesh, PartitionSpec("all")), jax.jit(jnp.max, out_shardings=everywhere)


def _most_severe(request: LoopRequest) -> jax.Array:
    """Dispatch the maximum over all processes; it is ready when the devices have computed it. Each step calls this."""
    over_all, maximum = _compile_maximum()
    own = np.full(jax.local_device_count(), request, np.int32)
    return maximum(jax.make_array_from_process_local_data(over_all, own))

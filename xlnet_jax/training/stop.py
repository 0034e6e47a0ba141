"""Stop a run before its last step, with its state saved.

Ctrl-C, SIGTERM, SIGUSR1 (which Slurm can send ahead of a time limit), and Google Cloud's notice that it takes the
machine away all stop a run. All processes stop at the same step, whichever of them was told.
"""

import functools
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import FrameType

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xlnet_jax.errors import INTERRUPTED, RESTART
from xlnet_jax.training import machine

SECONDS_BETWEEN_QUESTIONS = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
# Values of the metadata server, and how each begins when the machine is about to be taken away.
_NOTICES = {"instance/preempted": "TRUE", "instance/maintenance-event": "TERMINATE"}
_PRODUCT = Path("/sys/class/dmi/id/product_name")


class Wish(IntEnum):
    """Wish of one process for all of them; the strongest is granted."""

    GO_ON = 0
    SAVE = 1
    STOP = 2


class Interrupt:
    """Request to stop. `reason` names what asked this process, or is None; `poll` returns what all processes do."""

    reason: str | None = None

    def __init__(self) -> None:
        self._asked: jax.Array | None = None

    def poll(self, save: bool = False) -> Wish:
        """Return the strongest wish of all processes. save: this process wants to save.

        All processes call this at the same points of the program. Several processes get the answer to their previous
        call, which the devices have computed meanwhile, so that none of them waits.
        """
        own = Wish.STOP if self.reason else Wish.SAVE if save else Wish.GO_ON
        if jax.process_count() == 1:
            return own
        granted = Wish(int(self._asked)) if self._asked is not None else Wish.GO_ON
        if granted is own is Wish.SAVE:  # else the same wish would be granted twice
            own = Wish.GO_ON
        self._asked = _strongest(own)
        return granted

    @property
    def exit_code(self) -> int:
        """Exit code of the stop: INTERRUPTED after Ctrl-C, else RESTART."""
        return INTERRUPTED if self.reason == "SIGINT" else RESTART

    def __str__(self) -> str:
        return self.reason or "another process"


@contextmanager
def stop_after_step(is_command: bool = False) -> Iterator[Interrupt]:
    """Note the first signal or notice. A second signal ends the process of a command at once; in any other process it
    goes to the handler that was there before, which raises KeyboardInterrupt on Ctrl-C.

    Only the main thread can handle signals: elsewhere they are left to it, and only a notice stops the run.
    """
    interrupt, over = Interrupt(), threading.Event()
    handled = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {s: signal.getsignal(s) for s in handled}

    def restore() -> None:
        for s, handler in before.items():
            signal.signal(s, signal.SIG_DFL if handler is None else handler)  # None: not of Python

    def ask(signum: int, _: FrameType | None) -> None:
        # Write and exit through os: buffered streams and saving threads may be in any state when a signal arrives.
        if interrupt.reason and is_command:
            _note("stopped at once; the same command goes on from what was saved last")
            os._exit(INTERRUPTED if signum == signal.SIGINT else RESTART)
        if interrupt.reason:
            restore()
            signal.raise_signal(signum)
            return
        interrupt.reason = signal.Signals(signum).name
        _note("finishing this step and saving; once more stops at once")

    for s in before:
        signal.signal(s, ask)
    if _on_google_cloud():
        threading.Thread(target=_await_notice, args=(interrupt, over), daemon=True).start()
    try:
        yield interrupt
    finally:
        over.set()
        restore()


def _note(message: str) -> None:
    """Write a line to the standard error; on a terminal in place of the progress bar, which comes back below it, and
    with the cursor that the bar hides."""
    start = "\r\x1b[K\x1b[?25h" if os.isatty(2) else ""
    os.write(2, f"{start}{message}\n".encode())


def _await_notice(interrupt: Interrupt, over: threading.Event) -> None:
    while not over.wait(SECONDS_BETWEEN_QUESTIONS):
        for name, sign in _NOTICES.items():
            if machine.metadata(name).startswith(sign):
                interrupt.reason = interrupt.reason or f"a notice of the platform ({name})"
                _note("the platform takes this machine: finishing this step and saving")
                return


def _on_google_cloud() -> bool:
    """Return True on a machine of Google Cloud, without using the network."""
    return "GCE_METADATA_HOST" in os.environ or (_PRODUCT.exists() and _PRODUCT.read_text().startswith("Google"))


@functools.cache
def _compile_maximum() -> tuple[NamedSharding, jax.stages.Wrapped]:
    mesh = Mesh(np.array(jax.devices()), ("all",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    return NamedSharding(mesh, PartitionSpec("all")), jax.jit(jnp.max, out_shardings=everywhere)


def _strongest(wish: Wish) -> jax.Array:
    """Dispatch the maximum over all processes; it is ready as soon as the devices have computed it. Every step asks."""
    over_all, maximum = _compile_maximum()
    own = np.full(jax.local_device_count(), wish, np.int32)
    return maximum(jax.make_array_from_process_local_data(over_all, own))

"""What ends a run before its last update, with its state saved.

Ctrl-C, SIGTERM, SIGUSR1 (which Slurm can send ahead of a time limit), and the notice of Google Cloud that the machine
is about to be taken. All processes of a run act on it at the same update, whichever of them it reached.
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
from xlnet_jax.training.run import runtime

SECONDS_BETWEEN_QUESTIONS = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
# What the machine of Google Cloud says about itself, and how it begins when the machine is about to be taken.
_NOTICES = {"instance/preempted": "TRUE", "instance/maintenance-event": "TERMINATE"}
_PRODUCT = Path("/sys/class/dmi/id/product_name")


class Wish(IntEnum):
    """What a process wants of all; the strongest is granted."""

    GO_ON = 0
    SAVE = 1
    STOP = 2


class Interrupt:
    """`reason` is what asked this process to stop, or None; `poll` says what all of them do."""

    reason: str | None = None

    def __init__(self) -> None:
        self._asked: jax.Array | None = None

    def poll(self, save: bool = False) -> Wish:
        """The strongest wish of any process; save: it is this one's time to save.

        Every process asks at the same points of its program. Where there are several they hear the answer to the
        question before, which the devices have worked out meanwhile: nobody waits for it.
        """
        own = Wish.STOP if self.reason else Wish.SAVE if save else Wish.GO_ON
        if jax.process_count() == 1:
            return own
        granted = Wish(int(self._asked)) if self._asked is not None else Wish.GO_ON
        if granted is own is Wish.SAVE:  # else it would be granted once more
            own = Wish.GO_ON
        self._asked = _strongest(own)
        return granted

    @property
    def exit_code(self) -> int:
        """INTERRUPTED after Ctrl-C, else RESTART."""
        return INTERRUPTED if self.reason == "SIGINT" else RESTART

    def __str__(self) -> str:
        return self.reason or "another process"


@contextmanager
def stop_after_step() -> Iterator[Interrupt]:
    """While inside, the first signal or notice is noted; a second signal ends the process."""
    interrupt, over = Interrupt(), threading.Event()
    before = {s: signal.getsignal(s) for s in _SIGNALS}

    def ask(signum: int, _: FrameType | None) -> None:
        # By os: a handler can find the buffered streams, and the threads that save, in any state.
        if interrupt.reason:
            os.write(2, b"stopped at once; the same command goes on from what was saved last\n")
            os._exit(INTERRUPTED if signum == signal.SIGINT else RESTART)
        interrupt.reason = signal.Signals(signum).name
        os.write(2, b"finishing this step and saving; once more stops at once\n")

    for s in before:
        signal.signal(s, ask)
    if _on_google_cloud():
        threading.Thread(target=_await_notice, args=(interrupt, over), daemon=True).start()
    try:
        yield interrupt
    finally:
        over.set()
        for s, handler in before.items():
            signal.signal(s, handler)


def _await_notice(interrupt: Interrupt, over: threading.Event) -> None:
    while not over.wait(SECONDS_BETWEEN_QUESTIONS):
        for name, sign in _NOTICES.items():
            if runtime.metadata(name).startswith(sign):
                interrupt.reason = interrupt.reason or f"a notice of the platform ({name})"
                os.write(2, b"the platform takes this machine: finishing this step and saving\n")
                return


def _on_google_cloud() -> bool:
    """Known without asking the network."""
    return "GCE_METADATA_HOST" in os.environ or (_PRODUCT.exists() and _PRODUCT.read_text().startswith("Google"))


@functools.cache
def _maximum() -> tuple[NamedSharding, jax.stages.Wrapped]:
    mesh = Mesh(np.array(jax.devices()), ("all",))
    return NamedSharding(mesh, PartitionSpec("all")), jax.jit(
        jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec())
    )


def _strongest(wish: Wish) -> jax.Array:
    """The largest wish of all processes, as soon as the devices come to it."""
    over_all, maximum = _maximum()
    own = np.full(jax.local_device_count(), wish, np.int32)
    return maximum(jax.make_array_from_process_local_data(over_all, own))

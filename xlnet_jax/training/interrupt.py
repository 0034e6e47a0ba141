"""Ctrl-C and SIGTERM end a run after the step under way, with its state saved; a second Ctrl-C ends it at once."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """`signum` is the signal that asked the run to stop, or None."""

    signum: int | None = None

    @property
    def requested(self) -> bool:
        return self.signum is not None


@contextmanager
def stop_after_step() -> Iterator[Interrupt]:
    """While inside, the first SIGINT or SIGTERM sets the flag; the next one ends the process."""
    interrupt = Interrupt()
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def ask(signum: int, _: FrameType | None) -> None:
        # By os: a handler can find the buffered streams, and the threads that save, in any state.
        if interrupt.requested:
            os.write(2, b"stopped at once; the same command goes on from what was saved last\n")
            os._exit(128 + signum)
        interrupt.signum = signum
        os.write(2, b"finishing this step and saving; once more stops at once\n")

    for s in before:
        signal.signal(s, ask)
    try:
        yield interrupt
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)

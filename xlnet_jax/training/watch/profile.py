"""Trace chosen steps for TensorBoard: where the time of a step goes, operation by operation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from etils import epath


class Tracer:
    """Trace the steps counted from 0 in `steps`: range(10, 15) are the 11th to the 15th. Use as a context manager.

    Report it where a run that starts at `start` is past them. `folder` is on this machine; `published` is the place
    where the user finds the trace.
    """

    def __init__(self, steps: range, start: int, folder: Path, published: epath.Path, say: Callable[[str], None]):
        self._steps, self._folder, self._published, self._say = steps, folder, published, say
        self._active = False
        if steps and steps.stop <= start:
            say(f"trace: the run is at step {start}, past the last step to trace ({steps.stop}): nothing is traced")

    def at(self, done: int, running: Any) -> None:
        """Start or stop the trace, where due after `done` steps; wait for the arrays `running` first, so that it holds
        whole steps."""
        if (done in self._steps) != self._active:
            jax.block_until_ready(running)
            self._stop() if self._active else self._start()

    def _start(self) -> None:
        jax.profiler.start_trace(self._folder)
        self._active = True

    def _stop(self) -> None:
        self._active = False
        jax.profiler.stop_trace()
        self._say(
            f"trace: written to {self._published}; to look at it: pip install xprof tensorboard; "
            f"tensorboard --logdir {self._published}"
        )

    def __enter__(self) -> "Tracer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._active:
            self._stop()

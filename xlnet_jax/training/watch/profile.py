"""A trace of chosen updates, for TensorBoard: where a step's time goes, operation by operation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from etils import epath


class Tracer:
    """Traces the updates after those in `updates`: of range(10, 15), the 11th to the 15th. Use as a context manager.

    A run that goes on at `start` may have left them behind: then it says so. It writes into `folder`, on this machine;
    `published` is where a user finds that.
    """

    def __init__(self, updates: range, start: int, folder: Path, published: epath.Path, say: Callable[[str], None]):
        self._updates, self._folder, self._published, self._say = updates, folder, published, say
        self._active = False
        if updates and updates.stop <= start:
            say(f"profile: the updates up to {updates.stop} lie behind step {start}, so nothing is traced")

    def at(self, done: int, running: Any) -> None:
        """Starts or stops the trace, where due after `done` updates; then waits for the arrays that are `running`
        first, so that it holds whole updates."""
        if (done in self._updates) != self._active:
            jax.block_until_ready(running)
            self._stop() if self._active else self._start()

    def _start(self) -> None:
        jax.profiler.start_trace(self._folder)
        self._active = True

    def _stop(self) -> None:
        self._active = False
        jax.profiler.stop_trace()
        self._say(
            f"profile: a trace is in {self._published}; to look at it: pip install xprof tensorboard; "
            f"tensorboard --logdir {self._published}"
        )

    def __enter__(self) -> "Tracer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._active:
            self._stop()

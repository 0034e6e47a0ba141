"""Account of a run's wall time, from its first start over all restarts. Goodput is the share spent in steps.

metrics.jsonl has a time record beside every recorded step and every checkpoint. A resumed run continues from the last
record up to its checkpoint: the time of steps after the checkpoint counts as lost.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from xlnet_jax.training.watch.metrics import Record

LOSSES = ("start", "restarts", "compilation", "input", "evaluation", "checkpoints", "trace")
"""Causes of lost time. start: everything before the first step. restarts: from the resumed checkpoint until the new
process trains. input: waiting for a batch while the devices are idle. checkpoints: the part of a save that blocks."""


class WallTime:
    """Seconds since the run's first start: lost ones by cause, the rest spent in steps."""

    def __init__(self, records: Iterable[dict[str, Any]], step: int, began: float, compiling: float = 0.0):
        """records: those of metrics.jsonl; step: step of the checkpoint that the run resumes; began: start of this
        process, by time.time(); compiling: seconds since then that went into compiling."""
        now = time.time()
        kept = [r for r in records if r["split"] == "time" and r["step"] <= step]
        self.lost = {kind: float(kept[-1].get(kind, 0.0)) if kept else 0.0 for kind in LOSSES}
        self._wall_before = kept[-1]["wall"] if kept else 0.0
        self._opened = time.perf_counter()
        idle = max(now - (kept[-1]["at"] if kept else began), 0.0)
        self._wall_before += idle
        self.lose("restarts" if kept else "start", idle - compiling)
        self.lose("compilation", min(compiling, idle))
        self.mark(0)

    @property
    def wall(self) -> float:
        return self._wall_before + time.perf_counter() - self._opened

    @property
    def updates(self) -> float:
        """Seconds spent in steps that count."""
        return max(self.wall - sum(self.lost.values()), 0.0)

    def lose(self, kind: str, seconds: float) -> None:
        self.lost[kind] += max(seconds, 0.0)

    @contextmanager
    def lost_to(self, kind: str) -> Iterator[None]:
        """Count the time inside as lost."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.lose(kind, time.perf_counter() - begun)

    def mark(self, step: int) -> None:
        """Start counting for `seconds_per_step`."""
        self._marked = step, self.updates + self.lost["input"]

    def seconds_per_step(self, step: int) -> float | None:
        """Return the mean seconds of a step since the mark, waiting for input included, and set the mark.

        None where no step was done since.
        """
        marked_step, marked_seconds = self._marked
        self.mark(step)
        return (self._marked[1] - marked_seconds) / (step - marked_step) if step > marked_step else None

    def record(self, step: int) -> Record:
        """Return the account after `step` steps."""
        wall, updates = self.wall, self.updates
        rounded = {kind: round(seconds, 3) for kind, seconds in (("updates", updates), *self.lost.items())}
        goodput = updates / wall if wall else 0.0
        return {"step": step, "split": "time", "at": time.time(), "wall": wall, **rounded, "goodput": goodput}

    def summary(self) -> str:
        """Return e.g. 'goodput 91.2% of 10:00 in updates; lost to compilation 0:30, input 0:01'."""
        losses = sorted(((seconds, kind) for kind, seconds in self.lost.items() if seconds >= 0.5), reverse=True)
        parts = ", ".join(f"{kind} {clock(seconds)}" for seconds, kind in losses)
        share = self.updates / max(self.wall, 1e-9)
        return f"goodput {share:.1%} of {clock(self.wall)} in updates" + (f"; lost to {parts}" if parts else "")


def clock(seconds: float) -> str:
    """Format seconds as '1:02:03', or '2:03' under an hour."""
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{s:02}" if hours else f"{minutes}:{s:02}"

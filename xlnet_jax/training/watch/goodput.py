"""Where the wall time of a run goes, from its first start over all restarts: its goodput is the share of the updates.

A record of this stands in metrics.jsonl beside every step on record and every checkpoint. A resumed run goes on from
the last one that its checkpoint has kept: what was done after it was done in vain, and counts as lost.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from xlnet_jax.training.watch.metrics import Record

LOSSES = ("start", "restarts", "compilation", "input", "evaluation", "checkpoints", "profile")
"""What time is lost to. start = until the first update, with all that comes before; restarts = from what was kept until
a later process goes on; input = while the devices had nothing to do; checkpoints = while a save holds the run up."""


class WallTime:
    """Seconds since the run's first start, and what they were lost to; those that are left went into updates."""

    def __init__(self, records: Iterable[dict[str, Any]], step: int, began: float):
        """records: of metrics.jsonl; step: that of the checkpoint which the run resumes; began: when this process did,
        by time.time()."""
        now = time.time()
        kept = [r for r in records if r["split"] == "time" and r["step"] <= step]
        self.lost = {kind: float(kept[-1].get(kind, 0.0)) if kept else 0.0 for kind in LOSSES}
        self._wall_before = kept[-1]["wall"] if kept else 0.0
        self._opened = time.perf_counter()
        idle = max(now - (kept[-1]["at"] if kept else began), 0.0)
        self._wall_before += idle
        self.lose("restarts" if kept else "start", idle)
        self.mark(0)

    @property
    def wall(self) -> float:
        return self._wall_before + time.perf_counter() - self._opened

    @property
    def updates(self) -> float:
        """Seconds that went into updates that count."""
        return max(self.wall - sum(self.lost.values()), 0.0)

    def lose(self, kind: str, seconds: float) -> None:
        self.lost[kind] += max(seconds, 0.0)

    @contextmanager
    def lost_to(self, kind: str) -> Iterator[None]:
        """Counts the time inside as lost."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.lose(kind, time.perf_counter() - begun)

    def mark(self, step: int) -> None:
        """`seconds_per_step` counts from here."""
        self._marked = step, self.updates + self.lost["input"]

    def seconds_per_step(self, step: int) -> float | None:
        """Mean over the updates since the mark, waiting for input included; None where there were none. Sets the
        mark."""
        marked_step, marked_seconds = self._marked
        self.mark(step)
        return (self._marked[1] - marked_seconds) / (step - marked_step) if step > marked_step else None

    def record(self, step: int) -> Record:
        """As it stands after `step` updates."""
        wall, updates = self.wall, self.updates
        rounded = {kind: round(seconds, 3) for kind, seconds in (("updates", updates), *self.lost.items())}
        goodput = updates / wall if wall else 0.0
        return {"step": step, "split": "time", "at": time.time(), "wall": wall, **rounded, "goodput": goodput}

    def summary(self) -> str:
        """'goodput 91.2 % of 0:10:00; lost to compilation 0:30, input 0:01'"""
        losses = sorted(((seconds, kind) for kind, seconds in self.lost.items() if seconds >= 0.5), reverse=True)
        parts = ", ".join(f"{kind} {clock(seconds)}" for seconds, kind in losses)
        share = self.updates / max(self.wall, 1e-9)
        return f"goodput {share:.1%} of {clock(self.wall)} in updates" + (f"; lost to {parts}" if parts else "")


def clock(seconds: float) -> str:
    """'1:02:03', or '2:03' under an hour."""
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{s:02}" if hours else f"{minutes}:{s:02}"

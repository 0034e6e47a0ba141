"""Measurements of a run while it trains: its records (metrics.jsonl, one JSON object per line), the breakdown of its
wall time, speed, and profiles of chosen steps. Goodput is the share of wall time spent in steps, since the first start,
restarts included.
"""

import importlib.util
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from etils import epath

from xlnet_jax.costs import peak_flops
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.registry import step_flops
from xlnet_jax.printing import tell
from xlnet_jax.settings.config import Config
from xlnet_jax.storage.files import Spool
from xlnet_jax.storage.reading import parse_json, require_regular, without_version


def require_wandb(project: str) -> None:
    """Raise InputError if the package wandb is not installed."""
    if importlib.util.find_spec("wandb") is None:
        raise InputError(
            "log.wandb",
            project,
            ": the package wandb is not installed: pip install -e '.[wandb]' in the clone, or leave `log.wandb` out",
        )


Record = dict[str, float | int | str]
"""A record of a run: "step", "split" (train, validation, time or sample) and numbers, or the texts of
a sample"""


def read_records(path: epath.Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a metrics.jsonl after the first, which has the version, with NaN for null.

    Skip damaged lines, and print a note if one is not the last line, which a crash may cut off. Raises InputError if
    the version is missing or not supported.
    """
    if not path.exists():
        return
    require_regular(path)
    lines = path.read_bytes().decode(errors="replace").splitlines()
    if lines:
        where, remedy = f"{path}, line 1", "delete the file; the run continues without its earlier records"
        without_version("metrics", parse_json(lines[0], where, dict[str, Any], remedy), where, remedy)
    damaged = 0
    for number, line in enumerate(lines[1:], 2):
        try:
            record = parse_json(line, str(path), dict[str, int | float | str | None])
        except InputError:
            damaged += number < len(lines)
            continue
        split = str(record.get("split"))
        needed = {"train": "loss", "time": "wall", "sample": "drawn"}.get(split, "step")
        texts, step = {name for name, value in record.items() if isinstance(value, str)}, record.get("step")
        is_text = split == "sample" or texts == {"split"}
        if isinstance(step, int) and step < 2**31 and needed in record and is_text:
            yield {k: math.nan if v is None else v for k, v in record.items()}
    if damaged:
        tell(f"{path}: {damaged} damaged lines are skipped")


LOSSES = ("start", "restarts", "compilation", "input", "evaluation", "checkpoints", "trace")
"""Causes of lost time. start: everything before the first step. restarts: from the resumed checkpoint until the new
process trains. input: waiting for a batch while the devices are idle. checkpoints: the blocking part of a save."""


class WallTime:
    """Seconds since the first start of the run: lost seconds by cause; the rest were spent in steps."""

    def __init__(self, records: Iterable[dict[str, Any]], step: int, began: float, compiling: float = 0.0):
        """records: of metrics.jsonl; step: of the checkpoint that the run resumes; began: time.time() at the start of
        this process; compiling: seconds since then that were spent on compiling."""
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
        """Seconds spent in steps."""
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
        """Return the mean seconds per step since the mark, waiting for input included, and set the mark.

        Return None if no step was done since.
        """
        marked_step, marked_seconds = self._marked
        self.mark(step)
        return (self._marked[1] - marked_seconds) / (step - marked_step) if step > marked_step else None

    def record(self, step: int) -> Record:
        """Return the breakdown of the time after `step` steps."""
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


def speed(config: Config, seconds: float) -> dict[str, float]:
    """Return seconds_per_step, tokens_per_second and, if the peak FLOPs of the devices are known, mfu, for a step that
    took `seconds`."""
    numbers = {
        "seconds_per_step": seconds,
        "tokens_per_second": config.data.batch_size * config.data.seq_len / seconds,
    }
    if peak := peak_flops(jax.devices()[0].device_kind):
        numbers["mfu"] = step_flops(config) / (seconds * peak * jax.device_count())
    return numbers


class Tracer:
    """Profile the steps in `steps`, counted from 0: range(10, 15) are the 11th to the 15th. Use as a context manager.

    If a run starts at `start` after these steps, print a line.
    """

    def __init__(self, steps: range, start: int, folder: epath.Path, say: Callable[[str], None]):
        self._steps, self._published, self._say = steps, folder, say
        self._active = False
        if steps and steps.stop <= start:
            say(f"trace: none, as the run is at step {start}, after the last step to trace ({steps.stop})")

    def at(self, done: int, running: Any) -> None:
        """Start or stop the trace, if due after `done` steps. Wait for the arrays `running` first, so that it has
        whole steps."""
        if (done in self._steps) != self._active:
            jax.block_until_ready(running)
            if self._active:
                self._stop()
            else:
                self._spool = Spool(self._published.parent)
                jax.profiler.start_trace(self._spool.folder / self._published.name)
                self._active = True

    def _stop(self) -> None:
        self._active = False
        jax.profiler.stop_trace()
        self._spool.publish()
        self._say(
            f"trace: written to {self._published}; to look at it: pip install xprof tensorboard; "
            f"tensorboard --logdir {self._published}"
        )

    def __enter__(self) -> "Tracer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._active:
            self._stop()

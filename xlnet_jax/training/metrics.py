"""The output of a run while it trains: metrics (metrics.jsonl with one JSON object per line, TensorBoard, Weights &
Biases), the breakdown of its wall time, progress on the terminal, speed, and profiles of chosen steps. Goodput is the
share of wall time spent in steps, since the first start, restarts included.
"""

import importlib.util
import json
import math
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from etils import epath
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from xlnet_jax.costs import peak_flops
from xlnet_jax.errors import InputError, first_line
from xlnet_jax.objectives.registry import step_flops
from xlnet_jax.printing import tell
from xlnet_jax.settings.config import Config, RunConfig
from xlnet_jax.settings.fields import to_dict
from xlnet_jax.storage.files import Spool, in_bucket, write_durably
from xlnet_jax.storage.reading import demand_regular, parse_json, with_version, without_version

_TORCH = sys.modules.get("torch")
sys.modules["torch"] = None  # type: ignore[assignment]
try:  # tensorboardX imports PyTorch wherever it is installed, which takes three seconds and is not needed here
    from tensorboardX import SummaryWriter
finally:
    del sys.modules["torch"]
    if _TORCH is not None:
        sys.modules["torch"] = _TORCH


def demand_wandb(project: str) -> None:
    """Raise InputError if the package wandb is not installed."""
    if importlib.util.find_spec("wandb") is None:
        raise InputError(
            f"`log.wandb` {project}: the package wandb is not installed: pip install -e '.[wandb]' in the clone, or "
            "leave `log.wandb` out"
        )


def start_wandb(project: str, config: RunConfig, id_file: epath.Path) -> Any:
    """Start or resume the run at Weights & Biases. There is one for each workdir; its id is in `id_file`. Raises
    InputError if it does not start."""
    import wandb

    if not id_file.exists():
        id_file.write_text(uuid.uuid4().hex)
    folder = {} if in_bucket(id_file) else {"dir": str(id_file.parent)}
    try:
        run = wandb.init(
            project=project, id=id_file.read_text(), name=id_file.parent.name, resume="allow", config=to_dict(config),
            **folder,
        )  # fmt: skip
    except Exception as error:  # no key, no network, no such project: the types depend on the version
        raise InputError(
            f"`log.wandb` {project}: Weights & Biases did not start the run ({first_line(error)}): run wandb login, "
            "set WANDB_MODE=offline, or leave `log.wandb` out"
        ) from None
    # A resumed run writes some steps again, and W&B drops records of steps that it already has. So our step is a
    # separate metric, and the x axis of all others.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run


Record = dict[str, float | int | str]
_FIRST: Record = {"step": 0, "split": "format"}
"""First record of the file, which also has the version"""


class MetricsWriter:
    """Append records. A line is on disk when `write` returns, and in a bucket when `flush` returns.

    A resumed run first deletes the records after its checkpoint. Use as a context manager.
    """

    def __init__(self, path: epath.Path, events_folder: epath.Path, resume_step: int, wandb_run: Any = None):
        kept = [r for r in read_records(path) if r["step"] <= resume_step]
        self._spool = Spool(path.parent)
        lines = self._spool.folder / path.name
        write_durably(lines, "".join(map(_line, (with_version("metrics", _FIRST), *kept))).encode())
        self._lines = lines.open("a", buffering=1)
        self.events_folder = self._spool.folder / events_folder.name  # on this machine
        # TensorBoard hides the events that an interrupted run wrote after its last checkpoint, as they come again.
        self._events = SummaryWriter(str(self.events_folder), purge_step=resume_step + 1)
        self._wandb_run = wandb_run

    def write(self, record: Record) -> None:
        """Write a record: "step", "split" (train, validation or time) and numbers."""
        self._lines.write(_line(record))
        numbers = {
            f"{record['split']}/{name}": float(value)
            for name, value in record.items()
            if name not in ("step", "split", "at") and math.isfinite(float(value))
        }
        for name, value in numbers.items():
            self._events.add_scalar(name, value, record["step"])
        if self._wandb_run:
            self._wandb_run.log(numbers | {"step": int(record["step"])})

    def flush(self) -> None:
        """Make what was written so far survive a crash of this machine; upload it if the workdir is in a bucket."""
        os.fsync(self._lines.fileno())
        self._events.flush()
        self._spool.publish()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()
        self._lines.close()
        self._events.close()
        self._spool.publish()
        if self._wandb_run:
            self._wandb_run.finish()


def _line(record: Record) -> str:
    """Return a line of JSON. Numbers that are not finite become null."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return json.dumps(plain) + "\n"


def read_records(path: epath.Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a metrics.jsonl after the first, which has the version, with NaN for null.

    Skip damaged lines, and print a note if one is not the last line, which a crash may cut off. Raises InputError if
    the version is missing or not supported.
    """
    if not path.exists():
        return
    demand_regular(path)
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
        needed = {"train": "loss", "time": "wall"}.get(str(record.get("split")), "step")
        texts, step = {name for name, value in record.items() if isinstance(value, str)}, record.get("step")
        if isinstance(step, int) and step < 2**31 and needed in record and texts == {"split"}:
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


class ProgressView:
    """Show progress. `bar` is a context manager; call `show` at every logged step and `advance` at every step."""

    def __init__(self, start: int, steps: int, reference: Mapping[str, float], console: Console):
        """reference: numbers to show next to the loss."""
        self._console = console
        self._steps = steps
        self._seconds_per_step: float | None = None
        self._reference = "  ".join(f"{name} {value:.3f}" for name, value in reference.items())
        self.bar = Progress(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[loss]}"),
            TextColumn(f"[dim]{self._reference}[/dim]"),
            TextColumn("{task.fields[speed]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task("", total=steps, completed=start, loss="", speed="", left="")

    def advance(self, step: int) -> None:
        self.bar.update(self._task, completed=step, left=self._left(step))

    def _left(self, step: int) -> str:
        return "" if self._seconds_per_step is None else f"{clock(self._seconds_per_step * (self._steps - step))} left"

    def show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show metrics: loss in nats and learning_rate; if known also pair_loss, seconds_per_step, tokens_per_second or
        examples_per_second, and mfu."""
        rates = [f"{n:,.0f} {kind}/s" for kind in ("tokens", "examples") if (n := metrics.get(f"{kind}_per_second"))]
        speed = "".join(rates)
        mfu = f"MFU {metrics['mfu']:.1%}" if "mfu" in metrics else ""
        self._seconds_per_step = metrics.get("seconds_per_step", self._seconds_per_step)
        pairs = f"  pairs {metrics['pair_loss']:.3f}" if "pair_loss" in metrics else ""
        loss, rate = f"loss {metrics['loss']:.3f}{pairs}", metrics["learning_rate"]
        self.bar.update(self._task, loss=loss, speed="  ".join(filter(None, (speed, mfu))), left=self._left(step))
        if not self._console.is_terminal:
            parts = (loss, self._reference, f"lr {rate:.2e}", speed, mfu, self._left(step))
            self.say(f"step {step}/{self._steps}  " + "  ".join(filter(None, parts)))

    def say(self, line: str) -> None:
        """Print one line above the bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


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

    If a run starts at `start` after these steps, print a line. `folder` is on this machine; `published` is where the
    user finds the trace.
    """

    def __init__(self, steps: range, start: int, folder: Path, published: epath.Path, say: Callable[[str], None]):
        self._steps, self._folder, self._published, self._say = steps, folder, published, say
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

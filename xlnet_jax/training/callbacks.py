"""Callbacks that every run has: metrics.jsonl, TensorBoard, progress on the terminal; and trackers of experiments.
docs/trainer.md shows callbacks of your own.
"""

import importlib
import json
import math
import os
import sys
import uuid
from collections.abc import Sequence
from typing import Any

from etils import epath
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from xlnet_jax.errors import InputError, first_line
from xlnet_jax.settings.fields import to_dict
from xlnet_jax.storage.files import Spool, in_bucket, write_durably
from xlnet_jax.storage.reading import with_version
from xlnet_jax.training.loop import Callback, Loop
from xlnet_jax.training.metrics import Record, clock, read_records
from xlnet_jax.training.samples import Sample
from xlnet_jax.training.selection import Numbers
from xlnet_jax.training.workdir import Workdir


def usual_callbacks(workdir: Workdir, wandb: str | None, console: Console) -> list[Callback]:
    """Return the callbacks of every run. wandb: project of Weights & Biases; None = none."""
    own: list[Callback] = [MetricsFile(workdir.metrics), TensorBoard(workdir.tensorboard)]
    return [*own, *([Wandb(wandb)] if wandb else []), ProgressBar(console)]


class Recorder(Callback):
    """Gets the records of a run: of its training, its evaluations and its time."""

    def write(self, record: Record) -> None:
        """Write a record."""
        raise NotImplementedError

    def on_start(self, loop: Loop) -> None:
        """Write the time until the start."""
        self.write(loop.times.record(loop.step))

    def on_step(self, loop: Loop, step: int, numbers: Numbers) -> None:
        """Write numbers and time of a step."""
        self.write({"step": step, "split": "train", **numbers})
        self.write(loop.times.record(step))

    def on_evaluation(self, loop: Loop, step: int, numbers: Numbers) -> None:
        """Write the numbers of an evaluation."""
        self.write({"step": step, "split": "validation", **numbers})

    def on_save(self, loop: Loop) -> None:
        """Write the time until the checkpoint."""
        self.write(loop.times.record(loop.step))

    def on_end(self, loop: Loop, error: BaseException | None) -> None:
        """Write the time until the end."""
        if error is None:
            self.write(loop.times.record(loop.step))


class MetricsFile(Recorder):
    """metrics.jsonl. A line is on disk when `write` returns, and in a bucket after `flush`. A resumed run first deletes
    the records after its checkpoint."""

    def __init__(self, path: epath.Path):
        self._path = path

    def open(self, resume_step: int) -> None:
        """Keep the records up to a step, and append from then on."""
        kept = [r for r in read_records(self._path) if r["step"] <= resume_step]
        self._spool = Spool(self._path.parent)
        lines = self._spool.folder / self._path.name
        first: Record = {"step": 0, "split": "format"}
        write_durably(lines, "".join(map(_line, (with_version("metrics", first), *kept))).encode())
        self._lines = lines.open("a", buffering=1)

    def write(self, record: Record) -> None:
        """Append a line."""
        self._lines.write(_line(record))

    def on_samples(self, loop: Loop, step: int, samples: Sequence[Sample]) -> None:
        """Write the samples of an evaluation."""
        for sample in samples:
            self.write(sample.record(step))

    def flush(self) -> None:
        """Make what was written so far survive a crash of this machine; upload it if the workdir is in a bucket."""
        os.fsync(self._lines.fileno())
        self._spool.publish()

    def on_start(self, loop: Loop) -> None:
        """Open the file."""
        self.open(loop.step)
        super().on_start(loop)

    def on_save(self, loop: Loop) -> None:
        """Put all records on disk."""
        super().on_save(loop)
        self.flush()

    def on_end(self, loop: Loop, error: BaseException | None) -> None:
        """Close the file."""
        super().on_end(loop, error)
        if error is None:
            self.flush()
        self._lines.close()
        self._spool.publish()


def _line(record: Record) -> str:
    """Return a line of JSON. Numbers that are not finite become null."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return json.dumps(plain) + "\n"


def _finite(record: Record) -> dict[str, float]:
    """Return the finite numbers of a record, as train/loss."""
    return {
        f"{record['split']}/{name}": float(value)
        for name, value in record.items()
        if name not in ("step", "split", "at") and math.isfinite(float(value))
    }


def _open_events(folder: str, purge_step: int) -> Any:
    """Return a writer of events. PyTorch is hidden from the import of tensorboardX, which would take three seconds to
    load it, without need."""
    is_hidden = "torch" not in sys.modules
    if is_hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from tensorboardX import SummaryWriter
    finally:
        if is_hidden:
            del sys.modules["torch"]
    return SummaryWriter(folder, purge_step=purge_step)


class TensorBoard(Recorder):
    """Events for TensorBoard."""

    def __init__(self, folder: epath.Path):
        self._folder = folder

    def write(self, record: Record) -> None:
        """Add the numbers of a record."""
        for name, value in _finite(record).items():
            self._events.add_scalar(name, value, record["step"])

    def on_samples(self, loop: Loop, step: int, samples: Sequence[Sample]) -> None:
        """Add the samples of an evaluation."""
        for sample in samples:
            self._events.add_text(f"samples/{sample.kind}", sample.line(), step)

    def on_start(self, loop: Loop) -> None:
        """Begin a file of events. TensorBoard hides those after the checkpoint, as they come again."""
        self._spool = Spool(self._folder.parent)
        self._events = _open_events(str(self._spool.folder / self._folder.name), loop.step + 1)
        super().on_start(loop)

    def on_save(self, loop: Loop) -> None:
        """Write the events to disk."""
        super().on_save(loop)
        self._events.flush()
        self._spool.publish()

    def on_end(self, loop: Loop, error: BaseException | None) -> None:
        """Close the file."""
        super().on_end(loop, error)
        self._events.close()
        self._spool.publish()


class Tracker(Recorder):
    """Records at a tracker of experiments. `begin` returns its run, which has `log` and `finish`."""

    def __init__(self, project: str):
        self.project = project

    def write(self, record: Record) -> None:
        """Send the numbers of a record."""
        self.send(_finite(record), int(record["step"]))

    def send(self, numbers: dict[str, float], step: int) -> None:
        """Send numbers of a step."""
        self._run.log(numbers, step=step)

    def on_start(self, loop: Loop) -> None:
        """Begin or resume the run, and write the time until then."""
        self._run = self.begin(loop)
        super().on_start(loop)

    def begin(self, loop: Loop) -> Any:
        """Begin or resume the run; return it."""
        raise NotImplementedError

    def on_end(self, loop: Loop, error: BaseException | None) -> None:
        """End the run."""
        super().on_end(loop, error)
        self._run.finish()


class Trackio(Tracker):
    """Records at trackio, a tracker of experiments on this machine or on the Hugging Face Hub."""

    def begin(self, loop: Loop) -> Any:
        """Begin or resume the run, which is named after the workdir."""
        trackio = importlib.import_module("trackio")
        name = loop.run.workdir.folder.name
        return trackio.init(project=self.project, name=name, resume="allow", config=to_dict(loop.run.config))


class Wandb(Tracker):
    """Records at Weights & Biases. There is one run for each workdir, whose id is in the workdir."""

    def begin(self, loop: Loop) -> Any:
        """Begin or resume the run. Raises InputError if it does not start."""
        import wandb

        id_file = loop.run.workdir.wandb_id
        if not id_file.exists():
            id_file.write_text(uuid.uuid4().hex)
        folder = {} if in_bucket(id_file) else {"dir": str(id_file.parent)}
        try:
            run = wandb.init(
                project=self.project, id=id_file.read_text(), name=id_file.parent.name, resume="allow",
                config=to_dict(loop.run.config), **folder,
            )  # fmt: skip
        except Exception as error:  # no key, no network, no such project: the types depend on the version
            raise InputError(
                "log.wandb",
                self.project,
                f": Weights & Biases did not start the run ({first_line(error)}): run wandb login, set "
                "WANDB_MODE=offline, or leave `log.wandb` out",
            ) from None
        # A resumed run writes some steps again, and W&B drops records of steps that it already has. So our step is a
        # separate metric, and the x axis of all others.
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return run

    def send(self, numbers: dict[str, float], step: int) -> None:
        """Send numbers of a step, with the step among them."""
        self._run.log(numbers | {"step": step})


class _Bar(Progress):
    """Progress bar that shows the steps done whenever it is drawn."""

    loop: Loop | None = None
    task: TaskID
    seconds_per_step: float | None = None

    def left(self) -> str:
        """Return the time until the end."""
        if self.loop is None or self.seconds_per_step is None:
            return ""
        return f"{clock(self.seconds_per_step * (self.loop.run.config.steps - self.loop.step))} left"

    def get_renderables(self) -> Any:
        """Draw the bar."""
        if self.loop:
            self.update(self.task, completed=self.loop.step, left=self.left())
        return super().get_renderables()


class ProgressBar(Callback):
    """A bar on a terminal, lines elsewhere."""

    def __init__(self, console: Console):
        self._console = console

    def on_start(self, loop: Loop) -> None:
        """Show the bar."""
        self._reference = "  ".join(f"{name} {value:.3f}" for name, value in loop.run.reference.items())
        self.bar = _Bar(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[loss]}"),
            TextColumn(f"[dim]{self._reference}[/dim]"),
            TextColumn("{task.fields[speed]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        steps = loop.run.config.steps
        self.bar.task = self.bar.add_task("", total=steps, completed=loop.step, loss="", speed="", left="")
        self.bar.loop = loop
        self.bar.start()

    def on_step(self, loop: Loop, step: int, numbers: Numbers) -> None:
        """Show loss in nats and learning rate; if known also the loss of pairs, speed and MFU."""
        rates = [f"{n:,.0f} {kind}/s" for kind in ("tokens", "examples") if (n := numbers.get(f"{kind}_per_second"))]
        speed = "".join(rates)
        mfu = f"MFU {numbers['mfu']:.1%}" if "mfu" in numbers else ""
        self.bar.seconds_per_step = numbers.get("seconds_per_step", self.bar.seconds_per_step)
        pairs = f"  pairs {numbers['pair_loss']:.3f}" if "pair_loss" in numbers else ""
        loss = f"loss {numbers['loss']:.3f}{pairs}"
        self.bar.update(self.bar.task, loss=loss, speed="  ".join(filter(None, (speed, mfu))))
        if not self._console.is_terminal:
            rate = f"lr {numbers['learning_rate']:.2e}" if "learning_rate" in numbers else ""
            parts = (loss, self._reference, rate, speed, mfu, self.bar.left())
            self._console.print(f"step {step}/{loop.run.config.steps}  " + "  ".join(filter(None, parts)))

    def on_evaluation(self, loop: Loop, step: int, numbers: Numbers) -> None:
        """Print a line."""
        evaluation = loop.run.evaluation
        assert evaluation
        self._console.print(f"held out at step {step}: {evaluation.describe(numbers)}")

    def on_samples(self, loop: Loop, step: int, samples: Sequence[Sample]) -> None:
        """Print a line for each."""
        for sample in samples:
            self._console.print(f"{sample.kind:11} {sample.line()}")

    def on_end(self, loop: Loop, error: BaseException | None) -> None:
        """Hide the bar."""
        self.bar.stop()

"""Output of a run while it trains, opened and closed together."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from xlnet_jax.settings.rules import traced_steps
from xlnet_jax.training.run.process import Process
from xlnet_jax.training.training_run import TrainingRun
from xlnet_jax.training.watch.goodput import WallTime
from xlnet_jax.training.watch.metrics import MetricsWriter, SilentWriter, read_records
from xlnet_jax.training.watch.profile import Tracer
from xlnet_jax.training.watch.progress import ProgressView
from xlnet_jax.training.watch.wandb import WandbRun


@dataclass(frozen=True)
class Watch:
    """Records on disk, progress on the terminal, the account of wall time, and traces of chosen steps."""

    writer: MetricsWriter
    view: ProgressView
    times: WallTime
    tracer: Tracer


@contextmanager
def watching(run: TrainingRun, start: int, process: Process) -> Iterator[Watch]:
    """Open all four for a run that goes on at step `start`; only process 0 writes and traces."""
    config, workdir, first = run.config, run.workdir, process.hosts.first
    view = ProgressView(start, config.steps, run.reference, process.console)
    with view, _writer(run, start, first) as writer:
        times = WallTime(read_records(workdir.metrics), start, process.began, run.memory.seconds)
        traced = traced_steps(config.profile if first else None)
        yield Watch(writer, view, times, Tracer(traced, start, writer.events_folder, workdir.tensorboard, view.say))


def _writer(run: TrainingRun, start: int, first: bool) -> MetricsWriter:
    if not first:
        return SilentWriter()
    project, workdir = run.config.log.wandb, run.workdir
    wandb_run = WandbRun(project, run.config, workdir.wandb_id) if project else None
    return MetricsWriter(workdir.metrics, workdir.tensorboard, start, wandb_run)

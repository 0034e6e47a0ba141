"""A training run from its newest checkpoint to its end, whatever it learns: what stands around the loop."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh
from rich.console import Console

from xlnet_jax.dims import Batch
from xlnet_jax.objectives.base import DeviceBatch
from xlnet_jax.settings.config import RunConfig
from xlnet_jax.settings.rules import traced_updates
from xlnet_jax.training import sharding
from xlnet_jax.training.loop import Evaluation, Loop, Numbers
from xlnet_jax.training.run.checkpoint import Checkpoints
from xlnet_jax.training.run.hosts import Hosts
from xlnet_jax.training.run.interrupt import stop_after_step
from xlnet_jax.training.run.workdir import Workdir
from xlnet_jax.training.state import StatePlan, TrainState, empty_mems_ZBMD
from xlnet_jax.training.step import TrainStep
from xlnet_jax.training.watch.goodput import WallTime
from xlnet_jax.training.watch.metrics import MetricsWriter, SilentWriter, read_records
from xlnet_jax.training.watch.profile import Tracer
from xlnet_jax.training.watch.progress import ProgressView
from xlnet_jax.training.watch.wandb import WandbRun


def introduction(config: RunConfig, plan: StatePlan, mesh: Mesh, host_rows: int, batch: str) -> str:
    """The sizes of a run, a line each. batch: what the global batch is, as '16 rows of 128 tokens'."""
    m = config.model
    size = sum(a.size for a in jax.tree.leaves(plan.abstract.params))
    shape = " x ".join(f"{axis} {n}" for axis, n in mesh.shape.items())
    mebibytes = sharding.bytes_on_device(plan.abstract) / 2**20
    in_parts = f" in {config.optimizer.accumulate} parts" if config.optimizer.accumulate > 1 else ""
    return (
        f"model       {m.num_layers} layers x {m.d_model}, {size:,} parameters, {m.dtype}\n"
        f"devices     {mesh.size} x {jax.devices()[0].device_kind}: {shape}\n"
        f"batch       {batch}{in_parts}, {host_rows:,} a host, "
        f"{config.data.batch_size // sharding.batch_shards(mesh):,} a device\n"
        f"state       {mebibytes:,.0f} MiB a device: parameters, optimizer, memory"
    )


@dataclass(frozen=True)
class Course:
    """What `follow` needs to know. Functions that take a step take the number of updates done."""

    config: RunConfig
    workdir: Workdir
    plan: StatePlan
    first_state: Callable[[], TrainState]
    train_step: TrainStep
    batches: Callable[[int], Iterable[Batch]]  # those of update `step` and after it
    put: Callable[[Batch], DeviceBatch]
    evaluation: Evaluation | None
    reference: Numbers  # see Loop
    speed: Callable[[float], Numbers]
    point_to: Callable[[int], str]

    def follow(self, checkpoints: Checkpoints, hosts: Hosts, console: Console, began: float) -> tuple[int, int]:
        """Trains until the end or a stop. Returns the updates done, and the exit code: 0, or that of a stop. `began`:
        when the process did, by time.time()."""
        config, workdir = self.config, self.workdir
        with stop_after_step() as interrupt:
            state = checkpoints.restore(self.plan.abstract, lambda: empty_mems_ZBMD(self.plan), console.print)
            state = state or self.first_state()
            start = int(state.step)
            if start:
                console.print(f"resumed     at step {start} of {config.steps}")
            evaluated = self._evaluated(hosts)
            if self.evaluation:
                self.evaluation.recall(evaluated, start)
            with (
                ProgressView(start, config.steps, self.reference, console) as view,
                self._metrics_writer(start, hosts) as writer,
            ):
                traced = traced_updates(config.profile if hosts.first else None)
                loop = Loop(
                    config, self.reference, self.speed, self.point_to, self.train_step, self.put, self.evaluation,
                    checkpoints, writer, view, interrupt, WallTime(read_records(workdir.metrics), start, began),
                    Tracer(traced, start, writer.events_folder, workdir.tensorboard, view.say),
                )  # fmt: skip
                batches = self.batches(start) if start < config.steps else ()
                done, stopped = loop.run(state, start, batches, any(r["step"] == start for r in evaluated))
                checkpoints.wait()
        if stopped:
            console.print(f"stopped by {interrupt} with step {done} saved; the same command goes on from there")
        return done, interrupt.exit_code if stopped else 0

    def _metrics_writer(self, start: int, hosts: Hosts) -> MetricsWriter:
        if not hosts.first:
            return SilentWriter()
        project, workdir = self.config.log.wandb, self.workdir
        wandb_run = WandbRun(project, self.config, workdir.wandb_id) if project else None
        return MetricsWriter(workdir.metrics, workdir.tensorboard, start, wandb_run)

    def _evaluated(self, hosts: Hosts) -> list[dict[str, Any]]:
        """What held-out examples have said, on record. As process 0 says, who keeps it: all must go the same way, and
        others may read the file while it is written anew."""
        records = read_records(self.workdir.metrics) if hosts.first else ()
        found = [r for r in records if r["split"] == "validation"]
        return hosts.gather(f"evaluated in {self.workdir.folder}", found)[0]

"""Train a run from its newest checkpoint to its end. For each step, in this order:

1. Dispatch step k to the devices.
2. Read the metrics of step k - 1, which the devices have finished meanwhile. The host waits for step k only if 3, 4 or
   5 follow, and for the first step of a start, which compiles.
3. Evaluate, if due.
4. Save, if due. All records of the step are on disk before its checkpoint, so a run that resumes there has them. A
   skipped step is not saved, because its checkpoint would replace a good one: the run saves after the next step that is
   not skipped. The last step of a run, or the one at which it stops, is always saved.
5. Stop, if asked. A stop cancels an evaluation; the run repeats it when it resumes, before its next step.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from xlnet_jax.dims import Batch
from xlnet_jax.errors import InputError, is_out_of_memory
from xlnet_jax.objectives.language_model import DeviceBatch
from xlnet_jax.settings.config import RunConfig
from xlnet_jax.settings.rules import traced_steps
from xlnet_jax.training import sharding
from xlnet_jax.training.checkpoint import Checkpoints
from xlnet_jax.training.fit import Memory
from xlnet_jax.training.hosts import Process
from xlnet_jax.training.metrics import MetricsWriter, ProgressView, Record, Tracer, WallTime, read_records, start_wandb
from xlnet_jax.training.step import Metrics, Program, TrainState
from xlnet_jax.training.stop import Interrupt, Wish, stop_after_step
from xlnet_jax.training.workdir import Workdir

Numbers = Mapping[str, float]


class Batches(Protocol):
    """Training batches, addressed by step."""

    def iterate(self, start: int, stop: int, rows: np.ndarray) -> Iterator[Batch]:
        """Yield `rows` of the batches start, …, stop - 1."""
        ...


class Evaluation(Protocol):
    """Evaluation on held-out examples, and what follows for the run."""

    @property
    def every_steps(self) -> int:
        """Number of steps between evaluations."""
        ...

    def recall(self, records: Iterable[dict[str, Any]], step: int) -> None:
        """Read the recorded evaluations of a run that resumes at `step`."""
        ...

    def run(self, state: TrainState, step: int, interrupt: Interrupt) -> Numbers | None:
        """Return the metrics of the state after `step` steps; None if a stop canceled the evaluation."""
        ...

    def describe(self, numbers: Numbers) -> str:
        """Return the metrics as one line."""
        ...

    @property
    def is_worth_saving(self) -> bool:
        """True if the last evaluated state must get a checkpoint."""
        ...

    @property
    def is_enough(self) -> bool:
        """True if the run should end now, before its last step."""
        ...


@dataclass(frozen=True)
class Run:
    """Settings, program, data and first weights of one run."""

    config: RunConfig
    workdir: Workdir
    program: Program[Any]
    batches: Batches
    evaluation: Evaluation | None
    params: dict[str, Any]
    """nested host arrays that the run starts from; missing parameters are initialized at random"""
    origin: str
    """where these come from, for the user; "" = all are initialized at random"""
    memory: Memory
    """what a step needs, and what the devices have"""
    rates: Callable[[float], Numbers]
    """returns the speed of a step that took these seconds, including seconds_per_step"""
    locate: Callable[[int], str]
    """returns text on how to inspect the batch of this number"""
    reference: Numbers = field(default_factory=dict)
    """numbers to show and record with every loss"""

    def describe(self, batch: str) -> str:
        """Return the sizes of the run, one per line. batch: the global batch in words, as '16 rows of 128 tokens'."""
        config, program = self.config, self.program
        model, mesh, abstract = config.model, program.mesh, program.plan
        size = sum(a.size for a in jax.tree.leaves(abstract.params))
        shape = " x ".join(f"{axis} {n}" for axis, n in mesh.shape.items() if n > 1 or axis != "context")
        in_parts = f" in {config.optimizer.accumulate} parts" if config.optimizer.accumulate > 1 else ""
        return (
            f"model       {model.num_layers} layers x {model.d_model}, {size:,} parameters, {model.dtype}\n"
            f"devices     {mesh.size} x {jax.devices()[0].device_kind}: {shape}\n"
            f"batch       {batch}{in_parts}, {len(program.rows):,} a host, "
            f"{config.data.batch_size // sharding.batch_shards(mesh):,} a device\n"
            f"state       {sharding.bytes_on_device(abstract) / 2**20:,.0f} MiB a device: parameters, optimizer, memory"
        )


def train(run: Run, checkpoints: Checkpoints, process: Process) -> tuple[int, int]:
    """Train until the end or a stop. Return the number of steps done, and the exit code: 0, or that of a stop.

    Raises InputError if a device or this machine runs out of memory.
    """
    try:
        return _train(run, checkpoints, process)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise run.memory.refusal(run.workdir, error) from None


def _train(run: Run, checkpoints: Checkpoints, process: Process) -> tuple[int, int]:
    say = process.console.print
    with stop_after_step(process.is_command) as interrupt:
        state = checkpoints.restore(run.program.plan, say)
        if state is None:
            if run.origin:
                say(f"init        {run.origin}")
            state = run.program.init_state(run.params)
        start = int(state.step)
        if start:
            say(f"resumed     at step {start} of {run.config.steps}")
        # Only process 0 reads metrics.jsonl: it rewrites the file meanwhile, and all must come to the same decision.
        records = list(read_records(run.workdir.metrics)) if process.first else []
        evaluations = process.gather("evaluations", [r for r in records if r["split"] == "validation"])[0]
        if run.evaluation:
            run.evaluation.recall(evaluations, start)
        config, workdir = run.config, run.workdir
        view = ProgressView(start, config.steps, run.reference, process.console)
        writer = None
        if process.first:
            wandb_run = start_wandb(config.log.wandb, config, workdir.wandb_id) if config.log.wandb else None
            writer = MetricsWriter(workdir.metrics, workdir.tensorboard, start, wandb_run)
        with view.bar, writer or nullcontext():
            times = WallTime(records, start, process.began, run.memory.seconds)
            traced = traced_steps(config.trace_steps if writer else None)
            tracer = Tracer(traced, start, writer.events_folder if writer else Path(), workdir.tensorboard, view.say)
            loop = Loop(run, checkpoints, interrupt, writer, view, times, tracer)
            done, stopped = loop.train(state, start, any(r["step"] == start for r in evaluations))
            checkpoints.wait()
    if stopped:
        say(f"stopped by {interrupt} with step {done} saved; the same command goes on from there")
    return done, interrupt.exit_code if stopped else 0


Reading = tuple[dict[str, float], float]
"""Metrics of a step, on the host, and when the devices had computed them, by time.perf_counter()"""


def _read(metrics: Metrics) -> Reading:
    """Wait for the devices. This is called in its own thread."""
    return {name: float(value) for name, value in metrics.items()}, time.perf_counter()


@dataclass(frozen=True)
class Loop:
    """One start of a run: from the state that it resumes to its end or a stop."""

    run: Run
    checkpoints: Checkpoints
    interrupt: Interrupt
    writer: MetricsWriter | None
    """None in all processes except the first"""
    view: ProgressView
    times: WallTime
    tracer: Tracer

    def train(self, state: TrainState, start: int, evaluated: bool) -> tuple[int, bool]:
        """Train from step `start` on. evaluated: True if the evaluation due at `start` is already recorded.

        Return the number of steps done, and True if a stop left work to do.
        """
        run = self.run
        if start and self._evaluation_due(start) and not evaluated and not self._evaluate(state, start):
            return start, True
        if start == run.config.steps or (run.evaluation and run.evaluation.is_enough):
            return start, False
        batches = run.batches.iterate(start, run.config.steps, run.program.rows)
        self._write(self.times.record(start))
        with self.tracer, ThreadPoolExecutor(1) as reader:
            done, stopped = self._train(state, start, batches, reader)
        self._write(self.times.record(done))
        self.view.say(self.times.summary())
        return done, stopped

    def _train(
        self, state: TrainState, done: int, batches: Iterator[Batch], reader: ThreadPoolExecutor
    ) -> tuple[int, bool]:
        run, start = self.run, done
        pending: Future[Reading] | None = None
        owed = False  # is a save that was due waiting for a step that is not skipped?
        while done < run.config.steps:
            self.checkpoints.check()
            batch = self._next(batches, pending)
            with self.times.lost_to("trace"):
                self.tracer.at(done, state)
            dispatched = time.perf_counter()
            with jax.profiler.StepTraceAnnotation("train", step_num=done):
                state, metrics = run.program.train_step(state, batch)
            done += 1
            before, pending = pending, reader.submit(_read, metrics)
            if before:
                self._account(done - 1, before.result()[0])
            if done == start + 1:
                pending.result()
                self.times.lose("compilation", time.perf_counter() - dispatched)
                self.times.mark(done)
            self.view.advance(done)
            last = done == run.config.steps
            wish = self.interrupt.poll(save=self.checkpoints.overdue)
            stop = wish is Wish.STOP
            evaluate = self._evaluation_due(done)
            due = owed or self.checkpoints.due(done) or wish is Wish.SAVE
            if evaluate or due or stop or last:
                numbers, pending = pending.result()[0], None
                self._account(done, numbers)
                if run.evaluation and evaluate and not stop:
                    stop = not self._evaluate(state, done)
                    due = due or run.evaluation.is_worth_saving
                    last = last or run.evaluation.is_enough
                owed = due and numbers["skipped_in_a_row"] > 0
                if (due and not owed) or stop or last:
                    self._write(self.times.record(done))
                    if self.writer:
                        self.writer.flush()
                    with self.times.lost_to("checkpoints"):
                        self.checkpoints.save(state, done)
            if stop or last:
                return done, stop
        return done, False

    def _evaluation_due(self, step: int) -> bool:
        evaluation = self.run.evaluation
        return evaluation is not None and (step % evaluation.every_steps == 0 or step == self.run.config.steps)

    def _next(self, batches: Iterator[Batch], pending: Future[Reading] | None) -> DeviceBatch:
        """Put the next batch on the devices. This time is lost only once the devices have finished their step."""
        asked = time.perf_counter()
        batch = self.run.program.put(next(batches))
        if pending is None:
            self.times.lose("input", time.perf_counter() - asked)
        elif pending.done():
            self.times.lose("input", time.perf_counter() - max(asked, pending.result()[1]))
        return batch

    def _account(self, step: int, numbers: dict[str, float]) -> None:
        """Record a step, if due, and print a line if it was skipped."""
        if numbers["skipped_in_a_row"]:
            self.view.say(
                f"step {step} was skipped: loss {numbers['loss']:.4g}, gradient norm {numbers['gradient_norm']:.4g} "
                f"(batch {step - 1}); {numbers['skipped_in_a_row']:.0f} in a row, {numbers['skipped']:.0f} in all"
            )
            self._demand_progress(step, numbers)
        if step % self.run.config.log.every_steps == 0 or step in (1, self.run.config.steps):  # curves start at step 1
            self._log(step, numbers)

    def _log(self, step: int, numbers: dict[str, float]) -> None:
        seconds = self.times.seconds_per_step(step)
        if seconds:
            numbers = {**numbers, **self.run.rates(seconds)}
        self._write({"step": step, "split": "train", **numbers, **self.run.reference})
        self._write(self.times.record(step))
        self.view.show(step, numbers)

    def _write(self, record: Record) -> None:
        if self.writer:
            self.writer.write(record)

    def _demand_progress(self, step: int, numbers: dict[str, float]) -> None:
        """Raise InputError after optimizer.max_skipped skipped steps in a row: the training has diverged."""
        skipped = int(numbers["skipped_in_a_row"])
        if skipped < self.run.config.optimizer.max_skipped:
            return
        good = self.checkpoints.latest_up_to(step - skipped)
        known = "There is no good checkpoint yet" if good is None else f"The last good checkpoint is {good}"
        raise InputError(
            f"`optimizer.max_skipped`: the last {skipped} steps were skipped, up to step {step} with a loss of "
            f"{numbers['loss']:.4g} and a gradient norm of {numbers['gradient_norm']:.4g}. Lower "
            f"`optimizer.learning_rate` or `optimizer.clip_norm` in another `workdir`, which can start from a "
            f"checkpoint with `init`; or look at its batch {self.run.locate(step - 1)}. {known}"
        )

    def _evaluate(self, state: TrainState, step: int) -> bool:
        """Record the metrics of held-out examples after `step` steps. Return False if a stop canceled it."""
        evaluation = self.run.evaluation
        assert evaluation
        with self.times.lost_to("evaluation"):
            numbers = evaluation.run(state, step, self.interrupt)
        if numbers is None:
            return False
        self._write({"step": step, "split": "validation", **numbers, **self.run.reference})
        self.view.say(f"held out at step {step}: {evaluation.describe(numbers)}")
        return True

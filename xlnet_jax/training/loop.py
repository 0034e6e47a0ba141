"""The train loop. The order of a step, and why:

1. dispatch update k; 2. account for update k - 1, which the device has finished meanwhile: the host never waits for the
device; 3. evaluate, where due; 4. save, where due, after everything that belongs to the step is on record, so that a
run resumed there has it all, and only behind an update that was made: what was good is not pushed out; 5. stop, if
asked. A stop does not wait for an evaluation: what resumes there makes up for it first.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from xlnet_jax.dims import Batch
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.base import DeviceBatch
from xlnet_jax.settings.config import RunConfig
from xlnet_jax.training.run.checkpoint import Checkpoints
from xlnet_jax.training.run.interrupt import Interrupt, Wish
from xlnet_jax.training.state import TrainState
from xlnet_jax.training.step import Metrics, TrainStep
from xlnet_jax.training.watch.goodput import WallTime
from xlnet_jax.training.watch.metrics import MetricsWriter, Record
from xlnet_jax.training.watch.profile import Tracer
from xlnet_jax.training.watch.progress import ProgressView

Numbers = Mapping[str, float]


class Evaluation(Protocol):
    """What held-out examples say, and what follows from that for the run."""

    @property
    def every_steps(self) -> int:
        """Updates between evaluations."""
        ...

    def recall(self, records: Iterable[dict[str, Any]], step: int) -> None:
        """Takes up what a run that goes on at `step` has on record."""
        ...

    def run(self, state: TrainState, step: int, interrupt: Interrupt) -> Numbers | None:
        """The numbers for the record, of the state after `step` updates; None where a stop cut it short."""
        ...

    def describe(self, numbers: Numbers) -> str:
        """The same for a reader, in a line."""
        ...

    @property
    def is_worth_saving(self) -> bool:
        """Is the state that was evaluated last to be kept?"""
        ...

    @property
    def is_enough(self) -> bool:
        """Does the run end here, before its last update?"""
        ...


@dataclass(frozen=True)
class Reading:
    """The metrics of an update, on the host."""

    step: int
    numbers: dict[str, float]
    finished: float  # when the devices were done with it, by time.perf_counter()

    @classmethod
    def of(cls, step: int, metrics: Metrics) -> "Reading":
        """Waits for the devices: called in a thread of its own."""
        return cls(step, {name: float(value) for name, value in metrics.items()}, time.perf_counter())


@dataclass(frozen=True)
class Loop:
    """What a step needs. Made once, in course.py."""

    config: RunConfig
    reference: Numbers  # stands beside the loss in every record
    speed: Callable[[float], Numbers]  # of an update in so many seconds
    point_to: Callable[[int], str]  # says how to look at a batch
    train_step: TrainStep
    put: Callable[[Batch], DeviceBatch]
    evaluation: Evaluation | None
    checkpoints: Checkpoints
    writer: MetricsWriter
    view: ProgressView
    interrupt: Interrupt
    times: WallTime
    tracer: Tracer

    def run(self, state: TrainState, start: int, batches: Iterable[Batch], evaluated: bool) -> tuple[int, bool]:
        """Trains from update `start` on, with the batches of start, start + 1, … evaluated: what held-out
        examples say at `start` is on record. Returns the number of updates done, and whether a stop left something to
        do."""
        if start and self._evaluation_due(start) and not evaluated and not self.evaluate(state, start):
            return start, True
        if start == self.config.steps or (self.evaluation and self.evaluation.is_enough):
            return start, False
        self.writer.write(self.times.record(start))
        with self.tracer, ThreadPoolExecutor(1) as reader:
            done, stopped = self._run(state, start, iter(batches), reader)
        self.writer.write(self.times.record(done))
        self.view.say(self.times.summary())
        return done, stopped

    def _run(
        self, state: TrainState, done: int, batches: Iterator[Batch], reader: ThreadPoolExecutor
    ) -> tuple[int, bool]:
        config, start = self.config, done
        pending: Future[Reading] | None = None
        owed = False
        while done < config.steps:
            self.checkpoints.check()
            batch = self._next(batches, pending)
            with self.times.lost_to("profile"):
                self.tracer.at(done, state)
            dispatched = time.perf_counter()
            with jax.profiler.StepTraceAnnotation("train", step_num=done):
                state, metrics = self.train_step(state, batch)
            done += 1
            before, pending = pending, reader.submit(Reading.of, done, metrics)
            if before:
                self._account(before.result())
            if done == start + 1:
                pending.result()
                self.times.lose("compilation", time.perf_counter() - dispatched)
                self.times.mark(done)
            self.view.advance(done)
            last = done == config.steps
            wish = self.interrupt.poll(save=self.checkpoints.overdue)
            stop = wish is Wish.STOP
            evaluate = self._evaluation_due(done)
            due = owed or self.checkpoints.due(done) or wish is Wish.SAVE
            if evaluate or due or stop or last:
                reading, pending = pending.result(), None
                self._account(reading)
                if self.evaluation and evaluate and not stop:
                    stop = not self.evaluate(state, done)
                    due = due or self.evaluation.is_worth_saving
                    last = last or self.evaluation.is_enough
                owed = due and reading.numbers["skipped_in_a_row"] > 0
                if (due and not owed) or stop or last:
                    self.writer.write(self.times.record(done))
                    self.writer.flush()
                    with self.times.lost_to("checkpoints"):
                        self.checkpoints.save(state, done)
            if stop or last:
                return done, stop
        return done, False

    def _evaluation_due(self, step: int) -> bool:
        return self.evaluation is not None and (step % self.evaluation.every_steps == 0 or step == self.config.steps)

    def _next(self, batches: Iterator[Batch], pending: Future[Reading] | None) -> DeviceBatch:
        """The next batch, on the devices. Waiting for it is lost time once they are done with the update before."""
        asked = time.perf_counter()
        batch = self.put(next(batches))
        if pending is None:
            self.times.lose("input", time.perf_counter() - asked)
        elif pending.done():
            self.times.lose("input", time.perf_counter() - max(asked, pending.result().finished))
        return batch

    def _account(self, reading: Reading) -> None:
        """What an update leaves behind: a row on record, where due, and a line if it was skipped."""
        step, numbers = reading.step, reading.numbers
        if numbers["skipped_in_a_row"]:
            self.view.say(
                f"update {step} was skipped: loss {numbers['loss']:.4g}, gradient norm {numbers['gradient_norm']:.4g} "
                f"(batch {step - 1}); {numbers['skipped_in_a_row']:.0f} in a row, {numbers['skipped']:.0f} in all"
            )
            self._demand_progress(reading)
        if step % self.config.log.every_steps == 0 or step == self.config.steps:
            self._log(step, numbers)

    def _log(self, step: int, numbers: dict[str, float]) -> None:
        seconds = self.times.seconds_per_step(step)
        if seconds:
            numbers = {**numbers, **self.speed(seconds)}
        record: Record = {"step": step, "split": "train", **numbers, **self.reference}
        self.writer.write(record)
        self.writer.write(self.times.record(step))
        self.view.show(step, numbers)

    def _demand_progress(self, reading: Reading) -> None:
        """Nothing can be learned from there on."""
        skipped, step, config = int(reading.numbers["skipped_in_a_row"]), reading.step, self.config
        if skipped < config.optimizer.max_skipped:
            return
        good = self.checkpoints.latest_up_to(step - skipped)
        raise InputError(
            f"optimizer.max-skipped: the last {skipped} updates were skipped, up to update {step} with a loss of "
            f"{reading.numbers['loss']:.4g} and a gradient norm of {reading.numbers['gradient_norm']:.4g}. Lower "
            f"optimizer.learning-rate or optimizer.clip-norm, in another --workdir, where --init brings a checkpoint "
            f"along; or look at its batch {self.point_to(step - 1)}. "
            + (
                "There is no good checkpoint yet"
                if good is None
                else f"The last good one is {self.checkpoints.path(good)}"
            )
        )

    def evaluate(self, state: TrainState, step: int) -> bool:
        """Puts on record what held-out examples say after `step` updates. False where a stop cut it short."""
        assert self.evaluation
        with self.times.lost_to("evaluation"):
            numbers = self.evaluation.run(state, step, self.interrupt)
        if numbers is None:
            return False
        self.writer.write({"step": step, "split": "validation", **numbers, **self.reference})
        self.view.say(f"held out at step {step}: {self.evaluation.describe(numbers)}")
        return True

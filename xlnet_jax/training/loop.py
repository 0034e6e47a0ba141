"""Train a run from its newest checkpoint to its end. For each step, in this order:

1. Dispatch step k to the devices.
2. Read the metrics of step k - 1, which the devices have finished meanwhile. The host waits for step k only if 3, 4 or
   5 follow, and for the first step of a start, which compiles.
3. Evaluate, if due.
4. Save, if due. All records of the step are on disk before its checkpoint, so a run that resumes there has them. A
   skipped step is not saved, because its checkpoint would replace a good one: the run saves after the next step that is
   not skipped. The last step of a run, or the one at which it stops, is always saved.
5. Stop, if asked. A stop cancels an evaluation; the run repeats it when it resumes, before its next step.

Everything that is shown or recorded is done by callbacks.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
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
from xlnet_jax.training.metrics import Tracer, WallTime, read_records
from xlnet_jax.training.samples import Draw, Sample, nothing
from xlnet_jax.training.selection import Evaluation, Numbers, Result
from xlnet_jax.training.step import Metrics, Program, TrainState
from xlnet_jax.training.stop import CALLBACK, PATIENCE, Interrupt, LoopRequest, is_interrupt, stop_after_step
from xlnet_jax.training.workdir import Workdir


class Batches(Protocol):
    """Training batches, addressed by step."""

    def iterate(self, start: int, stop: int, rows: np.ndarray) -> Iterator[Batch]:
        """Yield `rows` of the batches start, …, stop - 1."""
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
    callbacks: Sequence["Callback"] = ()
    """process 0 calls them"""
    draw: Draw = nothing
    """returns samples of text by these parameters; process 0 calls it at each evaluation"""
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
            f"batch       {batch}{in_parts}, {len(program.rows):,} per host, "
            f"{config.data.batch_size // sharding.batch_shards(mesh):,} per device\n"
            f"state       {sharding.bytes_on_device(abstract) / 2**20:,.0f} MiB per device: "
            "parameters, optimizer, memory"
        )


class Callback:
    """What happens besides training while a run trains. Subclasses override what they need.

    Only process 0 of a run calls them, so a callback must not compute with arrays that several hosts hold. An exception
    ends the run.
    """

    def on_start(self, loop: "Loop") -> None:
        """Called before the first step of each start of the run."""

    def on_step(self, loop: "Loop", step: int, numbers: Numbers) -> None:
        """Called with the numbers of each recorded step (log.every_steps). The next step may run already: then
        loop.state is the state after it."""

    def on_evaluation(self, loop: "Loop", step: int, numbers: Numbers) -> None:
        """Called with the numbers of each evaluation; loop.state is the state that was evaluated."""

    def on_samples(self, loop: "Loop", step: int, samples: Sequence[Sample]) -> None:
        """Called after `on_evaluation` with what the network has drawn from held-out text (eval.samples)."""

    def on_save(self, loop: "Loop") -> None:
        """Called before a checkpoint is written: what was recorded must be on disk when this returns."""

    def on_end(self, loop: "Loop", error: BaseException | None) -> None:
        """Called once at the end of each start, also after an error, which is passed."""


def train(run: Run, checkpoints: Checkpoints, process: Process) -> "Loop":
    """Train until the end or a stop. Return the loop, with the steps done and what stopped it.

    Raises InputError if a device or this machine runs out of memory.
    """
    try:
        with stop_after_step(process.is_command) as interrupt:
            loop = _resume(run, checkpoints, process, interrupt)
            loop.finish()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise run.memory.refusal(run.workdir, error) from None
    if loop.is_interrupted:
        process.console.print(
            f"stopped by {loop.stopped} with step {loop.step} saved; the same command continues from there"
        )
    return loop


def _resume(run: Run, checkpoints: Checkpoints, process: Process, interrupt: Interrupt) -> "Loop":
    """Return the loop at the newest checkpoint, or before the first step."""
    say = process.console.print
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
    times = WallTime(records, start, process.began, run.memory.seconds)
    traced = traced_steps(run.config.trace_steps if process.first else None)
    tracer = Tracer(traced, start, run.workdir.tensorboard, say)
    is_evaluated = any(r["step"] == start for r in evaluations)
    return Loop(run, checkpoints, process, interrupt, times, tracer, state, start, is_evaluated)


Reading = tuple[dict[str, float], float]
"""Metrics of a step, on the host, and when the devices had computed them, by time.perf_counter()"""


def _read(metrics: Metrics) -> Reading:
    """Wait for the devices. This is called in its own thread."""
    return {name: float(value) for name, value in metrics.items()}, time.perf_counter()


@dataclass
class Loop:
    """One start of a run: from the state that it resumes to its end or a stop."""

    run: Run
    checkpoints: Checkpoints
    process: Process
    interrupt: Interrupt
    times: WallTime
    tracer: Tracer
    state: TrainState
    step: int
    """number of steps done"""
    is_evaluated: bool
    """True if the evaluation due at the step that it resumes is already recorded"""
    stopped: str = ""
    """what ended it before its last step: `Result.stopped`"""

    def stop(self) -> None:
        """Ask to end the run, as if this step were the last one. For callbacks."""
        self.interrupt.ask(LoopRequest.END)

    def save(self) -> None:
        """Ask for a checkpoint. For callbacks."""
        self.interrupt.ask(LoopRequest.SAVE)

    @property
    def is_interrupted(self) -> bool:
        """True if a signal or the platform stopped the run, so that work is left."""
        return is_interrupt(self.stopped)

    def result(self) -> Result:
        """Return the result so far. A step that was skipped leaves no checkpoint, so it is not the best."""
        evaluation, folder = self.run.evaluation, self.run.workdir.checkpoints  # as the user spelled it
        best = evaluation.best_step if evaluation else None
        best = best if best is not None and self.checkpoints.has(best) else None
        step, metric, metrics = self.step if best is None else best, "", dict[str, float]()
        if evaluation and best is not None:
            metric, metrics = evaluation.metric, dict(dict(evaluation.history)[best])
        return Result(
            str(self.run.workdir.folder), str(folder / str(step)), step, metric, metrics,
            last_checkpoint=str(folder / str(self.step)), steps=self.step, stopped=self.stopped,
        )  # fmt: skip

    @property
    def callbacks(self) -> Sequence[Callback]:
        """The callbacks of this process."""
        return self.run.callbacks if self.process.first else ()

    def finish(self) -> None:
        """Do the steps that are left."""
        evaluation, is_due = self.run.evaluation, bool(self.step) and self._evaluation_due() and not self.is_evaluated
        if evaluation and evaluation.is_enough:
            self.stopped = "" if self.step == self.run.config.steps else PATIENCE
        if not is_due and (self.stopped or self.step == self.run.config.steps):
            return
        with ExitStack() as ends:
            for callback in self.callbacks:
                callback.on_start(self)
                ends.push(lambda _, error, __, callback=callback: callback.on_end(self, error))
            if is_due:
                self._evaluate()
            self._end(self.interrupt.take(), is_at_start=True)
            if self.stopped:
                self._save()
            elif self.step < self.run.config.steps:
                with self.tracer, ThreadPoolExecutor(1) as reader:
                    self._take_steps(reader)
            self.process.console.print(self.times.summary())
            self.checkpoints.wait()

    def _take_steps(self, reader: ThreadPoolExecutor) -> None:
        run, start = self.run, self.step
        batches = run.batches.iterate(start, run.config.steps, run.program.rows)
        pending: Future[Reading] | None = None
        owed = False  # is a save that was due waiting for a step that is not skipped?
        while not self.stopped and self.step < run.config.steps:
            self.checkpoints.check()
            batch = self._next(batches, pending)
            with self.times.lost_to("trace"):
                self.tracer.at(self.step, self.state)
            dispatched = time.perf_counter()
            with jax.profiler.StepTraceAnnotation("train", step_num=self.step):
                self.state, metrics = run.program.train_step(self.state, batch)
            self.step += 1
            before, pending = pending, reader.submit(_read, metrics)
            if before:
                self._account(self.step - 1, before.result()[0])
            if self.step == start + 1:
                pending.result()
                self.times.lose("compilation", time.perf_counter() - dispatched)
                self.times.mark(self.step)
            if self.checkpoints.overdue:
                self.interrupt.ask(LoopRequest.SAVE)
            request = self.interrupt.take()
            evaluate = self._evaluation_due()
            due = owed or self.checkpoints.due(self.step) or request is LoopRequest.SAVE
            if evaluate or due or request >= LoopRequest.END or self.step == run.config.steps:
                numbers, pending = pending.result()[0], None
                self._account(self.step, numbers)
                if evaluate and request is not LoopRequest.STOP:
                    self._evaluate()
                    due = due or (run.evaluation is not None and run.evaluation.is_best)
                request = max(request, self.interrupt.take())
                due = due or request is LoopRequest.SAVE
                owed = due and numbers["skipped_in_a_row"] > 0
                self._end(request)
                if (due and not owed) or self.stopped or self.step == run.config.steps:
                    self._save()

    def _end(self, request: LoopRequest, is_at_start: bool = False) -> None:
        """Note what ends the run at this step, if anything does."""
        evaluation = self.run.evaluation
        if request is LoopRequest.STOP:
            self.stopped = str(self.interrupt)
        elif self.step < self.run.config.steps:
            is_enough = evaluation is not None and evaluation.is_enough and (self._evaluation_due() or is_at_start)
            self.stopped = PATIENCE if is_enough else CALLBACK if request is LoopRequest.END else ""

    def _save(self) -> None:
        for callback in self.callbacks:
            callback.on_save(self)
        with self.times.lost_to("checkpoints"):
            self.checkpoints.save(self.state, self.step)

    def _evaluation_due(self) -> bool:
        evaluation = self.run.evaluation
        return evaluation is not None and (
            self.step % evaluation.every_steps == 0 or self.step == self.run.config.steps
        )

    def _evaluate(self) -> None:
        """Evaluate the state. A stop cancels it: then nothing is recorded."""
        evaluation = self.run.evaluation
        assert evaluation
        with self.times.lost_to("evaluation"):
            numbers = evaluation.measure(self.state.params, lambda: self.interrupt.poll() is LoopRequest.STOP)
            is_heard = numbers is not None and self.process.first
            samples = self.run.draw(self.state.params) if is_heard else ()
        if numbers is not None:
            numbers = {**numbers, **self.run.reference}
            evaluation.add(self.step, numbers)
            for callback in self.callbacks:
                callback.on_evaluation(self, self.step, numbers)
            for callback in self.callbacks if samples else ():
                callback.on_samples(self, self.step, samples)

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
            self.process.console.print(
                f"step {step} was skipped: loss {numbers['loss']:.4g}, gradient norm {numbers['gradient_norm']:.4g} "
                f"(batch {step - 1}); {numbers['skipped_in_a_row']:.0f} in a row, {numbers['skipped']:.0f} in all"
            )
            self._require_progress(step, numbers)
        if step % self.run.config.log.every_steps == 0 or step in (1, self.run.config.steps):  # curves start at step 1
            if seconds := self.times.seconds_per_step(step):
                numbers = {**numbers, **self.run.rates(seconds)}
            for callback in self.callbacks:
                callback.on_step(self, step, {**numbers, **self.run.reference})

    def _require_progress(self, step: int, numbers: Numbers) -> None:
        """Raise InputError after optimizer.max_skipped skipped steps in a row: the training has diverged."""
        skipped = int(numbers["skipped_in_a_row"])
        if skipped < self.run.config.optimizer.max_skipped:
            return
        good = self.checkpoints.latest_up_to(step - skipped)
        known = "There is no good checkpoint yet" if good is None else f"The last good checkpoint is {good}"
        raise InputError(
            "optimizer.max_skipped",
            "",
            f": the last {skipped} steps were skipped, up to step {step} with a loss of {numbers['loss']:.4g} and a "
            f"gradient norm of {numbers['gradient_norm']:.4g}. Lower `optimizer.learning_rate` or "
            "`optimizer.clip_norm` in another `workdir`, which can start from a checkpoint with `init`; or look at "
            f"its batch {self.run.locate(step - 1)}. {known}",
        )

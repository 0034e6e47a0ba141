"""The train loop. The order of a step, and why:

1. dispatch update k; 2. read the metrics of update k - 1, which the device has finished meanwhile: the host never waits
for the device; 3. evaluate, where due; 4. save, where due, after everything that belongs to the step is on record, so
that a run resumed there has it all; 5. stop, if asked. A stop does not wait for an evaluation: what resumes there makes
up for it first.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from xlnet_jax.config import Config, InputError
from xlnet_jax.dims import Batch
from xlnet_jax.training.checkpoint import Checkpoints
from xlnet_jax.training.interrupt import Interrupt, Wish
from xlnet_jax.training.metrics import MetricsWriter, Record
from xlnet_jax.training.progress import ProgressView
from xlnet_jax.training.state import TrainState
from xlnet_jax.training.step import DeviceBatch, EvalStep, Metrics, TrainStep


@dataclass(frozen=True)
class Evaluation:
    """Held-out loss: the same batches every time."""

    step: EvalStep
    batches: Sequence[Batch]
    empty_mems: Callable[[], jax.Array]
    put: Callable[[Batch], DeviceBatch]

    def loss(self, state: TrainState, interrupt: Interrupt) -> float | None:
        """Nats per target over all batches, memory carried from one to the next; None where a stop cut it short."""
        mems_ZBMD = self.empty_mems()
        loss_sum = weight_sum = jnp.zeros(())
        for batch in self.batches:
            if interrupt.poll() is Wish.STOP:
                return None
            jax.block_until_ready(loss_sum)  # one batch ahead of the device and no more: all of it would have to end
            scored = self.step(state.params, self.put(batch), mems_ZBMD)
            mems_ZBMD = scored.new_mems_ZBMD
            loss_sum, weight_sum = loss_sum + scored.loss_sum, weight_sum + scored.weight_sum
        return float(loss_sum / weight_sum)


@dataclass(frozen=True)
class Loop:
    """What a step needs. Made once, in pretrain.py."""

    config: Config
    unigram_nats: float
    steps_per_block: int
    train_step: TrainStep
    put: Callable[[Batch], DeviceBatch]
    evaluation: Evaluation
    checkpoints: Checkpoints
    writer: MetricsWriter
    view: ProgressView
    interrupt: Interrupt

    def run(self, state: TrainState, start: int, batches: Iterable[Batch], evaluated: bool) -> tuple[int, bool]:
        """Trains from update `start` on, with the batches of start, start + 1, … evaluated: the held-out loss of
        `start` is on record. Returns the number of updates done, and whether a stop left something to do."""
        config, pending, clock = self.config, None, _Clock(start)
        done = start
        if start and self._evaluation_due(start) and not evaluated and not self.evaluate(state, start):
            return done, True
        for batch in batches:
            self.checkpoints.check()
            state, metrics = self.train_step(state, self.put(batch))
            if pending:
                self._log(*pending, clock)
            done += 1
            if done == start + 1:
                jax.block_until_ready(metrics)  # the first update compiles: its time is no step's time
                clock.skip_to_now(done)
            last = done == config.steps
            wish = self.interrupt.poll(save=self.checkpoints.overdue)
            stop = wish is Wish.STOP
            pending = (done, metrics) if done % config.log.every_steps == 0 or last else None
            self.view.advance(done)
            evaluate = self._evaluation_due(done)
            if evaluate or self.checkpoints.due(done) or wish or last:
                if pending:
                    self._log(*pending, clock)
                pending = None
                if evaluate and not stop:
                    stop = not self.evaluate(state, done)
                if self.checkpoints.due(done) or wish or stop or last:
                    self._demand_finite(done, float(metrics["loss"]))
                    self.writer.flush()
                    self.checkpoints.save(state, done)
                clock.skip_to_now(done)
            if stop:
                return done, True
        return done, False

    def _evaluation_due(self, step: int) -> bool:
        return step % self.config.eval.every_steps == 0 or step == self.config.steps

    def _log(self, step: int, metrics: Metrics, clock: "_Clock") -> None:
        numbers = {k: float(v) for k, v in metrics.items()}
        self._demand_finite(step, numbers["loss"])
        data = self.config.data
        seconds = clock.seconds_per_step(step)
        numbers["tokens_per_second"] = data.batch_size * data.seq_len / seconds
        record: Record = {"step": step, "split": "train", **numbers, "unigram": self.unigram_nats}
        self.writer.write(record)
        self.view.show(step, numbers, seconds * (self.config.steps - step))

    def _demand_finite(self, step: int, loss: float) -> None:
        """Nothing can be learned from there on, and a checkpoint of it would push out those that are good."""
        if not math.isfinite(loss):
            raise InputError(
                f"the loss is {loss} at step {step}: lower optimizer.learning-rate or optimizer.clip-norm; the last "
                f"checkpoint is of step {self.checkpoints.latest_step}"
            )

    def evaluate(self, state: TrainState, step: int) -> bool:
        """Puts the held-out loss after `step` updates on record. False where a stop cut it short."""
        loss = self.evaluation.loss(state, self.interrupt)
        if loss is None:
            return False
        self.writer.write({"step": step, "split": "validation", "loss": loss, "unigram": self.unigram_nats})
        self.view.say(f"held out at step {step}: loss {loss:.3f}, {relative_to_unigram(loss, self.unigram_nats)}")
        return True


def relative_to_unigram(loss: float, unigram_nats: float) -> str:
    """'0.512 below the unigram line 6.120', or above it."""
    side = "below" if loss < unigram_nats else "above"
    return f"{abs(unigram_nats - loss):.3f} {side} the unigram line {unigram_nats:.3f}"


class _Clock:
    """Seconds per update since the last reading; compilation, evaluation and saving are left out."""

    def __init__(self, step: int):
        self.skip_to_now(step)

    def skip_to_now(self, step: int) -> None:
        self._step, self._time = step, time.perf_counter()

    def seconds_per_step(self, step: int) -> float:
        now, steps = time.perf_counter(), max(step - self._step, 1)
        seconds = (now - self._time) / steps
        self._step, self._time = step, now
        return max(seconds, 1e-9)

"""Training and evaluation in finetuning: the loss of a task as an objective, its metrics, the choice of the best
checkpoint, and early stopping.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.models.heads import build_model, init_params
from xlnet_jax.objectives.language_model import BatchDropout, DeviceBatch, Scored
from xlnet_jax.tasks.baseline import Baseline
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.features import EncodedExamples, Features, Outputs, batch_by_length, restore_order
from xlnet_jax.tasks.task import Task
from xlnet_jax.training import sharding
from xlnet_jax.training.loop import Numbers
from xlnet_jax.training.step import Program, TrainState
from xlnet_jax.training.stop import Interrupt, Wish


@dataclass(frozen=True)
class Supervised:
    """Training objective of a task. Rows have no memory between batches, because examples are independent."""

    config: FinetuneConfig
    task: Task[Any, Any]

    @property
    def model(self) -> nn.Module:
        """Network with the head of the task."""
        return build_model(self.config.model, self.config.head)

    @property
    def mems(self) -> jax.ShapeDtypeStruct:
        """Memory of size 0."""
        return jax.ShapeDtypeStruct((0, self.config.data.batch_size, 0, 0), jnp.float32)

    def init(self, key: jax.Array) -> Any:
        """Draw the parameters of network and head at random."""
        return init_params(self.config.model, self.config.head, key)

    def cap_memory(self, batch: DeviceBatch, steps: jax.Array) -> DeviceBatch:
        """Return the batch: rows have no memory."""
        return batch

    def score(self, params: Any, batch: DeviceBatch, mems_ZBMD: jax.Array, dropout: BatchDropout | None) -> Scored:
        """Return the loss of the task."""
        losses, weights = self.task.losses(self.model, params, batch, dropout), batch["target_weights"]
        return Scored((losses * weights).sum(), weights.sum(), mems_ZBMD, {}, {})


class Predictor:
    """Run the network on features, on all devices. It is compiled once per bucket length."""

    def __init__(self, program: Program[Supervised]):
        objective, mesh, config = program.objective, program.mesh, program.config
        # The same number of rows as a micro-batch in training.
        rows = config.data.batch_size // config.optimizer.accumulate
        self._data = replace(objective.config.data, batch_size=rows)
        self._rows, self._put = sharding.process_rows(mesh, rows), sharding.batch_to_mesh(mesh, rows)

        def predict(params: Any, batch: DeviceBatch) -> DeviceBatch:
            with sharding.axes_of(mesh):
                return objective.task.predict(objective.model, params, batch)

        self._predict = jax.jit(
            predict,
            in_shardings=(sharding.shardings_of(program.plan.params), sharding.over_batch(mesh)),
            out_shardings=sharding.replicated(mesh),
        )

    def outputs(self, params: Any, features: Features, interrupt: Interrupt | None = None) -> Outputs | None:
        """Return the task's outputs as [items, …] in the order of the features; None if a stop interrupted it."""
        parts: list[tuple[np.ndarray, dict[str, jax.Array]]] = []
        for items, batch in batch_by_length(features, self._data, self._rows):
            if interrupt and interrupt.poll() is Wish.STOP:
                return None
            if parts:
                jax.block_until_ready(parts[-1][1])  # stay at most one batch ahead of the devices
            parts.append((items, self._predict(params, self._put(batch))))
        return restore_order(parts, len(features))


@dataclass
class Selection:
    """Evaluation of a finetuning run: choose the best checkpoint by one metric (`Evaluation`, training/loop.py)."""

    predictor: Predictor
    task: Task[Any, Any]
    held_out: EncodedExamples | None
    """None = nothing is evaluated"""
    baseline: Baseline | None = None
    history: list[tuple[int, float]] = field(default_factory=list)
    """(step, metric) of every evaluation, ascending"""

    @property
    def metric(self) -> str:
        """Metric that chooses the best checkpoint."""
        return self.task.selected_by

    @property
    def every_steps(self) -> int:
        """Number of steps between evaluations."""
        return self.task.config.selection.every_steps

    def recall(self, records: Iterable[dict[str, Any]], step: int) -> None:
        """Load the evaluations up to `step` from the records of the run that is resumed."""
        rows = {r["step"]: r for r in records if r["split"] == "validation" and r["step"] <= step}
        self.history = [(n, float(r[self.metric])) for n, r in sorted(rows.items()) if self.metric in r]

    def run(self, state: TrainState, step: int, interrupt: Interrupt) -> Numbers | None:
        """Return all metrics of the task, and the baseline; None if a stop interrupted the evaluation."""
        assert self.held_out
        examples, features = self.held_out
        outputs = self.predictor.outputs(state.params, features, interrupt)
        if outputs is None:
            return None
        numbers = self.task.metrics(examples, self.task.answers(examples, features, outputs))
        self.history = [row for row in self.history if row[0] < step] + [(step, numbers[self.metric])]
        return numbers | {"baseline": self.baseline.value} if self.baseline else numbers

    def describe(self, numbers: Numbers) -> str:
        """Return e.g. 'accuracy 0.912, f1 0.905; the best accuracy so far'."""
        best = f"; the best {self.metric} so far" if self.is_worth_saving else ""
        return describe(numbers) + best

    @property
    def best_step(self) -> int | None:
        """Step with the highest metric, the first if several are equal; None before the first evaluation."""
        return max(self.history, key=lambda row: or_lowest(row[1]), default=(None, 0.0))[0]

    @property
    def is_worth_saving(self) -> bool:
        """True if the last evaluation was the best."""
        return bool(self.history) and self.best_step == self.history[-1][0]

    @property
    def is_enough(self) -> bool:
        """True if the last `patience` evaluations did not improve on an earlier one."""
        best, patience = self.best_step or 0, self.task.config.selection.patience
        return 0 < patience <= sum(step > best for step, _ in self.history)


def describe(numbers: Numbers) -> str:
    """Return e.g. 'accuracy 0.912, f1 0.905'."""
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())


def or_lowest(value: float) -> float:
    """Return a metric as a sort key, with NaN below all numbers."""
    return -math.inf if math.isnan(value) else value

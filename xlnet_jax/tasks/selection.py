"""Evaluation while finetuning: the task's metrics, the best checkpoint by one of them, and when to stop."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from xlnet_jax.errors import InputError
from xlnet_jax.tasks.batches import in_order_of_length
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.features import NO_ITEM, Features
from xlnet_jax.tasks.objective import Supervised
from xlnet_jax.tasks.results import or_lowest
from xlnet_jax.training import sharding
from xlnet_jax.training.loop import Numbers
from xlnet_jax.training.run.interrupt import Interrupt, Wish
from xlnet_jax.training.state import StatePlan, TrainState

Outputs = dict[str, np.ndarray]


class Predictor:
    """What the network says of features, on all devices; each bucket length is compiled once."""

    def __init__(self, config: FinetuneConfig, objective: Supervised, plan: StatePlan, mesh: Mesh):
        self._config, self._batch_size = config, config.data.batch_size
        self._put = sharding.batch_to_mesh(mesh, self._batch_size)
        self._rows = sharding.process_rows(mesh, self._batch_size)

        def predict(params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            with sharding.axes_of(mesh):
                return objective.task.predict(objective.model, params, batch)

        self._predict = jax.jit(
            predict,
            in_shardings=(plan.shardings.params, sharding.over_batch(mesh)),
            out_shardings=sharding.replicated(mesh),
        )

    def outputs(self, params: Any, features: Features, interrupt: Interrupt | None = None) -> Outputs | None:
        """[items, …], in the order of the features; None where a stop cut it short."""
        parts: list[tuple[np.ndarray, dict[str, jax.Array]]] = []
        for items, batch in in_order_of_length(features, self._config.data, self._rows):
            if interrupt and interrupt.poll() is Wish.STOP:
                return None
            if parts:
                jax.block_until_ready(parts[-1][1])  # one batch ahead of the device and no more
            parts.append((items, self._predict(params, self._put(batch))))
        return _in_order(parts, len(features))


def _in_order(parts: Sequence[tuple[np.ndarray, dict[str, jax.Array]]], count: int) -> Outputs:
    outputs: Outputs = {}
    for items, of_batch in parts:
        real = items != NO_ITEM
        for name, array in of_batch.items():
            values = np.asarray(array)
            outputs.setdefault(name, np.empty((count, *values.shape[1:]), values.dtype))[items[real]] = values[real]
    return outputs


@dataclass
class Selection:
    """The `Evaluation` of finetuning (training/loop.py)."""

    config: FinetuneConfig
    predictor: Predictor
    task: Any
    examples: Sequence[Any]
    features: Features
    metric: str
    history: list[tuple[int, float]] = field(default_factory=list)  # (step, metric), a row for each evaluation

    def recall(self, records: Iterable[dict[str, Any]], step: int) -> None:
        """Takes up the evaluations that a run which goes on at `step` has on record."""
        rows = {r["step"]: r for r in records if r["split"] == "validation" and r["step"] <= step}
        self.history = [(n, float(r[self.metric])) for n, r in sorted(rows.items()) if self.metric in r]

    @property
    def every_steps(self) -> int:
        """Updates between evaluations."""
        return self.config.selection.every_steps

    def run(self, state: TrainState, step: int, interrupt: Interrupt) -> Numbers | None:
        """All metrics of the task."""
        outputs = self.predictor.outputs(state.params, self.features, interrupt)
        if outputs is None:
            return None
        numbers = self.task.metrics(self.examples, self.features, outputs)
        if self.metric not in numbers:
            raise InputError(f"selection.metric {self.metric}: the task has {', '.join(numbers)}")
        self.history = [row for row in self.history if row[0] < step] + [(step, numbers[self.metric])]
        return numbers

    def describe(self, numbers: Numbers) -> str:
        """'accuracy 0.912, f1 0.905; the best accuracy so far'"""
        best = f"; the best {self.metric} so far" if self.is_worth_saving else ""
        return describe(numbers) + best

    @property
    def best_step(self) -> int | None:
        """Of the highest metric, the first of equal ones; None before the first evaluation."""
        best = max(self.history, key=lambda row: (or_lowest(row[1]), -row[0]), default=None)
        return best[0] if best else None

    @property
    def is_worth_saving(self) -> bool:
        """The last evaluation was the best."""
        return bool(self.history) and self.best_step == self.history[-1][0]

    @property
    def is_enough(self) -> bool:
        """The last `patience` evaluations were no better than one before them."""
        patience = self.config.selection.patience
        later = [step for step, _ in self.history if self.best_step is not None and step > self.best_step]
        return 0 < patience <= len(later)


def describe(numbers: Numbers) -> str:
    """'accuracy 0.912, f1 0.905'"""
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())

"""Training and evaluation in finetuning: the loss of a task as an objective, and its metrics."""

from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.models.heads import build_model, encoder_as_in_evaluation, init_params
from xlnet_jax.objectives.language_model import BatchDropout, DeviceBatch, Scored
from xlnet_jax.tasks.baseline import Baseline
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.features import EncodedExamples, Features, Outputs, batch_by_length, restore_order
from xlnet_jax.tasks.task import Task
from xlnet_jax.training import sharding
from xlnet_jax.training.selection import Evaluation, Numbers
from xlnet_jax.training.step import Program


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
    def frozen(self) -> Collection[str]:
        """The encoder, if only the head is trained."""
        return ("backbone",) if self.config.frozen else ()

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
        with encoder_as_in_evaluation() if self.config.frozen else nullcontext():
            losses = self.task.losses(self.model, params, batch, dropout)
        weights = batch["target_weights"]
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

    def outputs(
        self, params: Any, features: Features, is_stopped: Callable[[], bool] = lambda: False
    ) -> Outputs | None:
        """Return the task's outputs as [items, …] in the order of the features; None if `is_stopped`, which is called
        before each batch, returned True."""
        parts: list[tuple[np.ndarray, dict[str, jax.Array]]] = []
        for items, batch in batch_by_length(features, self._data, self._rows):
            if is_stopped():
                return None
            if parts:
                jax.block_until_ready(parts[-1][1])  # stay at most one batch ahead of the devices
            parts.append((items, self._predict(params, self._put(batch))))
        return restore_order(parts, len(features))


def evaluation_of(
    predictor: Predictor, task: Task[Any, Any], held_out: EncodedExamples, baseline: Baseline | None
) -> Evaluation:
    """Return the evaluation of a finetuning run: the metrics of its task, and the baseline."""
    examples, features = held_out

    def measure(params: Any, is_stopped: Callable[[], bool]) -> Numbers | None:
        outputs = predictor.outputs(params, features, is_stopped)
        if outputs is None:
            return None
        numbers = task.metrics(examples, task.answers(examples, features, outputs))
        return numbers | {"baseline": baseline.value} if baseline else numbers

    def describe_best(numbers: Numbers) -> str:
        return describe(numbers) + (f"; the best {task.selected_by} so far" if evaluation.is_best else "")

    settings = task.config.selection
    evaluation = Evaluation(
        settings.every_steps, measure, describe_best, task.selected_by, is_better_high=True, patience=settings.patience
    )
    return evaluation


def describe(numbers: Numbers) -> str:
    """Return e.g. 'accuracy 0.912, f1 0.905'."""
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())

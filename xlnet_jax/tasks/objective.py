"""Finetuning as an objective (`Objective`, objectives/base.py): the loss of a task on a network with its head."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.models.heads import build_model, init_params
from xlnet_jax.objectives.base import BatchDropout, DeviceBatch, Scored
from xlnet_jax.tasks.base import Task
from xlnet_jax.tasks.config import FinetuneConfig


@dataclass(frozen=True)
class Supervised:
    """Objective of a task. Rows carry no memory from batch to batch, because examples are independent."""

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
        loss = self.task.score(self.model, params, batch, dropout)
        return Scored(loss.loss_sum, loss.weight_sum, mems_ZBMD, {}, {})

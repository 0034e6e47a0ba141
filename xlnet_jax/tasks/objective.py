"""Finetuning as an objective (objectives/objective.py): a task's loss on a network with the task's head."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.models.heads import build_model, init_params
from xlnet_jax.objectives.base import DeviceBatch, Scored
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.base import Task
from xlnet_jax.tasks.config import FinetuneConfig


@dataclass(frozen=True)
class Supervised:
    """Rows carry no memory from batch to batch: examples have nothing to do with each other."""

    config: FinetuneConfig
    head: HeadConfig
    task: Task[Any]

    @property
    def model(self) -> nn.Module:
        """The network with its head."""
        return build_model(self.config.model, self.head)

    @property
    def mems(self) -> jax.ShapeDtypeStruct:
        """Of size 0."""
        return jax.ShapeDtypeStruct((0, self.config.data.batch_size, 0, 0), jnp.float32)

    def init(self, key: jax.Array) -> Any:
        """Head and network, drawn afresh."""
        return init_params(self.config.model, self.head, key)

    def with_memory_of(self, batch: DeviceBatch, steps: jax.Array) -> DeviceBatch:
        """There is none."""
        return batch

    def score(self, params: Any, batch: DeviceBatch, mems_ZBMD: jax.Array, dropout_key: jax.Array | None) -> Scored:
        """The task's loss."""
        loss = self.task.score(self.model, params, batch, dropout_key)
        return Scored(loss.loss_sum, loss.weight_sum, mems_ZBMD, {}, {})

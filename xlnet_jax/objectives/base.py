"""The traced side of an objective: initial parameters, and the loss of a batch."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, cast

import flax.linen as nn
import jax

DeviceBatch = dict[str, jax.Array]


class Scored(NamedTuple):
    """Loss of a batch as sums, so that the parts of a batch add up."""

    loss_sum: jax.Array  # float32, nats
    weight_sum: jax.Array  # float32, number of targets
    new_mems_ZBMD: jax.Array
    row_losses: Mapping[str, jax.Array]  # float32: sums over rows of further losses, which are averaged over rows
    row_measures: Mapping[str, jax.Array]  # float32: sums over rows of what is reported but not learned


class Objective(Protocol):
    """Pure functions that a training step is made from. A batch has "target_weights"; the loss is a mean over their
    sum."""

    @property
    def mems(self) -> jax.ShapeDtypeStruct:
        """Memory that rows carry from batch to batch, [Z, B, M, D]; size 0 without memory."""
        ...

    def init(self, key: jax.Array) -> Any:
        """Return parameters, boxed with the logical names of their axes."""
        ...

    def with_memory_of(self, batch: DeviceBatch, steps: jax.Array) -> DeviceBatch:
        """Return the batch with a memory of no more than the last `steps` batches, int32: earlier ones were skipped."""
        ...

    def score(self, params: Any, batch: DeviceBatch, mems_ZBMD: jax.Array, dropout_key: jax.Array | None) -> Scored:
        """Return the sums over a batch; dropout_key None = no dropout."""
        ...


def apply(model: nn.Module, params: Any, dropout_key: jax.Array | None, *inputs: Any, **settings: Any) -> Any:
    """Apply a network to its inputs; dropout_key None = no dropout."""
    rngs = None if dropout_key is None else {"dropout": dropout_key}
    return cast(Any, model.apply)({"params": params}, *inputs, train=dropout_key is not None, rngs=rngs, **settings)

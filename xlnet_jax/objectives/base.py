"""What a training step learns, whatever the objective: how parameters begin, and what a batch costs."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, cast

import flax.linen as nn
import jax

DeviceBatch = dict[str, jax.Array]


class Scored(NamedTuple):
    """A batch's loss, as sums, so that parts of a batch add up."""

    loss_sum: jax.Array  # float32, nats
    weight_sum: jax.Array  # float32, number of targets
    new_mems_ZBMD: jax.Array
    row_losses: Mapping[str, jax.Array]  # float32: sums over rows of what is learned besides, in the mean of rows
    row_measures: Mapping[str, jax.Array]  # float32: the same of what is told and not learned


class Objective(Protocol):
    """Pure functions; a batch has "target_weights", whose sum the loss is a mean over."""

    @property
    def mems(self) -> jax.ShapeDtypeStruct:
        """The memory that rows carry from batch to batch, [Z, B, M, D]; of size 0 where they carry none."""
        ...

    def init(self, key: jax.Array) -> Any:
        """Parameters, boxed with the logical names of their axes."""
        ...

    def with_memory_of(self, batch: DeviceBatch, steps: jax.Array) -> DeviceBatch:
        """The batch where the memory holds no more than the last `steps` batches, int32: those before were not learned
        from."""
        ...

    def score(self, params: Any, batch: DeviceBatch, mems_ZBMD: jax.Array, dropout_key: jax.Array | None) -> Scored:
        """Sums over the batch; dropout_key None = no dropout."""
        ...


def apply(model: nn.Module, params: Any, dropout_key: jax.Array | None, *inputs: Any, **settings: Any) -> Any:
    """What a network says of its inputs; dropout_key None = no dropout."""
    rngs = None if dropout_key is None else {"dropout": dropout_key}
    return cast(Any, model.apply)({"params": params}, *inputs, train=dropout_key is not None, rngs=rngs, **settings)

"""The traced side of an objective: initial parameters, and the loss of a batch."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.models.inputs import Inputs
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config

DeviceBatch = dict[str, jax.Array]


class BatchDropout(NamedTuple):
    """Dropout of a batch, which may be a part of the global batch: the masks follow from both fields alone."""

    key: jax.Array  # of the step
    example_B: jax.Array  # int32, place of each example in the global batch


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

    def cap_memory(self, batch: DeviceBatch, steps: jax.Array) -> DeviceBatch:
        """Return the batch with a memory of no more than the last `steps` batches, int32: earlier ones were skipped."""
        ...

    def score(self, params: Any, batch: DeviceBatch, mems_ZBMD: jax.Array, dropout: BatchDropout | None) -> Scored:
        """Return the sums over a batch; dropout None = none."""
        ...


def sum_over_rows(values_B: jax.Array, batch: DeviceBatch) -> jax.Array:
    """Return the sum of what each row has; rows of held-out batches that have no block add nothing."""
    return (values_B * batch["row_weights"]).sum() if "row_weights" in batch else values_B.sum()


def apply(model: nn.Module, params: Any, dropout: BatchDropout | None, *arguments: Any, **settings: Any) -> Any:
    """Apply a network to its arguments; dropout None = none.

    Every `Inputs` among them gets the places of its rows. An example may have several rows of input, one after the
    other, as the options of a question.
    """
    if dropout is None:
        return cast(Any, model.apply)({"params": params}, *arguments, train=False, **settings)

    def add_places(argument: Any) -> Any:
        if not isinstance(argument, Inputs):
            return argument
        each, rest = divmod(len(argument.input_ids_BL), len(dropout.example_B))
        assert not rest, f"rows of input for {len(dropout.example_B)} examples"
        rows = (dropout.example_B[:, None] * each + jnp.arange(each)[None]).reshape(-1)
        return argument._replace(example_B=rows)

    arguments, settings = jax.tree.map(add_places, (arguments, settings), is_leaf=lambda leaf: isinstance(leaf, Inputs))
    rngs = {"dropout": dropout.key}
    return cast(Any, model.apply)({"params": params}, *arguments, train=True, rngs=rngs, **settings)


def objective_of(config: Config) -> Objective:
    """Return the objective that config.objective names."""
    module, _, traced = objective_named(config.objective).traced.partition(".")
    return getattr(import_module(f"xlnet_jax.objectives.{module}"), traced)(config)

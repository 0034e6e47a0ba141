"""The compiled part of a run: its mesh, the layout of its state and batches, and its train step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from data_pipelines.objectives.fields import batch_spec, shape_of
from xlnet_jax.dims import Batch
from xlnet_jax.objectives.base import DeviceBatch, Objective
from xlnet_jax.objectives.build import objective_of
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config, RunConfig
from xlnet_jax.settings.fields import with_values
from xlnet_jax.training import sharding
from xlnet_jax.training.optimizer import make_optimizer
from xlnet_jax.training.state import TrainState, empty_mems_ZBMD, init_state, plan_state, with_params
from xlnet_jax.training.step import TrainStep, make_train_step

O = TypeVar("O", bound=Objective)
AbstractBatch = dict[str, jax.ShapeDtypeStruct]


@dataclass(frozen=True)
class Program(Generic[O]):
    """Objective, optimizer, mesh, layout of the state, and train step, before anything is computed."""

    config: RunConfig
    objective: O
    tx: optax.GradientTransformation
    mesh: Mesh
    plan: TrainState
    """shapes, types and shardings of the state"""
    train_step: TrainStep

    @classmethod
    def of(cls, config: RunConfig, objective: O, devices: Sequence[jax.Device] | None = None) -> "Program[O]":
        """Return the program of these settings on `devices` (None = all that jax sees; they need not be here).

        Raises InputError where the mesh does not divide the devices, the network or the batch.
        """
        mesh = sharding.make_mesh(config, devices)
        tx = make_optimizer(config.optimizer, config.steps)
        plan = plan_state(objective, tx, mesh)
        return cls(config, objective, tx, mesh, plan, make_train_step(config, objective, tx, plan, mesh))

    @cached_property
    def rows(self) -> np.ndarray:
        """Rows of the global batch that this process builds: `sharding.process_rows`."""
        return sharding.process_rows(self.mesh, self.config.data.batch_size)

    @cached_property
    def put(self) -> Callable[[Batch], DeviceBatch]:
        """Function that lays `rows` of a batch onto the mesh."""
        return sharding.batch_to_mesh(self.mesh, self.config.data.batch_size)

    def init_state(self, params: dict[str, Any]) -> TrainState:
        """Return the state before the first step: `params` (nested host arrays), and what they lack drawn at random."""
        state = init_state(self.config.seed, self.objective, self.tx, self.plan)
        return with_params(state, params) if params else state

    def empty_mems_ZBMD(self) -> jax.Array:
        """Return the memory of rows that begin a block."""
        return empty_mems_ZBMD(self.plan.mems_ZBMD)


def pretraining_program(
    config: Config, attention: str, devices: Sequence[jax.Device] | None = None
) -> tuple[Program[Any], AbstractBatch]:
    """Return the program of a pretraining run that computes attention by this implementation, and its batch. devices
    and errors: as of `Program.of`."""
    config = with_values(config, {"model.attention": attention})
    program = Program.of(config, objective_of(config), devices)
    return program, batch_of_windows(config, program.mesh)


def batch_of_windows(config: Config, mesh: Mesh) -> AbstractBatch:
    """Return the shapes, types and shardings of a batch of pretraining."""
    data, over_batch = config.data, sharding.over_batch(mesh)
    spec = batch_spec(objective_named(config.objective).filling.fields, data)
    return {
        name: jax.ShapeDtypeStruct(shape_of(field, data.batch_size, data), jnp.dtype(field.dtype), sharding=over_batch)
        for name, field in spec.items()
    }


def batch_like(rows: Batch, batch_size: int, mesh: Mesh) -> AbstractBatch:
    """Return the shapes, types and shardings of a global batch whose rows are like these."""
    over_batch = sharding.over_batch(mesh)
    return {
        name: jax.ShapeDtypeStruct(
            (batch_size, *a.shape[1:]), jax.dtypes.canonicalize_dtype(a.dtype), sharding=over_batch
        )
        for name, a in rows.items()
    }

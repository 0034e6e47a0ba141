"""What a run carries from step to step, created where it will live."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh

from xlnet_jax.interop.weights import flatten, nest
from xlnet_jax.objectives.base import Objective
from xlnet_jax.training import sharding


@struct.dataclass
class Guard:
    """What is known of the updates so far, to tell a bad one."""

    norm_mean: jax.Array  # float32, running mean of the gradient norm, over the updates that were made
    skipped: jax.Array  # int32, updates that were not made
    skipped_in_a_row: jax.Array  # int32, of these the last ones
    mems_begin: jax.Array  # int32, the step before which nothing is remembered


def new_guard() -> Guard:
    """Before the first update."""
    zero = jnp.zeros((), jnp.int32)
    return Guard(jnp.zeros(()), zero, zero, zero)


@struct.dataclass
class TrainState:
    """Everything that the next update depends on, with (seed, step) for the rest."""

    step: jax.Array  # int32, batches learned from or skipped
    params: Any  # float32, nested dicts
    opt_state: Any
    mems_ZBMD: jax.Array  # compute type
    guard: Guard


@dataclass(frozen=True)
class StatePlan:
    """Shapes, types and shardings of a TrainState, before any of it exists."""

    abstract: TrainState  # of jax.ShapeDtypeStruct with shardings: what a checkpoint restores to
    shardings: TrainState


def empty_mems_ZBMD(plan: StatePlan) -> jax.Array:
    """No memory: the state of all rows at the first step of a block."""
    mems = plan.abstract.mems_ZBMD
    return jax.jit(lambda: jnp.zeros(mems.shape, mems.dtype), out_shardings=mems.sharding)()


def _create(seed: int, objective: Objective, tx: optax.GradientTransformation) -> TrainState:
    params = objective.init(jax.random.key(seed))
    mems = jnp.zeros(objective.mems.shape, objective.mems.dtype)
    return TrainState(jnp.zeros((), jnp.int32), params, tx.init(params), mems, new_guard())


def plan_state(objective: Objective, tx: optax.GradientTransformation, mesh: Mesh) -> StatePlan:
    """Shapes by `eval_shape`, shardings by the table: nothing is computed."""
    boxed = jax.eval_shape(lambda: _create(0, objective, tx))
    shardings = sharding.of_boxed(boxed, mesh).replace(mems_ZBMD=sharding.over_batch(mesh, 1))
    abstract = jax.tree.map(
        lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), sharding.unboxed(boxed), shardings
    )
    return StatePlan(abstract, shardings)


def init_state(seed: int, objective: Objective, tx: optax.GradientTransformation, plan: StatePlan) -> TrainState:
    """A fresh state, each shard made on the device that holds it: no copy on the host."""
    return jax.jit(lambda: sharding.unboxed(_create(seed, objective, tx)), out_shardings=plan.shardings)()


def with_params(state: TrainState, params: Any, plan: StatePlan) -> TrainState:
    """The fresh state with these parameters (nested host arrays) in place of its own; those that they lack stay."""
    shardings = flatten(plan.shardings.params)
    given = {path: sharding.from_host(a, shardings[path]) for path, a in flatten(params).items()}
    return dataclasses.replace(state, params=nest(flatten(state.params) | given))

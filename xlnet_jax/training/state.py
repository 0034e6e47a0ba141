"""State of training, created on the devices that hold it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh

from xlnet_jax.interop.weights import flatten, nest
from xlnet_jax.objectives.language_model import Objective
from xlnet_jax.training import sharding


@struct.dataclass
class Guard:
    """Statistics of the steps so far, by which a bad step is recognised."""

    norm_mean: jax.Array  # float32, running mean of the gradient norm over steps that were not skipped
    skipped: jax.Array  # int32, number of skipped steps
    skipped_in_a_row: jax.Array  # int32, number of skipped steps since the last one that was not
    mems_begin: jax.Array  # int32, first step whose hidden states the memory may hold


@struct.dataclass
class TrainState:
    """Everything that the next step depends on, besides settings and batch; random numbers come from (seed, step)."""

    step: jax.Array  # int32, steps done, skipped ones included
    params: Any  # float32, nested dicts
    opt_state: Any
    mems_ZBMD: jax.Array  # compute type
    guard: Guard


def empty_mems_ZBMD(mems: Any) -> jax.Array:
    """Return empty memory of this shape and sharding: the state of all rows at the first step of a block."""
    return jax.jit(lambda: jnp.zeros(mems.shape, mems.dtype), out_shardings=mems.sharding)()


def _create(seed: int, objective: Objective, tx: optax.GradientTransformation) -> TrainState:
    params = objective.init(jax.random.key(seed))
    mems = jnp.zeros(objective.mems.shape, objective.mems.dtype)
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, params, tx.init(params), mems, Guard(jnp.zeros(()), zero, zero, zero))


def plan_state(objective: Objective, tx: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """Return the shapes, types and shardings of a state (jax.ShapeDtypeStruct), before any of it exists: shapes by
    `eval_shape`, shardings by the table of sharding.py. Checkpoints are restored to it."""
    boxed = jax.eval_shape(lambda: _create(0, objective, tx))
    shardings = sharding.of_boxed(boxed, mesh).replace(mems_ZBMD=sharding.over_memory(mesh))
    return jax.tree.map(
        lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), sharding.unboxed(boxed), shardings
    )


def init_state(seed: int, objective: Objective, tx: optax.GradientTransformation, plan: TrainState) -> TrainState:
    """Return the state before the first step. Each shard is made on the device that holds it, without a host copy."""
    return jax.jit(lambda: sharding.unboxed(_create(seed, objective, tx)), out_shardings=sharding.shardings_of(plan))()


def with_params(state: TrainState, params: Any) -> TrainState:
    """Return the state with its parameters replaced by `params` (nested host arrays), as far as these have them."""
    drawn = flatten(state.params)
    given = {path: sharding.from_host(a, drawn[path].sharding) for path, a in flatten(params).items()}
    return dataclasses.replace(state, params=nest(drawn | given))

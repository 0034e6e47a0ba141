"""What a run carries from step to step, created where it will live."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh

from xlnet_jax.config import Config
from xlnet_jax.models.lm import XLNetLM
from xlnet_jax.objectives import plm
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


def empty_mems_ZBMD(config: Config, mesh: Mesh) -> jax.Array:
    """No memory: the state of all rows at the first step of a block."""
    m = config.model
    shape = (m.num_layers, config.data.batch_size, m.mem_len, m.d_model)
    return jax.jit(lambda: jnp.zeros(shape, m.dtype), out_shardings=sharding.over_batch(mesh, 1))()


def _create(config: Config, model: XLNetLM, tx: optax.GradientTransformation) -> TrainState:
    c, m = config.data, config.model
    # One row is enough: parameters do not depend on the batch.
    row = {
        "input_ids": jnp.zeros((1, c.seq_len), jnp.int32),
        "segment_ids": jnp.zeros((1, c.seq_len), jnp.int32),
        "perm_rank": jnp.zeros((1, c.seq_len), jnp.int32),
        "target_positions": jnp.zeros((1, c.num_slots), jnp.int32),
        "is_reversed": jnp.zeros(1, bool),
        "mem_filled": jnp.zeros(1, jnp.int32),
    }
    mems = jnp.zeros((m.num_layers, 1, m.mem_len, m.d_model), m.dtype)
    key = jax.random.key(config.seed)
    inputs = plm.inputs_of(row, m)
    params = model.init({"params": key}, inputs, mems, reuse_len=c.reuse_len, train=False)["params"]
    all_mems = jnp.zeros((m.num_layers, c.batch_size, m.mem_len, m.d_model), m.dtype)
    return TrainState(jnp.zeros((), jnp.int32), params, tx.init(params), all_mems, new_guard())


def plan_state(config: Config, model: XLNetLM, tx: optax.GradientTransformation, mesh: Mesh) -> StatePlan:
    """Shapes by `eval_shape`, shardings by the table: nothing is computed."""
    boxed = jax.eval_shape(lambda: _create(config, model, tx))
    shardings = sharding.of_boxed(boxed, mesh).replace(mems_ZBMD=sharding.over_batch(mesh, 1))
    abstract = jax.tree.map(
        lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), sharding.unboxed(boxed), shardings
    )
    return StatePlan(abstract, shardings)


def init_state(config: Config, model: XLNetLM, tx: optax.GradientTransformation, plan: StatePlan) -> TrainState:
    """A fresh state, each shard made on the device that holds it: no copy on the host."""
    return jax.jit(lambda: sharding.unboxed(_create(config, model, tx)), out_shardings=plan.shardings)()


def with_params(state: TrainState, params: Any, plan: StatePlan) -> TrainState:
    """The fresh state with these parameters (host arrays) in place of its own."""
    return dataclasses.replace(state, params=jax.device_put(params, plan.shardings.params))

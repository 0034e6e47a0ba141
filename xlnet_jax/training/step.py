"""The compiled part of a run: its state, created on the devices; its train step and evaluation step; and its program,
which is the train step with its mesh, the layout of its state and the shapes of its batches.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import Mesh

from data_pipelines.objectives import batch_spec, shapes_of
from xlnet_jax.costs import chip_of
from xlnet_jax.dims import Batch
from xlnet_jax.errors import first_line
from xlnet_jax.interop.weights import flatten, nest
from xlnet_jax.kernels.tpu.tiles import GENERATIONS
from xlnet_jax.objectives.language_model import BatchDropout, DeviceBatch, Objective, Scored, objective_of
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.printing import tell
from xlnet_jax.settings.config import Config, RunConfig
from xlnet_jax.settings.fields import with_values
from xlnet_jax.training import sharding
from xlnet_jax.training.optimizer import learning_rate, make_optimizer

# ---- state -----------------------------------------------------------------------------------------------------------


@struct.dataclass
class Guard:
    """Statistics of the steps so far, used to recognize a bad step."""

    norm_mean: jax.Array  # float32, running mean of the gradient norm over steps that were not skipped
    skipped: jax.Array  # int32, number of skipped steps
    skipped_in_a_row: jax.Array  # int32, number of skipped steps since the last one that was not
    mems_begin: jax.Array  # int32, first step whose hidden states the memory may hold


@struct.dataclass
class TrainState:
    """Everything besides settings and batch that the next step depends on. Random numbers come from (seed, step)."""

    step: jax.Array  # int32, steps done, skipped ones included
    params: Any  # float32, nested dicts
    opt_state: Any
    mems_ZBMD: jax.Array  # compute type
    guard: Guard


def empty_mems_ZBMD(mems: Any) -> jax.Array:
    """Return empty memory of this shape and sharding: the state of all rows at the first step of a block."""
    return jnp.zeros(mems.shape, mems.dtype, device=mems.sharding)


def split_frozen(params: Any, objective: Objective) -> tuple[Any, Any]:
    """Return the learned parameters, and those that training leaves as they are."""
    frozen = {name: params[name] for name in objective.frozen}
    return {name: part for name, part in params.items() if name not in frozen}, frozen


def _create(objective: Objective, tx: optax.GradientTransformation, key: jax.Array) -> TrainState:
    params = objective.init(key)
    mems = jnp.zeros(objective.mems.shape, objective.mems.dtype)
    zero = jnp.zeros((), jnp.int32)
    learned, _ = split_frozen(params, objective)
    return TrainState(zero, params, tx.init(learned), mems, Guard(jnp.zeros(()), zero, zero, zero))


def _plan(create: jax.stages.Wrapped, mesh: Mesh) -> TrainState:
    boxed = jax.eval_shape(create, jax.eval_shape(lambda: jax.random.key(0)))
    shardings = sharding.of_boxed(boxed, mesh).replace(mems_ZBMD=sharding.over_memory(mesh))
    return jax.tree.map(
        lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), sharding.unboxed(boxed), shardings
    )


def init_state(seed: int, create: jax.stages.Wrapped, plan: TrainState) -> TrainState:
    """Return the state before the first step. Each shard is made on the device that holds it, without a host copy."""
    made = jax.jit(lambda: sharding.unboxed(create(jax.random.key(seed))), out_shardings=sharding.shardings_of(plan))
    return made()


# ---- steps -----------------------------------------------------------------------------------------------------------

Metrics = dict[str, jax.Array]
TrainStep = Callable[[TrainState, DeviceBatch], tuple[TrainState, Metrics]]
EvalStep = Callable[[Any, DeviceBatch, jax.Array], Scored]


DEFAULT_SCOPED_BYTES = 16 * 2**20
"""on-chip memory that the TPU compiler gives to one fusion by default"""

# Decay of the running mean of the gradient norm, and the number of steps after which it is trusted.
NORM_DECAY, NORM_TRUSTED_AFTER = 0.99, 50


def make_train_step(
    config: RunConfig,
    objective: Objective,
    tx: optax.GradientTransformation,
    plan: TrainState,
    mesh: Mesh,
    has_rate: bool = True,
) -> TrainStep:
    """Return the train step: state, batch -> state, metrics. The state passed in is donated: do not read it again.

    The loss is the mean over all targets of the global batch; the gradient is clipped after summing it over devices. A
    step is skipped if its loss or gradient is not finite, or if its gradient norm is a spike: then parameters and
    optimizer state do not change, and the memory is emptied. Frozen parameters have neither gradients nor optimizer
    state, and nothing is computed backwards through what depends only on them.
    """
    rate = learning_rate(config.optimizer, config.steps)
    has_dropout = config.model.dropout > 0 or config.model.attention_dropout > 0
    gradients = _gradients(config.optimizer.accumulate, objective, mesh)

    def train_step(state: TrainState, batch: DeviceBatch) -> tuple[TrainState, Metrics]:
        dropout = None
        if has_dropout:
            key = jax.random.fold_in(jax.random.key(config.seed), state.step)
            dropout = BatchDropout(key, jnp.arange(len(batch["target_weights"])))
        batch = objective.cap_memory(batch, state.step - state.guard.mems_begin)
        with sharding.axes_of(mesh):
            measured, grads, new_mems_ZBMD = gradients(state.params, batch, state.mems_ZBMD, dropout)
            learned, frozen = split_frozen(state.params, objective)
            updates, opt_state = tx.update(grads, state.opt_state, learned)
        norm = optax.tree.norm(grads)
        good = _is_good(sum(measured.values()), norm, state, config.optimizer.spike_factor)
        guard = _next_guard(state, norm, good)
        metrics = {
            **measured,
            "gradient_norm": norm,
            "parameter_norm": optax.tree.norm(state.params),
            "skipped": guard.skipped,
            "skipped_in_a_row": guard.skipped_in_a_row,
        }
        if has_rate:
            metrics["learning_rate"] = jnp.asarray(rate(state.step - state.guard.skipped), jnp.float32)

        def keep_good(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda n, o: jnp.where(good, n, o), new, old)

        params = frozen | keep_good(optax.apply_updates(learned, updates), learned)
        mems_ZBMD = jnp.where(good, new_mems_ZBMD, 0)
        return TrainState(state.step + 1, params, keep_good(opt_state, state.opt_state), mems_ZBMD, guard), metrics

    shardings = sharding.shardings_of(plan)
    return jax.jit(
        train_step,
        in_shardings=(shardings, sharding.over_batch(mesh)),
        out_shardings=(shardings, sharding.replicated(mesh)),
        donate_argnums=0,
        compiler_options=tpu_options(mesh),
    )


def tpu_options(mesh: Mesh) -> dict[str, str] | None:
    """Return the options with which the TPU compiler compiles a step; None on other devices, and, with a note, if it
    does not support them."""
    chip = chip_of(mesh.devices.flat[0].device_kind)
    generation = GENERATIONS.get(chip.name) if chip else None
    if generation is None:
        return None
    # The gradients of the scanned layers need no zeros, because the loop writes all of them.
    options = {"xla_tpu_enable_advanced_while_initializer_removal": "true"}
    if generation.vmem_bytes > 2 * DEFAULT_SCOPED_BYTES:
        # A product whose epilogue sums whole rows holds all columns of its result.
        options["xla_tpu_scoped_vmem_limit_kib"] = str(2 * DEFAULT_SCOPED_BYTES // 2**10)
    try:
        empty = jax.jit(lambda: jnp.zeros(()), out_shardings=sharding.replicated(mesh), compiler_options=options)
        empty.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        tell(f"this compiler does not support the options of the train step, so steps are slower: {first_line(error)}")
        return None
    return options


def _is_good(loss: Any, norm: jax.Array, state: TrainState, spike_factor: float) -> jax.Array:
    good = jnp.isfinite(loss) & jnp.isfinite(norm)
    if not spike_factor:
        return good
    trusted = state.step - state.guard.skipped >= NORM_TRUSTED_AFTER
    return good & ~(trusted & (norm > spike_factor * state.guard.norm_mean))


def _next_guard(state: TrainState, norm: jax.Array, good: jax.Array) -> Guard:
    guard, made = state.guard, state.step - state.guard.skipped
    # The plain mean of the first steps, then a running mean.
    share = jnp.maximum(1.0 - NORM_DECAY, 1.0 / (made + 1.0))
    return Guard(
        jnp.where(good, guard.norm_mean + share * (norm - guard.norm_mean), guard.norm_mean),
        guard.skipped + ~good,
        jnp.where(good, 0, guard.skipped_in_a_row + 1),
        jnp.where(good, guard.mems_begin, state.step + 1),
    )


Gradients = Callable[[Any, DeviceBatch, jax.Array, BatchDropout | None], tuple[Metrics, Any, jax.Array]]


def _gradients(count: int, objective: Objective, mesh: Mesh) -> Gradients:
    """Return a function: params, batch, memory, dropout -> measurements, gradient of the sum of all losses with respect
    to the learned parameters, next memory. It goes through `count` micro-batches. "loss" is the mean over targets,
    other measurements over rows."""

    def batch_grads(params: Any, batch: DeviceBatch, mems_ZBMD: jax.Array, dropout: BatchDropout | None) -> Any:
        learned, frozen = split_frozen(params, objective)
        weights_BP = batch["target_weights"]
        targets, rows = jnp.maximum(weights_BP.sum(), 1.0), weights_BP.shape[0]

        def micro_batch_grads(examples: Any, mems: jax.Array) -> tuple[Any, jax.Array]:
            part, example_B = examples
            part_dropout = None if dropout is None else dropout._replace(example_B=example_B)

            def share_of_loss(learned: Any) -> tuple[jax.Array, Any]:
                scored = objective.score(frozen | learned, part, mems, part_dropout)
                losses = {name: total / rows for name, total in scored.row_losses.items()}
                losses["loss"] = scored.loss_sum / targets
                measured = losses | {name: hits / rows for name, hits in scored.row_measures.items()}
                return sum(losses.values(), start=jnp.zeros(())), (measured, scored.new_mems_ZBMD)

            grads, (measured, new_mems_ZBMD) = jax.grad(share_of_loss, has_aux=True)(learned)
            return (measured, grads), new_mems_ZBMD

        examples = batch, None if dropout is None else dropout.example_B
        (measured, grads), new_mems_ZBMD = _sum_micro_batches(micro_batch_grads, examples, mems_ZBMD, count, mesh)
        return measured, grads, new_mems_ZBMD

    return batch_grads


def _sum_micro_batches(
    run_rows: Callable[[Any, jax.Array], tuple[Any, jax.Array]],
    rows_B: Any,
    mems_ZBMD: jax.Array,
    count: int,
    mesh: Mesh,
) -> tuple[Any, jax.Array]:
    """Return the sum of run_rows(rows, memory) over `count` micro-batches, and the next memory.

    rows_B: arrays whose first axis is the batch.
    """
    if count == 1:
        return run_rows(rows_B, mems_ZBMD)
    split = functools.partial(_split, shards=sharding.batch_shards(mesh), parts=count)
    rows, mems = jax.tree.map(lambda array: split(array, 0), rows_B), split(mems_ZBMD, 1)

    def run_micro_batch(i: Any, mems: jax.Array) -> tuple[Any, jax.Array]:
        found, new_mems_ZBMD = run_rows(jax.tree.map(lambda array: _part(array, i, 0), rows), _part(mems, i, 1))
        return found, _with_part(mems, new_mems_ZBMD, i, 1)

    def add_part(i: jax.Array, sums: Any) -> Any:
        so_far, mems = sums
        found, mems = run_micro_batch(i, mems)
        return jax.tree.map(jnp.add, so_far, found), mems

    shapes = jax.eval_shape(lambda: run_micro_batch(0, mems)[0])
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    sums, mems = jax.lax.fori_loop(0, count, add_part, (nothing, mems))
    return sums, mems.reshape(mems_ZBMD.shape)


def _split(array: jax.Array, axis: int, shards: int, parts: int) -> jax.Array:
    """Reshape the batch at `axis` to [shards, parts, rows of a part in a shard]: each device keeps its rows."""
    rows = array.shape[axis] // (shards * parts)
    return array.reshape(*array.shape[:axis], shards, parts, rows, *array.shape[axis + 1 :])


def _part(split: jax.Array, i: jax.Array, axis: int) -> jax.Array:
    one = jax.lax.dynamic_index_in_dim(split, i, axis + 1, keepdims=False)
    return one.reshape(*one.shape[:axis], one.shape[axis] * one.shape[axis + 1], *one.shape[axis + 2 :])


def _with_part(split: jax.Array, part: jax.Array, i: jax.Array, axis: int) -> jax.Array:
    shape = (*split.shape[: axis + 1], *split.shape[axis + 2 :])
    return jax.lax.dynamic_update_index_in_dim(split, part.reshape(shape), i, axis + 1)


def make_eval_step(objective: Objective, plan: TrainState, mesh: Mesh, count: int = 1) -> EvalStep:
    """Return the evaluation step, without dropout: params, batch, memory -> sums over the batch and the next memory.

    count: number of micro-batches, computed one after the other.
    """

    def eval_step(params: Any, batch: DeviceBatch, mems_ZBMD: jax.Array) -> Scored:
        def run_rows(part: DeviceBatch, mems: jax.Array) -> tuple[Scored, jax.Array]:
            scored = objective.score(params, part, mems, None)
            return scored._replace(new_mems_ZBMD=jnp.zeros(())), scored.new_mems_ZBMD

        with sharding.axes_of(mesh):
            scored, new_mems_ZBMD = _sum_micro_batches(run_rows, batch, mems_ZBMD, count, mesh)
        return scored._replace(new_mems_ZBMD=new_mems_ZBMD)

    everywhere, mems = sharding.replicated(mesh), plan.mems_ZBMD.sharding
    return jax.jit(
        eval_step,
        in_shardings=(sharding.shardings_of(plan.params), sharding.over_batch(mesh), mems),
        out_shardings=Scored(*cast(Any, (everywhere, everywhere, mems, everywhere, everywhere))),
    )


# ---- program ---------------------------------------------------------------------------------------------------------

O = TypeVar("O", bound=Objective)
AbstractBatch = dict[str, jax.ShapeDtypeStruct]


@dataclass(frozen=True)
class Program(Generic[O]):
    """The objective, optimizer, mesh, layout of the state and train step of a run; nothing is computed yet."""

    config: RunConfig
    objective: O
    create: jax.stages.Wrapped
    """key -> the state before the first step, whose parameters are boxed with the names of their axes"""
    mesh: Mesh
    plan: TrainState
    """shapes, types and shardings of the state (jax.ShapeDtypeStruct); checkpoints are restored to this layout"""
    train_step: TrainStep

    @classmethod
    def of(
        cls,
        config: RunConfig,
        objective: O,
        devices: Sequence[jax.Device] | None = None,
        optimizer: optax.GradientTransformation | None = None,
    ) -> "Program[O]":
        """Return the program of these settings on `devices` (None = all that jax sees; they need not exist here).
        optimizer: None = that of the settings.

        Raises InputError if the mesh does not divide the devices, the network or the batch.
        """
        mesh = sharding.make_mesh(config, devices)
        tx = optimizer or make_optimizer(config.optimizer, config.steps)
        create = jax.jit(functools.partial(_create, objective, tx))  # traced once, for the plan and the first state
        plan = _plan(create, mesh)
        step = make_train_step(config, objective, tx, plan, mesh, not optimizer)
        return cls(config, objective, create, mesh, plan, step)

    @cached_property
    def rows(self) -> np.ndarray:
        """Rows of the global batch that this process builds: `sharding.process_rows`."""
        return sharding.process_rows(self.mesh, self.config.data.batch_size)

    @cached_property
    def put(self) -> Callable[[Batch], DeviceBatch]:
        """Function that lays `rows` of a batch onto the mesh."""
        return sharding.batch_to_mesh(self.mesh, self.config.data.batch_size)

    def init_state(self, params: dict[str, Any]) -> TrainState:
        """Return the state before the first step, with `params` (nested host arrays); others are drawn at random."""
        state = init_state(self.config.seed, self.create, self.plan)
        drawn = flatten(state.params)
        given = {path: sharding.from_host(a, drawn[path].sharding) for path, a in flatten(params).items()}
        return dataclasses.replace(state, params=nest(drawn | given)) if given else state


def pretraining_program(
    config: Config,
    attention: str,
    devices: Sequence[jax.Device] | None = None,
    make_objective: Callable[[Config], Objective] = objective_of,
    optimizer: optax.GradientTransformation | None = None,
) -> tuple[Program[Any], AbstractBatch]:
    """Return the program of a pretraining run that computes attention by this implementation, and its batch. devices,
    optimizer and errors: as of `Program.of`."""
    config = with_values(config, {"model.attention": attention})
    program = Program.of(config, make_objective(config), devices, optimizer)
    return program, batch_of_windows(config, program.mesh)


def batch_of_windows(config: Config, mesh: Mesh) -> AbstractBatch:
    """Return the shapes, types and shardings of a batch of pretraining."""
    data, over_batch = config.data, sharding.over_batch(mesh)
    spec = batch_spec(objective_named(config.objective).filling.fields, data)
    return {
        name: jax.ShapeDtypeStruct(shape, jnp.dtype(spec[name].dtype), sharding=over_batch)
        for name, shape in shapes_of(spec, data.batch_size, data).items()
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

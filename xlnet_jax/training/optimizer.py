"""Optimizers: AdamW, Muon, and that of the 2019 code (model_utils.py, `get_train_op`, `AdamWeightDecayOptimizer`)."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from xlnet_jax.interop.weights import flatten, nest
from xlnet_jax.settings.config import OptimizerConfig

ITERATIONS = 3
"""Newton-Schulz iterations of Muon"""


def learning_rate(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Return the learning rate of step t (from 0): a rise from 0 over warmup_steps to the peak, then linear, cosine,
    late or no decay, or peak * sqrt(warmup_steps / t).

    The last is equation 3 of Vaswani et al. 2017, d_model^-0.5 * min(t^-0.5, t * warmup_steps^-1.5), if the peak is
    (d_model * warmup_steps)^-0.5.
    """
    end = config.decay_steps or steps
    peak, floor = config.learning_rate, config.learning_rate * config.min_lr_ratio
    warmup = max(config.warmup_steps, 1)
    span, stable = max(end - config.warmup_steps, 1), config.first_decaying_step(steps) - config.warmup_steps
    after = {
        "linear": optax.linear_schedule(peak, floor, span),
        "cosine": optax.cosine_decay_schedule(peak, span, config.min_lr_ratio),
        "constant": optax.constant_schedule(peak),
        "wsd": optax.linear_schedule(peak, floor, max(span - stable, 1), stable),
        "inverse_sqrt": lambda step: jnp.maximum(peak * jnp.sqrt(warmup / (warmup + jnp.maximum(step, 0))), floor),
    }[config.schedule]
    if not config.warmup_steps:
        return after
    rise = optax.linear_schedule(0.0, peak, config.warmup_steps)
    return optax.join_schedules([rise, after], [config.warmup_steps])


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Return the optimizer: clip by the global norm, then Adam or Muon with decoupled weight decay of the parameters in
    `decayed`."""
    clip = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    by_depth = [scale_layers(config.layer_decay, config.profile)] if config.layer_decay < 1 else []
    if config.profile == "paper2019":
        # The 2019 code scales the gradients of layers, and only where it clips.
        return optax.chain(*clip, *(by_depth if clip else []), *_adam_2019(config, steps))
    by_kind = [scale_matrices(config.matrix_rate)] if config.matrix_rate != 1 else []
    adam = _stored(optax.scale_by_adam(config.beta1, config.beta2, config.eps), config)
    decoupled = optax.chain(
        adam if config.method == "adamw" else with_muon(adam, config.state_dtype),
        *by_kind,
        optax.add_decayed_weights(config.weight_decay, decayed),
        optax.scale_by_learning_rate(learning_rate(config, steps)),
    )
    return optax.chain(*(clip or [optax.identity()]), decoupled, *by_depth)


def _adam_2019(config: OptimizerConfig, steps: int) -> list[optax.GradientTransformation]:
    rate = optax.scale_by_learning_rate(learning_rate(config, steps))
    if not config.weight_decay:
        adam = scale_by_adam_2019(config.beta1, config.beta2, config.eps, bias_correction=True)
        return [_stored(adam, config), rate]
    adam = _stored(scale_by_adam_2019(config.beta1, config.beta2, config.eps, bias_correction=False), config)
    mask = functools.partial(decayed, profile="paper2019")
    return [adam, optax.add_decayed_weights(config.weight_decay, mask), rate]


def scale_by_adam_2019(beta1: float, beta2: float, eps: float, bias_correction: bool) -> optax.GradientTransformation:
    """Return updates m / (sqrt(v) + eps), times sqrt(1 - beta2^t) / (1 - beta1^t) with bias correction.

    Unlike optax, eps is added before the correction, as in tf.train.AdamOptimizer; without correction this is
    AdamWeightDecayOptimizer.
    """

    def init(params: Any) -> optax.ScaleByAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        count = optax.safe_increment(state.count)
        mu = optax.tree_utils.tree_update_moment(grads, state.mu, beta1, 1)
        nu = optax.tree_utils.tree_update_moment(grads, state.nu, beta2, 2)
        size = jnp.sqrt(1 - beta2**count) / (1 - beta1**count) if bias_correction else 1.0
        updates = jax.tree.map(lambda m, v: size * m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def _stored(adam: optax.GradientTransformation, config: OptimizerConfig) -> optax.GradientTransformation:
    return stored_as_bfloat16(adam) if config.state_dtype == "bfloat16" else adam


def stored_as_bfloat16(adam: optax.GradientTransformation) -> optax.GradientTransformation:
    """Store Adam's moments as bfloat16 between steps, and compute with float32.

    Moments are rounded at random (`rounded_at_random`): a second moment changes by a thousandth per step, and rounding
    to the nearest value with bfloat16's 8 bits would undo that change every time.
    """

    def init(params: Any) -> Any:
        state: Any = adam.init(params)
        low = [jax.tree.map(lambda m: m.astype(jnp.bfloat16), m) for m in (state.mu, state.nu)]
        return state._replace(mu=low[0], nu=low[1])

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        high = [jax.tree.map(lambda m: m.astype(jnp.float32), m) for m in (state.mu, state.nu)]
        updates, new = adam.update(grads, state._replace(mu=high[0], nu=high[1]), params)
        leaves, tree = jax.tree.flatten((new.mu, new.nu))
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), state.count), len(leaves))
        mu, nu = jax.tree.unflatten(tree, [rounded_at_random(m, k) for m, k in zip(leaves, keys, strict=True)])
        return updates, new._replace(mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def rounded_at_random(x: jax.Array, key: jax.Array) -> jax.Array:
    """Round float32 to one of its two bfloat16 neighbors at random, so that the expected value is x."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + jax.random.bits(key, x.shape, jnp.uint16)
    rounded = jax.lax.bitcast_convert_type(bits & jnp.uint32(0xFFFF0000), jnp.float32)
    return jnp.where(jnp.isfinite(x), rounded, x).astype(jnp.bfloat16)


def with_muon(others: optax.GradientTransformation, state_dtype: str) -> optax.GradientTransformation:
    """Return Muon for the matrices in layers, and `others` for all other parameters (Jordan et al. 2024, "Muon: An
    optimizer for hidden layers in neural networks").

    Muon's update is the momentum (0.95, Nesterov) with all singular values near 1, times sqrt(outputs / inputs) if the
    matrix has more outputs. So it changes the output of a layer by as much at every width, unlike Adam's. Its rows are
    scaled first, so that three iterations are enough (Boissin et al. 2025, "Turbo-Muon"). Devices that divide the
    parameters divide this work by layers.
    """
    muon = scale_by_muon(
        ns_steps=ITERATIONS,
        mu_dtype=state_dtype,
        preconditioning="aol",
        weight_dimension_numbers=lambda matrices: {path: _axes(path) for path in matrices},
    )

    def init(params: Any) -> Any:
        matrices, rest = _matrices_and_rest(params)
        return {"muon": muon.init(matrices), "others": others.init(rest)}

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        matrices, rest = _matrices_and_rest(grads)
        # The factor changes no update, but keeps small gradients above the floor of optax, 1e-8 for a row's square.
        by_layer = {
            path: nn.with_logical_constraint(1e4 * matrix, ("layers_apart",)) for path, matrix in matrices.items()
        }
        matrices, of_muon = muon.update(by_layer, state["muon"])
        rest, of_others = others.update(rest, state["others"])
        matrices = {path: _widened(path, matrix) for path, matrix in matrices.items()}
        return nest(matrices | rest), {"muon": of_muon, "others": of_others}

    return optax.GradientTransformation(init, update)


def muon_flops(params: Any) -> int:
    """Return the FLOPs of Muon's matrix products in a step: the Newton-Schulz iterations of each matrix in the layers,
    each with 4 m^2 n + 2 m^3 FLOPs for m x n, m <= n. params: nested dicts of arrays or shapes."""
    total = 0
    for path, matrix in _matrices_and_rest(params)[0].items():
        m, n = sorted(_sides(path, matrix))
        total += matrix.size // (m * n) * ITERATIONS * (4 * m**2 * n + 2 * m**3)
    return total


def _axes(path: str) -> MuonDimensionNumbers:
    """Return the axes of a matrix's inputs and outputs. Attention's projections have one for heads and one for the
    width of a head."""
    *_, folder, leaf = path.split("/")
    if leaf == "o":
        return MuonDimensionNumbers((-2, -1), -3)
    is_to_heads = leaf in "qkvr" or folder in ("q", "k", "v")
    return MuonDimensionNumbers(-3, (-2, -1)) if is_to_heads else MuonDimensionNumbers(-2, -1)


def _sides(path: str, matrix: Any) -> tuple[int, int]:
    """Return the number of inputs and outputs of a matrix."""
    inputs, outputs = (math.prod(np.atleast_1d(np.take(matrix.shape, axis)).tolist()) for axis in _axes(path))
    return inputs, outputs


def _widened(path: str, update: jax.Array) -> jax.Array:
    inputs, outputs = _sides(path, update)
    return update * math.sqrt(max(1.0, outputs / inputs))


def _matrices_and_rest(tree: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return path -> array of the matrices in layers, and of all other parameters."""
    flat = flatten(tree)
    matrices = {path: array for path, array in flat.items() if _is_matrix(path.split("/"))}
    return matrices, {path: array for path, array in flat.items() if path not in matrices}


def _is_matrix(names: Sequence[str]) -> bool:
    """Return True for a matrix in a layer, but not for embeddings, biases and normalization."""
    is_in_layer = any(name == "layers" or name.startswith("shared_") for name in names)
    return is_in_layer and names[-1] not in (*_VECTORS, "segment_embedding")


def scale_layers(decay: float, profile: str = "default") -> optax.GradientTransformation:
    """Scale updates by decay^(Z - 1 - l) in layer l of Z, by decay^Z in the embeddings; none if these are frozen.

    profile paper2019: only parameters whose name in the original contains a layer, so neither embeddings nor segment
    encodings nor r biases.
    """
    left_alone = ("segment_embedding", "biases") if profile == "paper2019" else ()

    def scale(path: tuple[Any, ...], update: jax.Array, num_layers: int) -> jax.Array:
        names = [entry.key for entry in path]
        if "layers" not in names and any("embedding" in name for name in names) and profile != "paper2019":
            return update * decay**num_layers
        if "layers" not in names or names[-1] in left_alone:
            return update
        by_layer_Z = decay ** jnp.arange(num_layers - 1, -1, -1, dtype=update.dtype)
        return update * by_layer_Z.reshape(-1, *[1] * (update.ndim - 1))

    def update(updates: Any, _: Any = None) -> Any:
        if "backbone" not in updates:
            return updates
        num_layers = len(jax.tree.leaves(updates["backbone"]["layers"])[0])
        return jax.tree_util.tree_map_with_path(lambda path, u: scale(path, u, num_layers), updates)

    return optax.stateless(update)


def scale_matrices(share: float) -> optax.GradientTransformation:
    """Scale the updates of the matrices in layers.

    The size of Adam's updates is the learning rate, whatever the gradient, so their effect on a matrix product grows
    with the width. A share that shrinks as the width grows keeps the effect the same (muP: Yang et al. 2022, "Tensor
    Programs V", table 3, for Adam and hidden weights). Weight decay is not scaled (its appendix B.3).
    """

    def scale(path: tuple[Any, ...], update: jax.Array) -> jax.Array:
        names = [entry.key for entry in path if hasattr(entry, "key")]
        return update * share if _is_matrix(names) else update

    return optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(scale, updates))


_VECTORS = ("scale", "bias", "biases", "output_bias", "query")


def decayed(params: Any, profile: str = "default") -> Any:
    """Return True for each parameter with weight decay: all except biases and normalization; in the 2019 code also the
    r_w, r_r and r_s biases."""
    left_alone = set(_VECTORS) - ({"biases"} if profile == "paper2019" else set())

    def at(path: tuple[Any, ...], _: Any) -> bool:
        last = path[-1].key if not hasattr(path[-1], "name") else path[-2].key
        return last not in left_alone

    return jax.tree_util.tree_map_with_path(at, params)

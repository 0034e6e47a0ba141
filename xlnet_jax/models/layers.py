"""Building blocks of the layers of every network. Parameters carry logical axis names; `training/sharding.py` maps them
to a mesh."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from xlnet_jax.kernels.arguments import einsum_float32
from xlnet_jax.kernels.dropout import hidden_mask_BTD
from xlnet_jax.kernels.mesh import TPU, platform
from xlnet_jax.kernels.products import dense
from xlnet_jax.settings.config import ModelConfig

ATTENTION_WEIGHTS = "attention_weights"
"""Name of the collection that holds the attention weights of every layer."""

SOWN = ("intermediates", "keys_values", ATTENTION_WEIGHTS)
"""Names of the collections that layers sow."""

NORM_STATISTICS, ATTENTION = "norm_statistics", "attention_sum"
FEED_FORWARD, INNER = "feed_forward_sum", "feed_forward_inner"
"""Names of arrays that remat policies save: mean and 1 / deviation of each row, the inputs of both norms, and the input
of the feed-forward activation."""


class Outputs(NamedTuple):
    """Hidden states of both streams, and the memory of the next window."""

    content_BLD: Any  # jnp.ndarray; None = not computed (`needs_content`)
    query_BPD: jnp.ndarray | None
    new_mems_ZBMD: jnp.ndarray


def partitioned_param(
    module: nn.Module, name: str, shape: tuple[int, ...], axes: tuple[str | None, ...], std: float
) -> Any:
    """Create a float32 parameter drawn from a normal, with a logical name for each of its axes."""
    return module.param(name, nn.with_logical_partitioning(nn.initializers.normal(std), axes), shape, jnp.float32)


def partitioned_zeros(module: nn.Module, name: str, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> Any:
    """Create a float32 parameter of zeros, with a logical name for each of its axes."""
    return module.param(name, nn.with_logical_partitioning(nn.initializers.zeros, axes), shape, jnp.float32)


def projection_DNH(module: nn.Module, name: str, config: ModelConfig, std: float | None = None) -> jnp.ndarray:
    """Create the projection of rows to heads, or back, in the compute type. std: of the initializer, None =
    config.init_std."""
    shape, std = (config.d_model, config.num_heads, config.d_head), config.init_std if std is None else std
    return in_compute_type(partitioned_param(module, name, shape, ("embed", "heads", "head_dim"), std), config)


def is_unrolled(config: ModelConfig) -> bool:
    """Return True if every layer is compiled, and not a loop over layers.

    A loop copies all that the backward pass needs into arrays of all layers, and out of them again. On TPUs that takes
    longer than computing it again. On GPUs a loop is faster, and on CPUs jaxlib 0.10.2 computes some Jacobians wrongly
    without one.
    """
    return config.remat == "dots" and platform() == TPU


def in_compute_type(weights: Any, config: ModelConfig) -> jnp.ndarray:
    """Return weights in the compute type. Without a loop over layers they are stored in it: XLA would convert them in
    each product."""
    return stored(weights.astype(config.dtype)) if is_unrolled(config) else weights.astype(config.dtype)


# The gradient of a parameter that many tokens use is a sum over them. A bfloat16 sum stops growing after a few hundred
# terms, so look_up and add_to_rows keep such a parameter in float32 until a token uses it.


def look_up(table_VD: Any, ids: jnp.ndarray, config: ModelConfig) -> jnp.ndarray:
    """Return the rows of a float32 table at these ids, int32, in the compute type."""
    return table_VD[ids].astype(config.dtype)


def add_to_rows(rows: jnp.ndarray, parameter: Any) -> jnp.ndarray:
    """Return rows plus a float32 parameter shared by all of them, in the type of the rows."""
    return (rows.astype(jnp.float32) + parameter).astype(rows.dtype)


@jax.custom_vjp
def stored(x: jnp.ndarray) -> jnp.ndarray:
    """Return x, computed once. XLA would compute it again for each product of which it is an operand."""
    return jax.lax.optimization_barrier(x)


stored.defvjp(lambda x: (stored(x), None), lambda _, grad: (grad,))


@jax.custom_vjp
def store_gradient(x: jnp.ndarray) -> jnp.ndarray:
    """Return x, and have its gradient computed once. XLA would compute it again for each block of the products of which
    it is an operand."""
    return x


store_gradient.defvjp(lambda x: (x, None), lambda _, grad: (jax.lax.optimization_barrier(grad),))


class Dense(nn.Module):
    """W x + b, with a kernel of these logical axes. std: of the kernel's initializer, None = config.init_std."""

    config: ModelConfig
    features: int
    axes: tuple[str | None, str | None]
    use_bias: bool = True
    std: float | None = None

    @nn.compact
    def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
        c, shape = self.config, (x.shape[-1], self.features)
        std = c.init_std if self.std is None else self.std
        kernel = in_compute_type(partitioned_param(self, "kernel", shape, self.axes, std), c)
        product = store_gradient(dense(x.astype(c.dtype), kernel))
        if not self.use_bias:
            return product
        bias = partitioned_zeros(self, "bias", shape[1:], self.axes[1:])
        return add_to_rows(product, jnp.expand_dims(bias, range(x.ndim - 1)))


def take_rows_BPD(hidden_BLD: jnp.ndarray, at_BP: jnp.ndarray) -> jnp.ndarray:
    """Return the rows at these positions, int32."""
    hidden_BPD = jnp.take_along_axis(hidden_BLD, at_BP[:, :, None], axis=1)
    return nn.with_logical_constraint(hidden_BPD, ("batch", "length", "width"))


@jax.named_scope("vocabulary")
def tied_logits_BPV(hidden_BPD: jnp.ndarray, embedding_VD: Any, bias_V: jnp.ndarray) -> jnp.ndarray:
    """Return float32 logits of all pieces; the output matrix is the embedding."""
    table_VD = nn.with_logical_constraint(embedding_VD.astype(hidden_BPD.dtype), ("vocab", "width"))
    return einsum_float32("BPD,VD->BPV", hidden_BPD, table_VD) + bias_V[None, None]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def normalize(x: jnp.ndarray, scale_D: Any, bias_D: Any, eps: float) -> jnp.ndarray:
    """Return x, normalized over its last axis in float32, in its own type (Ba et al. 2016, "Layer Normalization").

    The backward pass needs two passes over x: one for all sums, and one for the gradient of x.
    """
    return _normalize(x, scale_D, bias_D, eps)[0]


def _normalize(x: jnp.ndarray, scale_D: Any, bias_D: Any, eps: float) -> tuple[jnp.ndarray, tuple[Any, ...]]:
    rows = x.astype(jnp.float32)
    mean = rows.mean(-1)
    # E[x^2] - mean^2 needs no second pass, but loses about 2^-23 mean^2. That is nothing beside the rounding of
    # bfloat16 elements, which adds a variance of 2^-18 mean^2 / 3; a variance far below that is only rounding.
    is_rounded = x.dtype == jnp.bfloat16
    variance = jnp.square(rows if is_rounded else rows - mean[..., None]).mean(-1)
    if is_rounded:
        variance = jnp.maximum(variance - mean * mean, 2.0**-20 * mean * mean)
    mean, rstd = (checkpoint_name(a, NORM_STATISTICS) for a in (mean, jax.lax.rsqrt(variance + eps)))
    scale, bias = (jnp.expand_dims(a_D, range(x.ndim - 1)) for a_D in (scale_D, bias_D))
    y = (rows - mean[..., None]) * (rstd[..., None] * scale) + bias
    return y.astype(x.dtype), (x, scale, mean, rstd)


def _normalize_backward(eps: float, saved: tuple[Any, ...], grad: jnp.ndarray) -> tuple[jnp.ndarray, ...]:
    x, scale, mean, rstd = saved
    grad, rstd = grad.astype(jnp.float32), rstd[..., None]
    z, rows = (x.astype(jnp.float32) - mean[..., None]) * rstd, tuple(range(x.ndim - 1))
    grad_z = grad * scale
    means = [a.mean(-1, keepdims=True) for a in (grad_z, grad_z * z)]
    grad_x = rstd * (grad_z - means[0] - z * means[1])
    return grad_x.astype(x.dtype), (grad * z).sum(rows), grad.sum(rows)


normalize.defvjp(_normalize, _normalize_backward)


class LayerNorm(nn.Module):
    """Layer normalization with its parameters."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
        ones = nn.with_logical_partitioning(nn.initializers.ones, ("embed",))
        scale_D = self.param("scale", ones, x.shape[-1:], jnp.float32)
        bias_D = partitioned_zeros(self, "bias", x.shape[-1:], ("embed",))
        return normalize(x, scale_D, bias_D, self.config.layer_norm_eps)


class Norm(nn.Module):
    """Layer normalization in float32. Its parameters are one level further down, as in all checkpoints."""

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden_BTD: jnp.ndarray) -> jnp.ndarray:
        return LayerNorm(self.config)(hidden_BTD).astype(self.config.dtype)


class Dropout(nn.Module):
    """In training, zero a share of the elements and scale up the others; needs the rng "dropout"."""

    rate: float
    train: bool

    @nn.compact
    def __call__(self, x: jnp.ndarray, example_B: jnp.ndarray, row_T: jnp.ndarray | None = None) -> jnp.ndarray:
        """x: float [B, …, features]; example_B: int32, index of each example in the global batch; row_T: int32, numbers
        of the rows in the axes between (None = in order)."""
        if not self.train or self.rate == 0:
            return x
        rows, width = math.prod(x.shape[1:-1]), x.shape[-1]
        mask_BTD = hidden_mask_BTD(self.make_rng("dropout"), example_B, self.rate, rows, width, row_T)
        return jnp.where(mask_BTD.reshape(x.shape), x / (1.0 - self.rate), 0)


ACTIVATIONS: dict[str, Callable[[jnp.ndarray], jnp.ndarray]] = {
    "gelu": functools.partial(nn.gelu, approximate=True),
    "gelu_erf": functools.partial(nn.gelu, approximate=False),
    "relu": nn.relu,
}


class FeedForward(nn.Module):
    """norm(x + W2 act(W1 x)), or x + W2 act(W1 norm(x)) with config.norm "pre" (`positionwise_ffn`).

    inner_dropout: dropout rate on the output of the activation.
    """

    config: ModelConfig
    inner_dropout: float
    train: bool

    @nn.compact
    def __call__(self, rows_BTD: jnp.ndarray, example_B: jnp.ndarray, row_T: jnp.ndarray | None = None) -> jnp.ndarray:
        """row_T: int32, row numbers for dropout; None = in order."""
        c = self.config
        norm, is_pre = Norm(c, name="norm"), c.norm == "pre"
        inner = Dense(c, c.d_ff, ("embed", "mlp"), name="inner")
        inner_BTF = checkpoint_name(inner(norm(rows_BTD) if is_pre else rows_BTD), INNER)
        inner_BTF = ACTIVATIONS[c.activation](inner_BTF)
        inner_BTF = Dropout(self.inner_dropout, self.train)(inner_BTF, example_B, row_T)
        out_BTD = Dense(c, c.d_model, ("mlp", "embed"), std=c.output_std, name="outer")(inner_BTF)
        rows_BTD = rows_BTD + Dropout(c.dropout, self.train)(out_BTD, example_B, row_T)
        return rows_BTD if is_pre else norm(checkpoint_name(rows_BTD, FEED_FORWARD))


# Attention's output and, in the fused kernel, its softmax statistics: saving them avoids a second forward pass. So does
# the sum after the feed-forward block for its second product.
_SAVED = ("read_BNTH", "softmax_BST", FEED_FORWARD, NORM_STATISTICS)
_SAVE_ATTENTION = jax.checkpoint_policies.save_only_these_names(*_SAVED)
_REMAT_POLICIES = {
    "full": None,
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.checkpoint_dots, jax.checkpoint_policies.save_only_these_names(*_SAVED, ATTENTION)
    ),
    "feed_forward": jax.checkpoint_policies.save_only_these_names(*_SAVED, INNER),
    "attention": _SAVE_ATTENTION,
}


def rematerialized(layer: Any, config: ModelConfig) -> Any:
    """Return a layer, a class or a function, whose backward pass computes again what config.remat does not save."""
    if config.remat == "none":
        return layer
    # Without a loop, XLA may merge what is computed twice. Preventing it takes longer and saves no memory.
    remat = nn.remat if isinstance(layer, type) else jax.checkpoint
    return remat(layer, prevent_cse=False, policy=_REMAT_POLICIES[config.remat])


def scan_layers(layer: Any, config: ModelConfig, in_axes: Any) -> Any:
    """Return the class of config.num_layers layers under one scan, rematerialized according to config.remat. With
    config.share_layers "all" they use one set of parameters, without a layer axis.

    in_axes: axes of a layer's arguments besides its rows. The collections `SOWN` get a leading layer axis.
    """
    by_layer: dict[Any, Any] = dict.fromkeys(SOWN, 0)
    shares_all = config.share_layers == "all"
    if not shares_all:
        by_layer["params"] = 0
    return nn.scan(
        rematerialized(layer, config),
        variable_axes=by_layer,
        variable_broadcast="params" if shares_all else False,
        split_rngs={"params": not shares_all, "dropout": True},
        in_axes=in_axes,
        length=config.num_layers,
        unroll=config.num_layers if is_unrolled(config) else 1,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )

"""What the layers of all networks are made of; parameters carry logical axis names, and `training/sharding.py` says
what they mean on a mesh."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.models.attention import attention_BNTH, kept, product
from xlnet_jax.settings.config import ModelConfig


class Outputs(NamedTuple):
    """What a network gives: both streams and the memory of the next window."""

    content_BLD: jnp.ndarray
    query_BPD: jnp.ndarray | None
    new_mems_ZBMD: jnp.ndarray


def partitioned_param(
    module: nn.Module, name: str, shape: tuple[int, ...], axes: tuple[str | None, ...], std: float
) -> Any:
    """A float32 parameter, normal, with a logical name for each of its axes."""
    return module.param(name, nn.with_logical_partitioning(nn.initializers.normal(std), axes), shape, jnp.float32)


def partitioned_dense(
    config: ModelConfig, name: str | None, features: int, axes: tuple[str | None, str | None], use_bias: bool = True
) -> nn.Dense:
    """A dense layer whose kernel has these logical axes; name: None in `setup`, where the attribute names it."""
    return nn.Dense(
        features,
        use_bias=use_bias,
        dtype=jnp.dtype(config.dtype),
        kernel_init=nn.with_logical_partitioning(nn.initializers.normal(config.init_std), axes),
        bias_init=nn.with_logical_partitioning(nn.initializers.zeros, axes[1:]),
        name=name,
    )


def tied_table_VD(embedding_VD: Any, config: ModelConfig) -> jnp.ndarray:
    """An embedding of pieces in the compute type: looked up in, and scored by."""
    return nn.with_logical_constraint(embedding_VD.astype(config.dtype), ("vocab", "width"))


def tied_logits_BPV(hidden_BPD: jnp.ndarray, table_VD: jnp.ndarray, bias_V: jnp.ndarray) -> jnp.ndarray:
    """Scores of all pieces by the embedding itself, float32."""
    return product("BPD,VD->BPV", hidden_BPD, table_VD) + bias_V[None, None]


class Norm(nn.Module):
    """Layer normalisation in float32."""

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden_BTD: jnp.ndarray) -> jnp.ndarray:
        norm = nn.LayerNorm(
            epsilon=self.config.layer_norm_eps,
            dtype=jnp.float32,
            use_fast_variance=False,
            scale_init=nn.with_logical_partitioning(nn.initializers.ones, ("embed",)),
            bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ("embed",)),
        )
        return norm(hidden_BTD).astype(self.config.dtype)


class Dropout(nn.Module):
    """In training, zeros a share of the elements and scales up the others (`kept`); takes the rng "dropout"."""

    rate: float
    train: bool

    @nn.compact
    def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
        if not self.train or self.rate == 0:
            return x
        return jnp.where(kept(self.make_rng("dropout"), self.rate, x.shape), x / (1.0 - self.rate), 0)


def dropped_attention_BNTH(
    module: nn.Module,
    rate: float,
    query_BNTH: jnp.ndarray,
    key_BNKH: jnp.ndarray,
    value_BNKH: jnp.ndarray,
    masked_BTK: jnp.ndarray,
    **terms: jnp.ndarray | None,
) -> jnp.ndarray:
    """`attention_BNTH` that drops this share of its probabilities, by the module's rng "dropout"; the others are scaled
    up."""
    if rate == 0:
        return attention_BNTH(query_BNTH, key_BNKH, value_BNKH, masked_BTK, None, **terms)
    left_BNTK = kept(module.make_rng("dropout"), rate, (*query_BNTH.shape[:3], key_BNKH.shape[2]))
    return attention_BNTH(query_BNTH, key_BNKH, value_BNKH, masked_BTK, left_BNTK, **terms) / (1.0 - rate)


ACTIVATIONS: dict[str, Callable[[jnp.ndarray], jnp.ndarray]] = {
    "gelu": functools.partial(nn.gelu, approximate=True),
    "gelu_erf": functools.partial(nn.gelu, approximate=False),
    "relu": nn.relu,
}


class FeedForward(nn.Module):
    """norm(x + W2 act(W1 x)), or x + W2 act(W1 norm(x)) with config.norm "pre" (`positionwise_ffn`).

    inner_dropout: rate on what the activation gives.
    """

    config: ModelConfig
    inner_dropout: float
    train: bool

    @nn.compact
    def __call__(self, rows_BTD: jnp.ndarray) -> jnp.ndarray:
        c = self.config
        norm, is_pre = Norm(c, name="norm"), c.norm == "pre"
        inner = partitioned_dense(c, "inner", c.d_ff, ("embed", "mlp"))
        inner_BTF = ACTIVATIONS[c.activation](inner(norm(rows_BTD) if is_pre else rows_BTD))
        inner_BTF = Dropout(self.inner_dropout, self.train)(inner_BTF)
        out_BTD = partitioned_dense(c, "outer", c.d_model, ("mlp", "embed"))(inner_BTF)
        rows_BTD = rows_BTD + Dropout(c.dropout, self.train)(out_BTD)
        return rows_BTD if is_pre else norm(rows_BTD)


_REMAT_POLICIES = {
    "full": None,
    "dots": jax.checkpoint_policies.checkpoint_dots,
    "attention": jax.checkpoint_policies.save_only_these_names("read_BNTH"),
}


def stacked(layer: Any, config: ModelConfig, in_axes: Any) -> Any:
    """A class of config.num_layers such layers under one scan, computed again on the way back as config.remat says; of
    one layer so many times with config.share_layers, whose parameters have no axis of layers then. in_axes: of what a
    layer takes besides its rows."""
    by_layer: dict[Any, Any] = {"intermediates": 0} if config.share_layers else {"params": 0, "intermediates": 0}
    if config.remat != "none":
        layer = nn.remat(layer, prevent_cse=False, policy=_REMAT_POLICIES[config.remat])
    return nn.scan(
        layer,
        variable_axes=by_layer,
        variable_broadcast="params" if config.share_layers else False,
        split_rngs={"params": not config.share_layers, "dropout": True},
        in_axes=in_axes,
        length=config.num_layers,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )

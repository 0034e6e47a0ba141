"""Forward passes of the encoder: pooled hidden states, and the attention weights of all layers."""

import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.tokenizer import CLS
from xlnet_jax.dims import CLS_SEGMENT
from xlnet_jax.inference.log_probs import QueryBatch, query_inputs
from xlnet_jax.models.heads import build_encoder
from xlnet_jax.models.inputs import Inputs, compact_inputs, text_inputs
from xlnet_jax.models.layers import ATTENTION_WEIGHTS
from xlnet_jax.models.masks import memory_in_use_BM
from xlnet_jax.settings.config import ModelConfig


class Segment(NamedTuple):
    """One segment of each of some texts, padded; no token sees padding."""

    ids_BL: np.ndarray  # int32
    real_BL: np.ndarray  # int32, 1 = real token
    weights_BL: np.ndarray  # float32, share of each token in the vector of its text


@functools.partial(jax.jit, static_argnums=0)
def pool(
    config: ModelConfig, backbone: Any, segment: Segment, mems_ZBMD: jax.Array | None, filled_B: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Return (weighted sum of the hidden states of each text [B, D], memory for the next segment).

    mems, filled: memory of the segments before, [layers, B, M, D], and how many of its positions hold it, int32 [B];
    None = none.
    """
    ids_BL = jnp.asarray(segment.ids_BL)
    batch = ids_BL.shape[0]
    inputs = compact_inputs(
        ids_BL,
        jnp.where(ids_BL == CLS, CLS_SEGMENT, 0),
        jnp.zeros_like(ids_BL),
        None,
        jnp.zeros(batch, bool),
        jnp.zeros((batch, 0), bool) if filled_B is None else memory_in_use_BM(filled_B, config.mem_len),
        attention_mask_BL=jnp.asarray(segment.real_BL),
    )
    outputs = cast(Any, build_encoder(config).apply({"params": backbone}, inputs, mems_ZBMD))
    hidden_BLD = outputs.content_BLD.astype(jnp.float32)
    return jnp.einsum("BL,BLD->BD", segment.weights_BL, hidden_BLD), outputs.new_mems_ZBMD


@functools.partial(jax.jit, static_argnums=0)
def content_weights(
    config: ModelConfig, backbone: Any, ids_BL: jax.Array, real_BL: jax.Array, segments_BL: jax.Array
) -> jax.Array:
    """Return the attention weights of the content stream, [layers, B, N, L, L]."""
    return _weights_ZBNTK(config, backbone, text_inputs(ids_BL, real_BL, segments_BL))


@functools.partial(jax.jit, static_argnums=0)
def two_stream_weights(config: ModelConfig, backbone: Any, batch: QueryBatch, segments_BL: jax.Array) -> jax.Array:
    """Return the attention weights of both streams, [layers, B, N, L + P, L]: content rows, then query rows."""
    inputs, mems_ZBMD = query_inputs(config, batch, jnp.asarray(segments_BL))
    return _weights_ZBNTK(config, backbone, inputs, mems_ZBMD)[..., 1:]


def _weights_ZBNTK(config: ModelConfig, backbone: Any, inputs: Inputs, *mems: jax.Array) -> jax.Array:
    encoder = cast(Any, build_encoder(config))
    _, sown = encoder.apply({"params": backbone}, inputs, *mems, mutable=[ATTENTION_WEIGHTS])
    (weights_ZBNTK,) = jax.tree.leaves(sown[ATTENTION_WEIGHTS])
    return weights_ZBNTK

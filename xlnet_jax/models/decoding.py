"""Decoding token by token with cached keys and values: the numbers of the ordinary network at a constant cost a token.

A pass has two rows an example: the content row of the token at `position`, whose key and value go into the cache, and
the query row of `target`, the position to be predicted next, which sees them. In a causal network the content row
predicts, and is alone: its target is the position after it. Position p lies in slot p mod K: as text grows to the right
the newest K positions stay, with their keys and values as they were computed. So a row sees what it would see in a
window of its own after a memory of K - 1 positions (Transformer-XL, section 3.2). Sinusoidal positions are places in
one window: they make sense for K positions only.
"""

import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from xlnet_jax.errors import InputError
from xlnet_jax.kernels.arguments import Ranks, Visibility
from xlnet_jax.kernels.numerics import einsum_float32
from xlnet_jax.models.inputs import compact_inputs
from xlnet_jax.models.layers import Norm
from xlnet_jax.models.masks import HIGHEST, LOWEST, causal_span, within
from xlnet_jax.models.positions import distances_R, position_keys_2NRH, signals_2RY
from xlnet_jax.models.xlnet import Layer, LayerCache, Shared, XLNetLM, with_signals
from xlnet_jax.settings.config import ModelConfig


class Cache(NamedTuple):
    """Keys and values of K positions, one array a layer: an axis of layers would be copied in each pass."""

    keys: tuple[jnp.ndarray, ...]  # [G, K, H], G = B x N
    values: tuple[jnp.ndarray, ...]
    position_BK: jnp.ndarray  # int32, the position in each slot, or LOWEST


class Decoder(NamedTuple):
    """Parameters by layer, because slicing them out of the stacked ones would copy them in each pass."""

    params: dict[str, Any]
    layers: tuple[dict[str, Any], ...]
    position_keys: tuple[jnp.ndarray | None, ...]  # [1, N, R, H] a layer; None = not relative


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def prepare(config: ModelConfig, params: dict[str, Any], context: int, ahead: bool) -> Decoder:
    """Return the parameters of an XLNetLM as `prefill` and `advance` take them.

    context: K, positions that the cache holds; ahead: whether rows see positions after their own too, as in a gap.
    Raises InputError for BERT's encoder, which always sees its whole window.
    """
    if config.network == "bert":
        raise InputError(
            "model.positions learned: tokens are written one by one with relative or sinusoidal ones alone"
        )

    def as_computed(path: Any, weight: Any) -> jax.Array:
        is_float32 = any("norm" in str(key) or "bias" in str(key) for key in path)
        return jnp.asarray(weight, jnp.float32 if is_float32 else config.dtype)

    params = jax.tree_util.tree_map_with_path(as_computed, params)
    stacked = params["backbone"]["layers"]
    layers = tuple(jax.tree.map(lambda weight, z=z: weight[z], stacked) for z in range(config.num_layers))
    if config.positions != "relative":
        return Decoder(params, layers, (None,) * len(layers))
    signals = signals_2RY(distances_R(context if ahead else 1, context, config.clamp_len), config.d_model)
    parts = (position_keys_2NRH(signals, layer["attention"]["r"]) for layer in layers)
    # All rows read forwards: add the sine and the cosine part once.
    return Decoder(params, layers, tuple(key_2NRH.sum(0, keepdims=True).astype(config.dtype) for key_2NRH in parts))


def prefill(
    config: ModelConfig, decoder: Decoder, ids_BL: jnp.ndarray, known_BL: jnp.ndarray, target_B: jnp.ndarray, slots: int
) -> tuple[Cache, jnp.ndarray]:
    """Read the given text, every token seeing every other, in one pass of the ordinary network. Return the cache of
    K = slots positions, and float32 logits [B, V] of the target.

    known: bool, which positions hold a token, all below K; target: a position below L that holds none.
    """
    batch, length = ids_BL.shape
    # With same_length a row sees as far back as the memory is long: itself alone, without a memory.
    memory = slots - 1 if config.same_length else 0
    inputs = compact_inputs(
        ids_BL,
        None,  # all of it is one segment
        jnp.zeros_like(ids_BL),
        None if config.is_causal else target_B[:, None],
        jnp.zeros(batch, bool),
        jnp.zeros((batch, memory), bool),
        attention_mask_BL=known_BL,
    )
    mems_ZBMD = jnp.zeros((config.num_layers, batch, memory, config.d_model))
    at_BP = target_B[:, None] - 1 if config.is_causal else None
    (logits_BPV, _), sown = cast(Any, XLNetLM(config).apply)(
        {"params": decoder.params}, inputs, mems_ZBMD, at_BP=at_BP, mutable="keys_values"
    )

    def in_slots(by_layer_ZBNKH: jnp.ndarray) -> tuple[jnp.ndarray, ...]:
        window = by_layer_ZBNKH[:, :, :, memory:].reshape(config.num_layers, -1, length, config.d_head)
        window = jnp.pad(window, ((0, 0), (0, 0), (0, max(slots - length, 0)), (0, 0)))
        return tuple(window[:, :, :slots])

    attention = sown["keys_values"]["backbone"]["layers"]["attention"]
    keys, values = (in_slots(attention[name][0]) for name in ("key_BNKH", "value_BNKH"))
    position_BL = jnp.where(known_BL, jnp.arange(length)[None], LOWEST)
    room = ((0, 0), (0, max(slots - length, 0)))
    position_BK = jnp.pad(position_BL, room, constant_values=LOWEST)[:, :slots]
    return Cache(keys, values, position_BK), logits_BPV[:, 0]


def advance(
    config: ModelConfig,
    decoder: Decoder,
    cache: Cache,
    token_B: jnp.ndarray,
    position_B: jnp.ndarray,
    target_B: jnp.ndarray,
) -> tuple[Cache, jnp.ndarray]:
    """Put a token at its position into the cache, and predict the target: float32 logits [B, V]."""
    batch, slots = cache.position_BK.shape
    slot_B = position_B % slots
    held_BK = cache.position_BK.at[jnp.arange(batch), slot_B].set(position_B)
    backbone = decoder.params["backbone"]
    rows_BTD, query_position_B1 = backbone["word_embedding"][token_B][:, None], None
    if config.positions == "sinusoidal":
        rows_BTD = with_signals(rows_BTD, position_B[:, None])
    if not config.is_causal:
        query_position_B1 = target_B[:, None]
        mask_embedding_B1D = jnp.broadcast_to(backbone["mask_embedding"][None, None], rows_BTD.shape)
        rows_BTD = jnp.concatenate([rows_BTD, mask_embedding_B1D], axis=1)
    key_rank_BK = jnp.where(held_BK == LOWEST, HIGHEST, LOWEST)
    shared = Shared(
        Visibility(Ranks(jnp.zeros(rows_BTD.shape[:2], jnp.int32), key_rank_BK)),
        jnp.arange(batch),
        position_B[:, None],
        query_position_B1,
        held_BK,
        is_reversed_B=None,
        tied_biases_3NH=backbone.get("biases"),
    )
    if config.attn_type == "uni":
        span = causal_span(shared.row_position_BT, held_BK, slots - 1 if config.same_length else None)
        shared = shared._replace(visibility=within(shared.visibility, span))

    layer = Layer(config, reuse_len=0, train=False, implementation="few_rows")
    caches = []
    for params, position_key_2NRH, key_GKH, value_GKH in zip(
        decoder.layers, decoder.position_keys, cache.keys, cache.values, strict=True
    ):
        past = LayerCache(key_GKH, value_GKH, slot_B, position_key_2NRH)
        rows_BTD, new = cast(Any, layer.apply({"params": params}, rows_BTD, past, shared))
        caches.append(new)
    if config.norm == "pre":
        rows_BTD = cast(Any, Norm(config).apply({"params": backbone["norm"]}, rows_BTD))
    logits_B1V = einsum_float32("BTD,VD->BTV", rows_BTD[:, -1:], backbone["word_embedding"])
    new_cache = Cache(tuple(c.key_GKH for c in caches), tuple(c.value_GKH for c in caches), held_BK)
    return new_cache, logits_B1V[:, 0] + decoder.params["output_bias"][None]

"""One token after the other, with cached keys and values: the numbers of the ordinary network at a constant cost.

A pass has two rows an example: the content row of the token at `position`, whose keys and values go into the cache, and
the query row of `target`, the position to be predicted next, which sees them. Of a causal network the content row
predicts, and is alone: its target is the position behind it. Position p lies in slot p mod C: of text
that grows to the right, the newest C positions stay, and their keys and values as they were computed. So a row sees
what it would see in a window of its own behind a memory of C - 1 positions (Transformer-XL, section 3.2). Sinusoidal
positions are places in one window: what they mean ends with C.
"""

import dataclasses
import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from xlnet_jax.errors import InputError
from xlnet_jax.models.attention import MASKED, attend_BNTH, product
from xlnet_jax.models.inputs import compact_inputs
from xlnet_jax.models.layers import FeedForward, Norm
from xlnet_jax.models.positions import distances_R, signals_2RF
from xlnet_jax.models.xlnet import XLNetLM, with_signals
from xlnet_jax.settings.config import ModelConfig

EMPTY = -(2**30)


class Cache(NamedTuple):
    """Keys and values of C positions, an array a layer: E = B x N, as products with them want it."""

    keys: tuple[jnp.ndarray, ...]  # [E, C, H]; with an axis more, XLA copies them in each pass
    values: tuple[jnp.ndarray, ...]
    position_BC: jnp.ndarray  # int32, what each slot holds, or EMPTY


class Decoder(NamedTuple):
    """Parameters as passes of few rows want them: a layer by itself, as a slice of all would be copied in each pass."""

    params: dict[str, Any]
    layers: tuple[dict[str, Any], ...]
    position_keys: tuple[jnp.ndarray, ...] | None  # [N, R, H] a layer, by distance: from C down; None = not relative


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def prepare(config: ModelConfig, params: dict[str, Any], context: int, ahead: bool) -> Decoder:
    """params: of XLNetLM; context: C, positions that are kept; ahead: whether rows look at positions behind their own
    too, as in a gap. InputError with learned positions: BERT's encoder sees all of its window always."""
    if config.positions == "learned":
        raise InputError(
            "model.positions learned: tokens are written one by one with relative or sinusoidal ones alone"
        )

    def as_computed(path: Any, weight: Any) -> jax.Array:
        is_float32 = any("norm" in str(key) or "output_bias" in str(key) for key in path)
        return jnp.asarray(weight, jnp.float32 if is_float32 else config.dtype)

    params = jax.tree_util.tree_map_with_path(as_computed, params)
    layers = tuple(_layer(params["backbone"]["layers"], z) for z in range(config.num_layers))
    if config.positions != "relative":
        return Decoder(params, layers, None)
    signals = signals_2RF(distances_R(context if ahead else 1, context, config.clamp_len), config.d_model)
    signals_RD = jnp.concatenate(list(signals), axis=-1).astype(config.dtype)
    position_keys = tuple(_in_heads_BNTH(config, (signals_RD @ layer["attention"]["r"])[None])[0] for layer in layers)
    return Decoder(params, layers, position_keys)


def _layer(layers: dict[str, Any], z: int) -> dict[str, Any]:
    """With the projections as matrices, [D, E] and [E, D] of E = N x H, or each pass would make them such."""
    layer = jax.tree.map(lambda weight: weight[z], layers)
    weights = layer["attention"]
    matrices_DE = {name: weights[name].reshape(weights[name].shape[0], -1) for name in "qkvro" if name in weights}
    return layer | {"attention": weights | matrices_DE | {"o": matrices_DE["o"].T}}


def prefill(
    config: ModelConfig, decoder: Decoder, ids_BL: jnp.ndarray, known_BL: jnp.ndarray, target_B: jnp.ndarray, slots: int
) -> tuple[Cache, jnp.ndarray]:
    """What is given, every token of it seeing every other, by one pass of the ordinary network: the cache of C = slots
    positions, and float32 logits [B, V] of the target.

    known: bool, which positions hold a token, all below C; target: a position below L that holds none.
    """
    batch, length = ids_BL.shape
    # Who sees as far as the memory is long sees no further than itself where there is none.
    memory = slots - 1 if config.same_length else 0
    inputs = compact_inputs(
        ids_BL,
        None,  # all of it is one segment, and no key of another
        jnp.zeros_like(ids_BL),
        None if config.is_causal else target_B[:, None],
        jnp.zeros(batch, bool),
        jnp.zeros((batch, memory), bool),
        attention_mask_BL=known_BL,
    )
    mems_ZBMD = jnp.zeros((config.num_layers, batch, memory, config.d_model))
    network = XLNetLM(dataclasses.replace(config, mem_len=length))
    at_BP = target_B[:, None] - 1 if config.is_causal else None
    logits_BPV, outputs = cast(Any, network.apply)({"params": decoder.params}, inputs, mems_ZBMD, at_BP=at_BP)

    room = max(slots - length, 0)

    def in_slots_ECH(name: str, layer: dict[str, Any], rows_BLD: jnp.ndarray) -> jnp.ndarray:
        of_rows_BNLH = _in_heads_BNTH(config, rows_BLD @ layer["attention"][name])
        of_rows_ELH = of_rows_BNLH.reshape(-1, *of_rows_BNLH.shape[2:])
        return jnp.pad(of_rows_ELH, ((0, 0), (0, room), (0, 0)))[:, :slots]

    # What becomes memory is the input of each layer.
    by_layer = [
        (layer, _asking(config, layer, mems_BLD))
        for layer, mems_BLD in zip(decoder.layers, outputs.new_mems_ZBMD, strict=True)
    ]
    position_BL = jnp.where(known_BL, jnp.arange(length)[None], EMPTY)
    position_BC = jnp.pad(position_BL, ((0, 0), (0, room)), constant_values=EMPTY)[:, :slots]
    keys, values = (tuple(in_slots_ECH(name, *pair) for pair in by_layer) for name in "kv")
    return Cache(keys, values, position_BC), logits_BPV[:, 0]


def advance(
    config: ModelConfig,
    decoder: Decoder,
    cache: Cache,
    token_B: jnp.ndarray,
    position_B: jnp.ndarray,
    target_B: jnp.ndarray,
) -> tuple[Cache, jnp.ndarray]:
    """Puts a token at its position into the cache, and predicts the target: float32 logits [B, V]."""
    batch, slots = cache.position_BC.shape
    slot_B = position_B % slots
    held_BC = cache.position_BC.at[jnp.arange(batch), slot_B].set(position_B)
    backbone = decoder.params["backbone"]
    rows_BTD, places_BT = backbone["word_embedding"][token_B][:, None], position_B[:, None]
    if config.positions == "sinusoidal":
        rows_BTD = with_signals(rows_BTD, places_BT)
    if not config.is_causal:
        mask_embedding_B1D = jnp.broadcast_to(backbone["mask_embedding"][None, None], rows_BTD.shape)
        rows_BTD = jnp.concatenate([rows_BTD, mask_embedding_B1D], axis=1)
        places_BT = jnp.stack([position_B, target_B], axis=1)
    distance_BTC = places_BT[:, :, None] - held_BC[:, None, :]
    masked_BTC = jnp.where(_visible_BTC(config, distance_BTC, held_BC), 0.0, MASKED)

    keys, values = [], []
    for z, layer in enumerate(decoder.layers):
        weights = layer["attention"]
        asking_BTD = _asking(config, layer, rows_BTD)
        key_BN1H, value_BN1H = (_in_heads_BNTH(config, asking_BTD[:, :1] @ weights[name]) for name in "kv")
        keys.append(_put(cache.keys[z], key_BN1H, slot_B))
        values.append(_put(cache.values[z], value_BN1H, slot_B))
        query_BNTH = _in_heads_BNTH(config, asking_BTD @ weights["q"])
        key_BNCH, value_BNCH = (of[z].reshape(batch, config.num_heads, slots, -1) for of in (keys, values))
        if decoder.position_keys is None:
            scores_BNTC = product("BNTH,BNCH->BNTC", query_BNTH / config.d_head**0.5, key_BNCH)
        else:
            biases_3NH = weights["biases"] if config.untie_r else backbone["biases"]
            scores_BNTC = _scores_BNTC(query_BNTH, key_BNCH, decoder.position_keys[z], distance_BTC, biases_3NH)
        read_BNTH = attend_BNTH(scores_BNTC + masked_BTC[:, None], value_BNCH, None)
        out_BTD = jnp.swapaxes(read_BNTH, 1, 2).reshape(*rows_BTD.shape[:2], -1) @ weights["o"]
        rows_BTD = rows_BTD + out_BTD
        if config.norm == "post":
            rows_BTD = _norm(config, weights, rows_BTD)
        rows_BTD = cast(Any, FeedForward(config, 0.0, False).apply({"params": layer["feed_forward"]}, rows_BTD))
    if config.norm == "pre":
        rows_BTD = _norm(config, backbone, rows_BTD)
    logits_B1V = product("BTD,VD->BTV", rows_BTD[:, -1:], backbone["word_embedding"])
    return Cache(tuple(keys), tuple(values), held_BC), logits_B1V[:, 0] + decoder.params["output_bias"][None]


def _asking(config: ModelConfig, layer: dict[str, Any], rows_BTD: jnp.ndarray) -> jnp.ndarray:
    """What the projections of a layer read of its rows (models/backbone.py)."""
    return _norm(config, layer["attention"], rows_BTD) if config.norm == "pre" else rows_BTD


def _norm(config: ModelConfig, weights: dict[str, Any], rows_BTD: jnp.ndarray) -> jnp.ndarray:
    return cast(Any, Norm(config).apply({"params": weights["norm"]}, rows_BTD))


def _in_heads_BNTH(config: ModelConfig, projected_BTE: jnp.ndarray) -> jnp.ndarray:
    batch, rows, _ = projected_BTE.shape
    return jnp.swapaxes(projected_BTE.reshape(batch, rows, config.num_heads, config.d_head), 1, 2)


def _put(cached_ECH: jnp.ndarray, new_BN1H: jnp.ndarray, slot_B: jnp.ndarray) -> jnp.ndarray:
    """One example after the other: a scatter, which does it at once, copies the cache."""
    batch, heads = new_BN1H.shape[:2]
    for i in range(batch):
        cached_ECH = jax.lax.dynamic_update_slice(cached_ECH, new_BN1H[i], (i * heads, slot_B[i], 0))
    return cached_ECH


def _visible_BTC(config: ModelConfig, distance_BTC: jnp.ndarray, held_BC: jnp.ndarray) -> jnp.ndarray:
    """What the ordinary network's masks let these rows see (models/masks.py)."""
    seen_BTC = jnp.broadcast_to(held_BC[:, None] != EMPTY, distance_BTC.shape)
    if config.attn_type == "uni":
        seen_BTC &= distance_BTC >= 0
        if config.same_length:
            seen_BTC &= distance_BTC < held_BC.shape[1]
    return seen_BTC


def _scores_BNTC(
    query_BNTH: jnp.ndarray,
    key_BNCH: jnp.ndarray,
    position_key_NRH: jnp.ndarray,
    distance_BTC: jnp.ndarray,
    biases_3NH: jnp.ndarray,
) -> jnp.ndarray:
    """As in models/attention.py; so few rows have few enough scores that they are picked by their distance."""
    column_BTC = jnp.clip(key_BNCH.shape[2] - distance_BTC, 0, position_key_NRH.shape[1] - 1)
    r_w, r_r = (biases_3NH[i, None, :, None].astype(query_BNTH.dtype) for i in range(2))
    scale = 1.0 / query_BNTH.shape[-1] ** 0.5
    by_distance_BNTR = product("BNTH,NRH->BNTR", (query_BNTH + r_r) * scale, position_key_NRH)
    position_BNTC = jnp.take_along_axis(by_distance_BNTR, column_BTC[:, None], axis=-1)
    return product("BNTH,BNCH->BNTC", (query_BNTH + r_w) * scale, key_BNCH) + position_BNTC

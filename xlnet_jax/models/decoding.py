"""Decoding in any order, one or several tokens a pass: the numbers of the full network.

With cached keys and values a pass costs the same however long the text is. It has C content rows per example: the
tokens of the last pass at `position`, whose keys and values go into the cache; and P query rows of `target`, the next
positions to predict. Both see everything in the cache, so the tokens of a pass see each other and none that is drawn
later, as tokens of equal rank do in the full network (models/masks.py). A causal network has only the content row,
which predicts the position after it. Position p is in slot p mod K, so the cache keeps the newest K positions, with
keys and values as they were first computed. With one token a pass, a row therefore sees the same as with a memory of
K - 1 positions (Transformer-XL, section 3.2). Sinusoidal positions count within one window, so they work for K
positions only.

A network that predicts masked tokens has no query stream. It reads the whole text again in each pass.
"""

import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from data_pipelines.tokenizer import MASK, PAD
from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import AttentionInputs, Relations, einsum_float32
from xlnet_jax.kernels.products import from_heads_BTD, to_heads_BNTH
from xlnet_jax.models.attention import distances_R, position_keys_2NRH, signals_2RY
from xlnet_jax.models.heads import XLNetLM, build_model
from xlnet_jax.models.inputs import compact_inputs, text_inputs
from xlnet_jax.models.layers import FeedForward, Norm
from xlnet_jax.models.masks import HIGHEST, LOWEST, causal_bounds
from xlnet_jax.models.xlnet import add_signals
from xlnet_jax.settings.config import ModelConfig


class Cache(NamedTuple):
    """Keys and values of K positions, one array per layer: a stacked array would be copied in each pass."""

    keys: tuple[jnp.ndarray, ...]  # [G, K, H], G = B x N
    values: tuple[jnp.ndarray, ...]
    position_BK: jnp.ndarray  # int32, the position in each slot, or LOWEST


class Draft(NamedTuple):
    """A text with <mask> at positions without a token, which masked networks read in place of a cache."""

    ids_BL: jnp.ndarray  # int32
    real_BL: jnp.ndarray  # int32, 0 = padding


class Decoder(NamedTuple):
    """Parameters by layer: slicing stacked ones would copy them in each pass."""

    params: dict[str, Any]
    layers: tuple[dict[str, Any], ...]
    position_keys: tuple[jnp.ndarray | None, ...]  # [1, N, R, H] per layer; None = not relative


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def prepare(config: ModelConfig, params: dict[str, Any], context: int, ahead: bool) -> Decoder:
    """Return the parameters of an XLNetLM in the form that `prefill` and `advance` need.

    context: K, positions that the cache holds; ahead: whether rows also see later positions, as in a gap.
    """

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
    # All rows read forwards, so add the sine and cosine parts once.
    return Decoder(params, layers, tuple(key_2NRH.sum(0, keepdims=True).astype(config.dtype) for key_2NRH in parts))


def prefill(
    config: ModelConfig,
    decoder: Decoder,
    ids_BL: jnp.ndarray,
    known_BL: jnp.ndarray,
    target_BP: jnp.ndarray,
    slots: int,
) -> tuple[Cache, jnp.ndarray]:
    """Read the given text in one pass of the full network, where all tokens see each other. Return the cache of
    K = slots positions, and float32 logits [B, P, V] of the targets.

    known: bool, which positions hold a token, all below K; target: positions below L that hold none, one in a causal
    network.
    """
    batch, length = ids_BL.shape
    # With same_length a row sees mem_len positions back, so without memory it would see only itself.
    memory = slots - 1 if config.same_length else 0
    inputs = compact_inputs(
        ids_BL,
        target_positions_BP=None if config.is_causal else target_BP,
        memory_BM=jnp.zeros((batch, memory), bool),
        attention_mask_BL=known_BL,
    )
    mems_ZBMD = jnp.zeros((config.num_layers, batch, memory, config.d_model))
    at_BP = target_BP - 1 if config.is_causal else None
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
    return Cache(keys, values, position_BK), logits_BPV


def advance(
    config: ModelConfig,
    decoder: Decoder,
    cache: Cache,
    token_BC: jnp.ndarray,
    position_BC: jnp.ndarray,
    target_BP: jnp.ndarray,
) -> tuple[Cache, jnp.ndarray]:
    """Add tokens at their positions to the cache, and predict the targets: float32 logits [B, P, V].

    A token may be given several times, also one that is in the cache: it is computed alike and put into its slot again,
    unless other tokens came between. So padding repeats a token. C must be at most K; in a causal network C = P = 1.
    """
    (batch, slots), targets = cache.position_BK.shape, target_BP.shape[1]
    slot_BC = position_BC % slots
    held_BK = cache.position_BK.at[jnp.arange(batch)[:, None], slot_BC].set(position_BC)
    backbone = decoder.params["backbone"]
    rows_BTD, row_position_BT = backbone["word_embedding"][token_BC], position_BC
    if config.positions == "sinusoidal":
        rows_BTD = add_signals(rows_BTD, row_position_BT)
    if not config.is_causal:
        row_position_BT = jnp.concatenate([position_BC, target_BP], axis=1)
        mask_embedding_BPD = jnp.broadcast_to(
            backbone["mask_embedding"][None, None], (batch, targets, rows_BTD.shape[2])
        )
        rows_BTD = jnp.concatenate([rows_BTD, mask_embedding_BPD], axis=1)
    # The position keys reach K positions back. Of several targets, those further on do not see the oldest slots. Empty
    # slots are further back.
    relations = Relations(key_position_BK=held_BK, query_position_BP=row_position_BT)
    relations = relations.within(row_position_BT - slots, jnp.full_like(row_position_BT, HIGHEST))
    if config.attn_type == "uni":
        relations = relations.within(*causal_bounds(row_position_BT, slots - 1 if config.same_length else None))
    keys, values = [], []
    for weights, position_key_1NRH, key_GKH, value_GKH in zip(
        decoder.layers, decoder.position_keys, cache.keys, cache.values, strict=True
    ):
        biases_3NH = backbone.get("biases", weights["attention"].get("biases"))
        inputs = AttentionInputs(None, key_GKH, value_GKH, relations, biases_3NH, position_key_1NRH)
        rows_BTD, key_GKH, value_GKH = _advance_layer(config, weights, rows_BTD, inputs, slot_BC)
        keys.append(key_GKH)
        values.append(value_GKH)
    if config.norm == "pre":
        rows_BTD = cast(Any, Norm(config).apply({"params": backbone["norm"]}, rows_BTD))
    logits_BPV = einsum_float32("BTD,VD->BTV", rows_BTD[:, -targets:], backbone["word_embedding"])
    return Cache(tuple(keys), tuple(values), held_BK), logits_BPV + decoder.params["output_bias"][None, None]


def mask_all(
    config: ModelConfig,
    decoder: Decoder,
    ids_BL: jnp.ndarray,
    known_BL: jnp.ndarray,
    target_BP: jnp.ndarray,
    slots: int,
) -> tuple[Draft, jnp.ndarray]:
    """Do what `prefill` does with a masked network: return the text to read again, and logits of the targets.

    ids: PAD only after the text and all of its targets; slots: not used.
    """
    draft = Draft(jnp.where(known_BL | (ids_BL == PAD), ids_BL, MASK), (ids_BL != PAD).astype(jnp.int32))
    return draft, _read_BPV(config, decoder, draft, target_BP)


def reread(
    config: ModelConfig,
    decoder: Decoder,
    draft: Draft,
    token_BC: jnp.ndarray,
    position_BC: jnp.ndarray,
    target_BP: jnp.ndarray,
) -> tuple[Draft, jnp.ndarray]:
    """Do what `advance` does with a masked network: put the tokens into the text and read all of it."""
    rows_B1 = jnp.arange(len(token_BC))[:, None]
    draft = draft._replace(ids_BL=draft.ids_BL.at[rows_B1, position_BC].set(token_BC))
    return draft, _read_BPV(config, decoder, draft, target_BP)


def _read_BPV(config: ModelConfig, decoder: Decoder, draft: Draft, target_BP: jnp.ndarray) -> jnp.ndarray:
    inputs = text_inputs(*draft, segment_ids_BL=jnp.zeros_like(draft.ids_BL))
    return cast(Any, build_model(config, None).apply)({"params": decoder.params}, inputs, at_BP=target_BP)[0]


def _advance_layer(
    config: ModelConfig, weights: dict[str, Any], rows_BTD: jnp.ndarray, inputs: AttentionInputs, slot_BC: jnp.ndarray
) -> tuple[jnp.ndarray, jnp.ndarray, jnp.ndarray]:
    """Return the rows after a layer (`xlnet.Layer`), and its cached keys and values updated by the content rows.

    inputs: the attention call with the cached keys and values, without queries."""
    attention, is_pre = weights["attention"], config.norm == "pre"

    def norm(rows_BTD: jnp.ndarray) -> jnp.ndarray:
        return cast(Any, Norm(config).apply({"params": attention["norm"]}, rows_BTD))

    asking_BTD = norm(rows_BTD) if is_pre else rows_BTD
    key_GKH, value_GKH = (
        _put(cached_GKH, to_heads_BNTH(asking_BTD[:, : slot_BC.shape[1]], attention[name]), slot_BC)
        for cached_GKH, name in ((inputs.key_BNKH, "k"), (inputs.value_BNKH, "v"))
    )
    in_heads = (len(rows_BTD), config.num_heads, -1, config.d_head)
    inputs = inputs._replace(
        query_BNTH=to_heads_BNTH(asking_BTD, attention["q"]),
        key_BNKH=key_GKH.reshape(in_heads),
        value_BNKH=value_GKH.reshape(in_heads),
    )
    read_BNTH = plain.attention_BNTH(inputs, _gather_scores_BNTK)
    rows_BTD = rows_BTD + from_heads_BTD(read_BNTH, attention["o"])
    rows_BTD = rows_BTD if is_pre else norm(rows_BTD)
    feed_forward = cast(Any, FeedForward(config, config.dropout, train=False).apply)
    return feed_forward({"params": weights["feed_forward"]}, rows_BTD, jnp.arange(len(rows_BTD))), key_GKH, value_GKH


def _put(cached_GKH: jnp.ndarray, new_BNCH: jnp.ndarray, slot_BC: jnp.ndarray) -> jnp.ndarray:
    # XLA scatters into a donated cache without copying it; one update for each token would take long to compile.
    batch, heads = new_BNCH.shape[:2]
    row_BN1 = jnp.arange(batch * heads).reshape(batch, heads, 1)
    return cached_GKH.at[row_BN1, slot_BC[:, None]].set(new_BNCH)


def _gather_scores_BNTK(query_BNTH: jnp.ndarray, inputs: AttentionInputs) -> jnp.ndarray:
    """Return BD for rows and keys in any order (`plain.PositionScores`), gathered by distance: there are few rows."""
    relations, num_keys, key_2NRH = inputs.relations, inputs.key_BNKH.shape[2], inputs.position_key_2NRH
    distance_BPK = relations.query_position_BP[:, :, None] - relations.key_position_BK[:, None, :]
    # Empty slots of the cache fall outside the table; they are masked.
    column_BPK = jnp.clip(num_keys - distance_BPK, 0, key_2NRH.shape[2] - 1)
    key_NRH = key_2NRH.sum(0).astype(query_BNTH.dtype)
    by_distance_BNTR = einsum_float32("BNTH,NRH->BNTR", query_BNTH, key_NRH)
    return jnp.take_along_axis(by_distance_BNTR, column_BPK[:, None], axis=-1)

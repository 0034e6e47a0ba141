"""Decoding in any order, one or several tokens per pass: the numbers of the full network.

Let S be the positions whose tokens have been read: the prompt, and what was drawn in earlier passes. In layer m (XLNet,
section 2.3), with keys and values of S alone,

    content row   h_i = Attention(query h_i, keys and values h_S), i in S     read a token, and see it
    query row     g_t = Attention(query g_t, keys and values h_S), t not in S predict: knows its position, not its token
                  p(x_t | x_S) = softmax(E g_t + b), after the last layer

These are the rows of the full network in which each token has the rank of its pass (models/masks.py): a row sees no
token of a higher rank. So no keys and values change when tokens are drawn later, and all of them can be cached:

    prefill   one pass of the full network over the prompt, whose tokens see each other: the cache, and the first logits
    decode    C content rows, the tokens of the last pass, write their keys and values into the cache; P query rows, the
              next positions, predict. Its cost does not depend on the length of the text. Given ranks, rows see only
              tokens of lower rank among the C: so one pass verifies tokens that were drawn independently.

Networks differ in one function each. `predicting_rows`: in a network of permutations (plm) query rows predict; a causal
network has none, and the content row before a position predicts it. `decode_masked`: a network that reads <mask> has
neither query rows nor a cache, because all rows see each other and change with every token.

Position p is in slot p mod K, so the cache keeps the newest K positions, with keys and values as they were first
computed. With one token per pass, a row therefore sees the same as with a memory of K - 1 positions (Transformer-XL,
section 3.2). Sinusoidal positions count within one window, so they work for K positions only."""

import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from data_pipelines.tokenizer import PAD
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


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def prepare(
    config: ModelConfig, params: dict[str, Any], context: int, ahead: bool
) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    """Return the parameters of an XLNetLM as they are computed with, for `prefill`, and those of each layer, for
    `decode`: slicing stacked ones would copy them in each pass. With relative positions, the "r" of a layer is not the
    projection, but the position keys [1, N, R, H].

    context: K, positions that the cache holds; ahead: whether rows also see later positions, as in a gap.
    """

    def as_computed(path: Any, weight: Any) -> jax.Array:
        is_float32 = any("norm" in str(key) or "bias" in str(key) for key in path)
        return jnp.asarray(weight, jnp.float32 if is_float32 else config.dtype)

    params = jax.tree_util.tree_map_with_path(as_computed, params)
    stacked = params["backbone"]["layers"]
    layers = tuple(jax.tree.map(lambda weight, z=z: weight[z], stacked) for z in range(config.num_layers))
    if config.positions == "relative":
        signals = signals_2RY(distances_R(context if ahead else 1, context, config.clamp_len), config.d_model)
        for layer in layers:
            key_2NRH = position_keys_2NRH(signals, layer["attention"]["r"])
            # All rows read forwards, so add the sine and cosine parts once.
            layer["attention"]["r"] = key_2NRH.sum(0, keepdims=True).astype(config.dtype)
    return params, layers


def predicting_rows(config: ModelConfig, target_BP: jnp.ndarray) -> tuple[jnp.ndarray | None, jnp.ndarray | None]:
    """Return the positions of the query rows that predict these targets or, for a causal network, of the content rows
    that do; and None for the other kind."""
    return (None, target_BP - 1) if config.is_causal else (target_BP, None)


def prefill(
    config: ModelConfig,
    params: dict[str, Any],
    ids_BL: jnp.ndarray,
    target_BP: jnp.ndarray,
    slots: int,
    segment_BS: jnp.ndarray | None = None,
    rank_BL: jnp.ndarray | None = None,
) -> tuple[Cache, jnp.ndarray]:
    """Read the given text in one pass of the full network, where all tokens see each other or, in a causal network,
    those before them; with ranks, those of at most their own. Return the cache of K = slots positions, and float32
    logits [B, P, V] of the targets.

    ids: PAD where there is no token; all tokens are below position K. target: positions below L without a token, one in
    a causal network. segment: of each position, at least L; None = all tokens are in one segment.
    """
    (batch, length), known_BL = ids_BL.shape, ids_BL != PAD
    # With same_length a row sees mem_len positions back, so without memory it would see only itself.
    memory = slots - 1 if config.same_length else 0
    query_BP, content_BP = predicting_rows(config, target_BP)
    inputs = compact_inputs(
        ids_BL,
        segment_ids_BL=None if segment_BS is None else segment_BS[:, :length],
        perm_rank_BL=rank_BL,
        target_positions_BP=query_BP,
        memory_BM=jnp.zeros((batch, memory), bool),
        attention_mask_BL=known_BL,
    )
    mems_ZBMD = jnp.zeros((config.num_layers, batch, memory, config.d_model))
    (logits_BPV, _), sown = cast(Any, XLNetLM(config).apply)(
        {"params": params}, inputs, mems_ZBMD, at_BP=content_BP, mutable="keys_values"
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


def decode(
    config: ModelConfig,
    params: dict[str, Any],
    layers: tuple[dict[str, Any], ...],
    cache: Cache,
    token_BC: jnp.ndarray,
    position_BC: jnp.ndarray,
    target_BP: jnp.ndarray,
    segment_BS: jnp.ndarray | None = None,
    ranks: tuple[jnp.ndarray, jnp.ndarray] | None = None,
) -> tuple[Cache, jnp.ndarray]:
    """Add tokens at their positions to the cache, and predict the targets: float32 logits [B, P, V].

    ranks: of the tokens, int32 [B, C], and of the targets [B, P]. A token sees itself and tokens of lower rank, and a
    target tokens of lower rank; both see all that the cache holds. None = all see all of the tokens.

    params, layers: of `prepare`. A token may be given several times, also one that is in the cache: it is computed
    alike and put into its slot again, unless other tokens came between. So padding repeats a token. C must be at most
    K; in a causal network C = P = 1. segment: as in `prefill`, at least K; a text with segments is no longer than K.
    """
    (batch, slots), targets = cache.position_BK.shape, target_BP.shape[1]
    slot_BC = position_BC % slots
    held_BK = cache.position_BK.at[jnp.arange(batch)[:, None], slot_BC].set(position_BC)
    backbone = params["backbone"]
    rows_BTD, row_position_BT = backbone["word_embedding"][token_BC], position_BC
    if config.positions == "sinusoidal":
        rows_BTD = add_signals(rows_BTD, row_position_BT)
    query_BP, _ = predicting_rows(config, target_BP)
    if query_BP is not None:
        row_position_BT = jnp.concatenate([position_BC, query_BP], axis=1)
        query_BPD = jnp.broadcast_to(backbone["mask_embedding"][None, None], (batch, targets, rows_BTD.shape[2]))
        rows_BTD = jnp.concatenate([rows_BTD, query_BPD], axis=1)
    # The position keys reach K positions back. Of several targets, those further on do not see the oldest slots. Empty
    # slots are further back.
    relations = Relations(key_position_BK=held_BK, query_position_BP=row_position_BT)
    relations = relations.within(row_position_BT - slots, jnp.full_like(row_position_BT, HIGHEST))
    if ranks is not None:
        rank_BC, rank_BP = ranks
        key_rank_BK = jnp.full_like(held_BK, LOWEST).at[jnp.arange(batch)[:, None], slot_BC].set(2 * rank_BC)
        row_rank_BT = jnp.concatenate([2 * rank_BC, 2 * rank_BP - 1], axis=1)
        relations = relations._replace(row_rank_BT=row_rank_BT, key_rank_BK=key_rank_BK)
    if segment_BS is not None:
        row_segment_BT = jnp.take_along_axis(segment_BS, row_position_BT, axis=1)
        relations = relations._replace(row_segment_BT=row_segment_BT, key_segment_BK=segment_BS[:, :slots])
    if config.attn_type == "uni":
        relations = relations.within(*causal_bounds(row_position_BT, slots - 1 if config.same_length else None))
    keys, values = [], []
    for weights, key_GKH, value_GKH in zip(layers, cache.keys, cache.values, strict=True):
        biases_3NH = backbone.get("biases", weights["attention"].get("biases"))
        r, segment_key_2NH = weights["attention"].get("r"), None
        if segment_BS is not None:
            segment_key_2NH = weights["attention"]["segment_embedding"]
        inputs = AttentionInputs(None, key_GKH, value_GKH, relations, biases_3NH, r, segment_key_2NH)
        rows_BTD, key_GKH, value_GKH = _decode_layer(config, weights, rows_BTD, inputs, slot_BC)
        keys.append(key_GKH)
        values.append(value_GKH)
    if config.norm == "pre":
        rows_BTD = cast(Any, Norm(config).apply({"params": backbone["norm"]}, rows_BTD))
    logits_BPV = einsum_float32("BTD,VD->BTV", rows_BTD[:, -targets:], backbone["word_embedding"])
    return Cache(tuple(keys), tuple(values), held_BK), logits_BPV + params["output_bias"][None, None]


def decode_masked(
    config: ModelConfig,
    params: dict[str, Any],
    ids_BL: jnp.ndarray,
    token_BC: jnp.ndarray,
    position_BC: jnp.ndarray,
    target_BP: jnp.ndarray,
) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Put tokens into a text with <mask> at its open positions and read all of it. Return the text, and float32 logits
    [B, P, V] of the targets. To read the text as it is, give tokens that it has.

    ids: PAD only after the text and all of its targets.
    """
    ids_BL = ids_BL.at[jnp.arange(len(token_BC))[:, None], position_BC].set(token_BC)
    inputs = text_inputs(ids_BL, (ids_BL != PAD).astype(jnp.int32), jnp.zeros_like(ids_BL))
    network = cast(Any, build_model(config, None))
    return ids_BL, network.apply({"params": params}, inputs, at_BP=target_BP)[0]


def forget(cache: Cache, position_BC: jnp.ndarray, is_wrong_BC: jnp.ndarray) -> Cache:
    """Return the cache without the tokens at these positions that are wrong: their slots are empty."""
    batch, slots = cache.position_BK.shape
    slot_BC = jnp.where(is_wrong_BC, position_BC % slots, slots)  # outside of the cache: not written
    empty_BK = cache.position_BK.at[jnp.arange(batch)[:, None], slot_BC].set(LOWEST, mode="drop")
    return cache._replace(position_BK=empty_BK)


@functools.partial(jax.jit, static_argnums=0, inline=True)  # traced once for all layers
def _decode_layer(
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

"""Compute relative attention of both streams in plain XLA: the reference for the fused kernels (XLNet, section 2.3;
Transformer-XL, section 3.3; `rel_attn_core` of modeling.py). models/attention.py has the projections around it.

    AC     = (q + r_w) k
    BD     = shift((q + r_r) r)
    EF     = (q + r_s) s_same   or, if row and key are in different segments,   (q + r_s) s_other
    output = dropout(softmax((AC + BD + EF) / sqrt(H), masked)) v

Both streams share keys and values, so their rows are computed together: T = L content rows, then P query rows at the
target positions. They differ in their masks and in the relative shift. Without BD and EF this is the attention of a
network with absolute positions.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from xlnet_jax.kernels.arguments import MASKED, AttentionInputs, einsum_float32
from xlnet_jax.kernels.dropout import attention_mask_BNTK
from xlnet_jax.kernels.mesh import CPU, platform
from xlnet_jax.kernels.products import product_BNTK, sum_rows_BNKH

PositionScores: TypeAlias = Callable[[jnp.ndarray, AttentionInputs], jnp.ndarray]
"""Function that returns BD, float32 [B, N, T, K], from (q + r_r) / sqrt(H) and the arguments of the call."""


@jax.named_scope("position_scores")
def shift_scores_BNTK(query_BNTH: jnp.ndarray, inputs: AttentionInputs) -> jnp.ndarray:
    """Return BD of a window (`PositionScores`): products by distance, shifted to the keys."""
    key_BNRH, num_keys = direct_keys_BNRH(inputs), inputs.key_BNKH.shape[2]
    targets = inputs.relations.num_targets
    content = query_BNTH.shape[2] - targets
    if platform() == CPU:
        start_BT = jnp.broadcast_to(inputs.num_places - jnp.arange(content)[None], (query_BNTH.shape[0], content))
        if targets:
            start_BT = jnp.concatenate([start_BT, inputs.num_places - inputs.relations.query_position_BP], axis=1)
        return take_columns_BNTK(product_BNTK(query_BNTH, key_BNRH), start_BT, num_keys)
    scores = []
    if content:
        by_distance_BNLR = einsum_float32("BNTH,BNRH->BNTR", query_BNTH[:, :, :content], key_BNRH)
        scores.append(shift_content_BNLK(by_distance_BNLR, num_keys))
    if targets:
        by_distance_BNPR = einsum_float32("BNTH,BNRH->BNTR", query_BNTH[:, :, content:], key_BNRH)
        scores.append(shift_query_BNPK(by_distance_BNPR, inputs.relations.query_position_BP, num_keys))
    with jax.named_scope("relative_shift"):
        return scores[0] if len(scores) == 1 else jnp.concatenate(scores, axis=2)


def attention_BNTH(inputs: AttentionInputs, position_scores: PositionScores = shift_scores_BNTK) -> jnp.ndarray:
    """Return the attention output of every row in the type of the values; softmax in float32.

    Holds scores and dropout mask as arrays of [B, N, T, K].
    """
    scores_BNTK = _scores_BNTK(inputs, position_scores)
    if (dropout := inputs.dropout) is None:
        return attend_BNTH(scores_BNTK, inputs.value_BNKH, None)
    dropout_mask_BNTK = attention_mask_BNTK(dropout, *scores_BNTK.shape[2:])
    return attend_BNTH(scores_BNTK, inputs.value_BNKH, dropout_mask_BNTK) / (1.0 - dropout.rate)


def weights_BNTK(inputs: AttentionInputs) -> jnp.ndarray:
    """Return the attention weights of every row before dropout, float32. They are 0 on keys that the row may not see,
    and each row sums to 1. A row that sees no key has equal weights."""
    return jax.nn.softmax(_scores_BNTK(inputs, shift_scores_BNTK))


def _scores_BNTK(inputs: AttentionInputs, position_scores: PositionScores) -> jnp.ndarray:
    """Return (AC + BD + EF) / sqrt(H), masked, float32."""
    relations = inputs.relations
    with_r_w, with_r_r, with_r_s = bias_queries(inputs)
    scores_BNTK = product_BNTK(with_r_w, inputs.key_BNKH)  # AC
    if inputs.position_key_2NRH is not None:
        scores_BNTK += position_scores(with_r_r, inputs)  # BD
    if inputs.segment_key_2NH is not None:
        other_BNT = segment_scores_BNT(with_r_s, inputs.segment_key_2NH)
        is_other_BTK = relations.row_segment_BT[:, :, None] != relations.key_segment_BK[:, None, :]
        scores_BNTK += other_BNT[..., None] * is_other_BTK.astype(jnp.float32)[:, None]  # EF
    # Add the bias instead of selecting, so that a row that sees no key has a uniform softmax and its gradient.
    bias_BTK = jnp.where(relations.visible_BTK(), 0.0, MASKED)
    return scores_BNTK + bias_BTK[:, None]


def bias_queries(inputs: AttentionInputs) -> tuple[jnp.ndarray, jnp.ndarray, jnp.ndarray]:
    """Return the queries with each of the biases r_w, r_r and r_s, divided by sqrt(H); each [B, N, T, H]."""
    query_BNTH, biases_3NH = inputs.query_BNTH, inputs.biases_3NH
    scale = 1.0 / query_BNTH.shape[-1] ** 0.5
    if biases_3NH is None:
        return query_BNTH * scale, query_BNTH * scale, query_BNTH * scale
    # In float32, because the gradient of a bias is a sum over all rows, which would stop growing in bfloat16.
    query_BNTH, dtype = query_BNTH.astype(jnp.float32), query_BNTH.dtype
    with_r_w, with_r_r, with_r_s = (
        ((query_BNTH + bias_NH[None, :, None]) * scale).astype(dtype) for bias_NH in biases_3NH
    )
    return with_r_w, with_r_r, with_r_s


def segment_scores_BNT(query_BNTH: jnp.ndarray, segment_key_2NH: jnp.ndarray) -> jnp.ndarray:
    """Return float32 [B, N, T]: EF for keys in another segment minus EF for keys in the row's segment.

    Softmax does not change if all scores of a row shift, so only the difference of the two segment scores matters.
    """
    return einsum_float32("BNTH,NH->BNT", query_BNTH, segment_key_2NH[1] - segment_key_2NH[0])


@jax.custom_vjp
def attend_BNTH(
    scores_BNTK: jnp.ndarray, value_BNKH: jnp.ndarray, dropout_mask_BNTK: jnp.ndarray | None
) -> jnp.ndarray:
    """Return softmax(scores) values, without the weights that the dropout mask drops.

    Divides by the softmax sum after multiplying by the values, because [B, N, T, H] is smaller than [B, N, T, K]. Of
    the arrays of shape [B, N, T, K], only the weights and the dropout mask are saved for the backward pass.
    """
    return _attend_forward(scores_BNTK, value_BNKH, dropout_mask_BNTK)[0]


def _attend_forward(
    scores_BNTK: jnp.ndarray, value_BNKH: jnp.ndarray, dropout_mask_BNTK: jnp.ndarray | None
) -> tuple[jnp.ndarray, tuple]:
    weights_BNTK = jnp.exp(scores_BNTK - scores_BNTK.max(-1, keepdims=True))
    scale_BNT1 = 1.0 / weights_BNTK.sum(-1, keepdims=True)
    weights_BNTK = weights_BNTK.astype(value_BNKH.dtype)
    read_BNTH = scale_BNT1 * einsum_float32("BNTK,BNKH->BNTH", _drop(weights_BNTK, dropout_mask_BNTK), value_BNKH)
    # Name the array that is both returned and saved for the backward pass: otherwise remat policies recompute it.
    read_BNTH = checkpoint_name(read_BNTH.astype(value_BNKH.dtype), "read_BNTH")
    return read_BNTH, (weights_BNTK, scale_BNT1, value_BNKH, dropout_mask_BNTK, read_BNTH)


def _attend_backward(saved: tuple, grad_BNTH: jnp.ndarray) -> tuple:
    weights_BNTK, scale_BNT1, value_BNKH, dropout_mask_BNTK, read_BNTH = saved
    scaled_BNTH = grad_BNTH * scale_BNT1
    # For each row, the sum of probability x gradient over keys equals the sum of output x gradient over features.
    mean_BNT1 = (scaled_BNTH * read_BNTH).sum(-1, keepdims=True)
    scaled_BNTH = scaled_BNTH.astype(value_BNKH.dtype)
    grad_weights_BNTK = _drop(einsum_float32("BNTH,BNKH->BNTK", scaled_BNTH, value_BNKH), dropout_mask_BNTK)
    grad_value_BNKH = sum_rows_BNKH(_drop(weights_BNTK, dropout_mask_BNTK), scaled_BNTH)
    return weights_BNTK * (grad_weights_BNTK - mean_BNT1), grad_value_BNKH.astype(value_BNKH.dtype), None


attend_BNTH.defvjp(_attend_forward, _attend_backward)


def _drop(weights_BNTK: jnp.ndarray, dropout_mask_BNTK: jnp.ndarray | None) -> jnp.ndarray:
    return weights_BNTK if dropout_mask_BNTK is None else jnp.where(dropout_mask_BNTK, weights_BNTK, 0)


def direct_keys_BNRH(inputs: AttentionInputs) -> jnp.ndarray:
    """Return the position keys for the direction of each example, in the type of the queries."""
    key_2NRH, dtype = inputs.position_key_2NRH, inputs.query_BNTH.dtype
    if (is_reversed_B := inputs.relations.is_reversed_B) is None:
        forwards_NRH = key_2NRH.sum(0).astype(dtype)
        return jnp.broadcast_to(forwards_NRH[None], (inputs.query_BNTH.shape[0], *forwards_NRH.shape))
    # Multiply by signs, because the backward pass is faster than that of a selection.
    signs_B = jnp.where(is_reversed_B, -1.0, 1.0)
    return (signs_B[:, None, None, None] * key_2NRH[:1] + key_2NRH[1:]).astype(dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
@jax.named_scope("relative_shift")
def take_columns_BNTK(by_distance_BNTR: jnp.ndarray, start_BT: jnp.ndarray, num_keys: int) -> jnp.ndarray:
    """Return for each row the num_keys scores from column start_BT on, L - position for a row at this position: the
    shift for CPUs, which copy whole slices fast.

    The backward pass takes slices too, of padded rows: a scatter would be several times slower.
    """

    def take(row_NR: jnp.ndarray, start: jnp.ndarray) -> jnp.ndarray:
        return jax.lax.dynamic_slice(row_NR, (0, start), (len(row_NR), num_keys))

    return jax.vmap(jax.vmap(take, (1, 0), 1))(by_distance_BNTR, start_BT)


def _take_columns_backward(num_keys: int, saved: tuple[jnp.ndarray, int], grad_BNTK: jnp.ndarray) -> tuple:
    start_BT, columns = saved
    room = columns - num_keys
    padded = jnp.pad(grad_BNTK, ((0, 0), (0, 0), (0, 0), (room, room)))
    return take_columns_BNTK(padded, room - start_BT, columns), None


take_columns_BNTK.defvjp(
    lambda by_distance_BNTR, start_BT, num_keys: (
        take_columns_BNTK(by_distance_BNTR, start_BT, num_keys),
        (start_BT, by_distance_BNTR.shape[-1]),
    ),
    _take_columns_backward,
)


@jax.named_scope("relative_shift")
def shift_content_BNLK(by_distance_BNLR: jnp.ndarray, num_keys: int) -> jnp.ndarray:
    """Return row i's score with key j from column j + L - i by one reshape: with R = K + L, diagonals become columns.

    Adds a row and removes it again, so that the backward pass also pads and cuts whole rows.
    """
    *lead, rows, columns = by_distance_BNLR.shape
    flat = by_distance_BNLR.reshape(*lead, rows * columns)
    flat = jnp.pad(flat, [(0, 0)] * len(lead) + [(columns - 1 - rows, 0)])
    return flat.reshape(*lead, rows + 1, columns - 1)[..., 1:, :num_keys]


@jax.named_scope("relative_shift")
def shift_query_BNPK(by_distance_BNPR: jnp.ndarray, positions_BP: jnp.ndarray, num_keys: int) -> jnp.ndarray:
    """Return the scores of rows at any positions from column j + L - position, by one conditional shift for each bit of
    L - 1. A gather would be several times slower, forward and backward."""
    length = by_distance_BNPR.shape[-1] - num_keys
    shift_BP = length - 1 - positions_BP
    bits = (length - 1).bit_length()
    missing = 2**bits - length
    shifted = jnp.pad(by_distance_BNPR[..., 1:], ((0, 0), (0, 0), (0, 0), (0, missing)))
    for bit in reversed(range(bits)):
        width = num_keys + 2**bit - 1
        take = ((shift_BP >> bit) & 1).astype(bool)[:, None, :, None]
        shifted = jnp.where(take, shifted[..., 2**bit : 2**bit + width], shifted[..., :width])
    return shifted[..., :num_keys]

"""Relative attention of both streams at once (XLNet, sections 2.3 and 2.4; Transformer-XL, section 3.3).

    score = (q + r_w) k  +  shift((q + r_r) r)  +  [(q + r_s) s_same or (q + r_s) s_other]     each / sqrt(H)
    out   = dropout(softmax(score, masked)) v

The streams share keys and values and differ in which rows ask and what each may see, so their rows run together:
T = L content rows, then P query rows at the target positions. Only the relative shift tells them apart.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

MASKED = -1e30  # not -inf: rows that see nothing exist, and the gradient of a softmax over -inf is NaN


def shift_content_BNLK(by_distance_BNLR: jnp.ndarray, num_keys: int) -> jnp.ndarray:
    """Row i's score with key j from column j + L - i: one reshape, as R = K + L makes rows and diagonals line up."""
    *lead, rows, columns = by_distance_BNLR.shape
    flat = by_distance_BNLR.reshape(*lead, rows * columns)[..., rows:]
    return flat.reshape(*lead, rows, columns - 1)[..., :num_keys]


def shift_query_BNPK(by_distance_BNPR: jnp.ndarray, positions_BP: jnp.ndarray, num_keys: int) -> jnp.ndarray:
    """The same for rows at any positions: column j + L - position, by one conditional shift for each bit of L - 1.

    A gather would do, and is several times slower in both directions of differentiation.
    """
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


def relative_attention_BTNH(
    query_BTNH: jnp.ndarray,
    key_BKNH: jnp.ndarray,
    value_BKNH: jnp.ndarray,
    position_key_2RNH: jnp.ndarray,
    segment_key_2NH: jnp.ndarray | None,
    biases_3NH: jnp.ndarray,
    visible_BTK: jnp.ndarray,
    other_segment_BTK: jnp.ndarray | None,
    is_reversed_B: jnp.ndarray,
    target_positions_BP: jnp.ndarray | None,
    drop: Callable[[jnp.ndarray], jnp.ndarray],
) -> jnp.ndarray:
    """What each row reads.

    position_key_2RNH: projected signals of the two directions, never per example; a row picks its own.
    segment_key_2NH: of the same and of another segment; biases_3NH: r_w, r_r, r_s; target_positions_BP: of the last P
    rows; visible_BTK, other_segment_BTK: bool; drop: attention dropout. Softmax in float32.
    """
    keys = key_BKNH.shape[1]
    queries = 0 if target_positions_BP is None else target_positions_BP.shape[1]
    content = query_BTNH.shape[1] - queries
    r_w, r_r, r_s = (biases_3NH[i, None, None].astype(query_BTNH.dtype) for i in range(3))

    def product(equation: str, a: jnp.ndarray, b: jnp.ndarray) -> jnp.ndarray:
        return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)

    position_key_BRNH = jnp.where(
        is_reversed_B[:, None, None, None], position_key_2RNH[None, 1], position_key_2RNH[None, 0]
    )
    by_distance_BNTR = product("BTNH,BRNH->BNTR", query_BTNH + r_r, position_key_BRNH)
    position_BNTK = shift_content_BNLK(by_distance_BNTR[:, :, :content], keys)
    if target_positions_BP is not None:
        query_part = shift_query_BNPK(by_distance_BNTR[:, :, content:], target_positions_BP, keys)
        position_BNTK = jnp.concatenate([position_BNTK, query_part], axis=2)

    scores_BNTK = product("BTNH,BKNH->BNTK", query_BTNH + r_w, key_BKNH) + position_BNTK
    if segment_key_2NH is not None and other_segment_BTK is not None:
        segment_BNT2 = product("BTNH,SNH->BNTS", query_BTNH + r_s, segment_key_2NH)
        scores_BNTK += jnp.where(other_segment_BTK[:, None], segment_BNT2[..., 1:], segment_BNT2[..., :1])
    scores_BNTK = scores_BNTK * (1.0 / query_BTNH.shape[-1] ** 0.5)
    scores_BNTK += jnp.where(visible_BTK[:, None], 0.0, MASKED)
    probs_BNTK = drop(jax.nn.softmax(scores_BNTK, axis=-1).astype(value_BKNH.dtype))
    return jnp.einsum("BNTK,BKNH->BTNH", probs_BNTK, value_BKNH)

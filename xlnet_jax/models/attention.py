"""Relative attention of both streams at once (XLNet, sections 2.3 and 2.4; Transformer-XL, section 3.3).

    score = (q + r_w) k  +  shift((q + r_r) r)  +  [(q + r_s) s_same or (q + r_s) s_other]     each / sqrt(H)
    out   = dropout(softmax(score, masked)) v

The streams share keys and values and differ in which rows ask and what each may see, so their rows run together:
T = L content rows, then P query rows at the target positions. Only the relative shift tells them apart. Without the
second and third term it is the attention of a network that adds positions to its embeddings.
"""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

MASKED = -1e30  # not -inf: rows that see nothing exist, and the gradient of a softmax over -inf is NaN


def shift_content_BNLK(by_distance_BNLR: jnp.ndarray, num_keys: int) -> jnp.ndarray:
    """Row i's score with key j from column j + L - i: one reshape, as R = K + L makes rows and diagonals line up.

    Padded to a row more and cut back, not cut only: so the way back is a pad of whole rows and a cut as well.
    """
    *lead, rows, columns = by_distance_BNLR.shape
    flat = by_distance_BNLR.reshape(*lead, rows * columns)
    flat = jnp.pad(flat, [(0, 0)] * len(lead) + [(columns - 1 - rows, 0)])
    return flat.reshape(*lead, rows + 1, columns - 1)[..., 1:, :num_keys]


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


@jax.custom_vjp
def attend_BNTH(scores_BNTK: jnp.ndarray, value_BNKH: jnp.ndarray, kept_BNTK: jnp.ndarray | None) -> jnp.ndarray:
    """softmax(scores) value, with the weights that are not kept left out of the sum, not of the softmax.

    Normalised behind the product, on the narrow side. Of the arrays of [B, N, T, K], the way back needs the weights and
    kept_BNTK alone.
    """
    return _attend_forward(scores_BNTK, value_BNKH, kept_BNTK)[0]


def _attend_forward(
    scores_BNTK: jnp.ndarray, value_BNKH: jnp.ndarray, kept_BNTK: jnp.ndarray | None
) -> tuple[jnp.ndarray, tuple]:
    weights_BNTK = jnp.exp(scores_BNTK - scores_BNTK.max(-1, keepdims=True))
    scale_BNT1 = 1.0 / weights_BNTK.sum(-1, keepdims=True)
    weights_BNTK = weights_BNTK.astype(value_BNKH.dtype)
    read_BNTH = scale_BNT1 * product("BNTK,BNKH->BNTH", _dropped(weights_BNTK, kept_BNTK), value_BNKH)
    # One name for what goes on and for what the way back needs: else a remat policy that keeps it computes it again.
    read_BNTH = checkpoint_name(read_BNTH.astype(value_BNKH.dtype), "read_BNTH")
    return read_BNTH, (weights_BNTK, scale_BNT1, value_BNKH, kept_BNTK, read_BNTH)


def _attend_backward(saved: tuple, grad_BNTH: jnp.ndarray) -> tuple:
    weights_BNTK, scale_BNT1, value_BNKH, kept_BNTK, read_BNTH = saved
    scaled_BNTH = grad_BNTH * scale_BNT1
    # The sum of probability x gradient over the keys of a row is that of output x gradient over its features.
    mean_BNT1 = (scaled_BNTH * read_BNTH).sum(-1, keepdims=True)
    scaled_BNTH = scaled_BNTH.astype(value_BNKH.dtype)
    grad_weights_BNTK = _dropped(product("BNTH,BNKH->BNTK", scaled_BNTH, value_BNKH), kept_BNTK)
    grad_value_BNKH = product("BNTK,BNTH->BNKH", _dropped(weights_BNTK, kept_BNTK), scaled_BNTH)
    return weights_BNTK * (grad_weights_BNTK - mean_BNT1), grad_value_BNKH.astype(value_BNKH.dtype), None


attend_BNTH.defvjp(_attend_forward, _attend_backward)


def _dropped(weights_BNTK: jnp.ndarray, kept_BNTK: jnp.ndarray | None) -> jnp.ndarray:
    return weights_BNTK if kept_BNTK is None else jnp.where(kept_BNTK, weights_BNTK, 0)


def product(equation: str, a: jnp.ndarray, b: jnp.ndarray) -> jnp.ndarray:
    """An einsum that sums and answers in float32."""
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def kept(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jnp.ndarray:
    """Which elements dropout leaves: bool, of any shape.

    16 random bits decide each, two from a word, as the words are what costs: the rate is rounded to a 65,536th.
    """
    *lead, last = shape
    words = jax.random.bits(key, (*lead, -(-last // 2)), jnp.uint32)
    halves = jnp.concatenate([words >> 16, words & 0xFFFF], axis=-1)
    return halves[..., :last] >= round(rate * 2**16)


def attention_BNTH(
    query_BNTH: jnp.ndarray,
    key_BNKH: jnp.ndarray,
    value_BNKH: jnp.ndarray,
    masked_BTK: jnp.ndarray,
    kept_BNTK: jnp.ndarray | None,
    *,
    biases_3NH: jnp.ndarray | None = None,
    position_key_BNRH: jnp.ndarray | None = None,
    target_positions_BP: jnp.ndarray | None = None,
    segment_key_2NH: jnp.ndarray | None = None,
    other_segment_BTK: jnp.ndarray | None = None,
) -> jnp.ndarray:
    """What each row reads. What is None has no part in the scores.

    masked_BTK: float32, 0 or MASKED; kept_BNTK: the probabilities that dropout leaves, not scaled up here; biases_3NH:
    r_w, r_r, r_s; position_key_BNRH: of the direction in which each example reads; target_positions_BP: of the last P
    rows; segment_key_2NH: of the same and of another segment; other_segment_BTK: float32, 1 = another segment. Softmax
    in float32.
    """
    if biases_3NH is None:
        with_r_w = with_r_r = with_r_s = query_BNTH
    else:
        with_r_w, with_r_r, with_r_s = (
            query_BNTH + biases_3NH[i, None, :, None].astype(query_BNTH.dtype) for i in range(3)
        )
    scale = 1.0 / query_BNTH.shape[-1] ** 0.5
    scores_BNTK = product("BNTH,BNKH->BNTK", with_r_w * scale, key_BNKH)
    if position_key_BNRH is not None:
        scores_BNTK += _position_scores_BNTK(
            with_r_r * scale, position_key_BNRH, target_positions_BP, key_BNKH.shape[2]
        )
    if segment_key_2NH is not None and other_segment_BTK is not None:
        # Softmax does not see what all keys of a row share: only the difference of the two segment scores counts.
        difference_NH = segment_key_2NH[1] - segment_key_2NH[0]
        segment_BNT = product("BNTH,NH->BNT", with_r_s * scale, difference_NH)
        scores_BNTK += segment_BNT[..., None] * other_segment_BTK[:, None]
    return attend_BNTH(scores_BNTK + masked_BTK[:, None], value_BNKH, kept_BNTK)


def _position_scores_BNTK(
    query_BNTH: jnp.ndarray, position_key_BNRH: jnp.ndarray, target_positions_BP: jnp.ndarray | None, keys: int
) -> jnp.ndarray:
    queries = 0 if target_positions_BP is None else target_positions_BP.shape[1]
    content = query_BNTH.shape[2] - queries
    by_distance_BNLR = product("BNTH,BNRH->BNTR", query_BNTH[:, :, :content], position_key_BNRH)
    of_content_BNLK = shift_content_BNLK(by_distance_BNLR, keys)
    if target_positions_BP is None:
        return of_content_BNLK
    by_distance_BNPR = product("BNTH,BNRH->BNTR", query_BNTH[:, :, content:], position_key_BNRH)
    return jnp.concatenate([of_content_BNLK, shift_query_BNPK(by_distance_BNPR, target_positions_BP, keys)], axis=2)

"""Arguments of an attention call. Every implementation takes one `AttentionInputs` and returns float [B, N, T, H].

Nothing here has the shape [B, T, K] except the dense mask, which only batches in the dense form carry. From vectors an
implementation makes masks, segment comparisons and dropout masks itself.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp

from xlnet_jax.kernels.dropout import AttentionDropout


class Ranks(NamedTuple):
    """Condition: a row sees a key whose rank is not above its own (models/masks.py)."""

    row_BT: jnp.ndarray  # int32
    key_BK: jnp.ndarray  # int32


class Span(NamedTuple):
    """Condition: a row sees a key whose position lies between two bounds of the row, both included."""

    first_BT: jnp.ndarray  # int32
    last_BT: jnp.ndarray  # int32
    key_BK: jnp.ndarray  # int32, position of each key


class Visibility(NamedTuple):
    """Which keys each row may attend to: those that satisfy every condition given here. At least one is given."""

    ranks: Ranks | None = None
    span: Span | None = None
    mask_BTK: jnp.ndarray | None = None  # bool, True = may attend


class Positions(NamedTuple):
    """Relative positions of rows and keys, and the position keys r of Transformer-XL (section 3.3).

    Column j of the position keys belongs to the distance K - j from a row back to a key, for j from 0 to R - 1. In a
    window the keys stand in order, at -M to L - 1 with L = R - K. Content rows, if there are any, stand in order from 0
    on; the last P rows, the query rows, stand anywhere from 0 to L - 1.
    """

    key_2NRH: jnp.ndarray  # float32; sine and cosine part, whose sum is read forwards; backwards the sines are negated
    is_reversed_B: jnp.ndarray | None  # bool, which rows of the batch read backwards; None = none of them
    query_BP: jnp.ndarray  # int32, positions of the query rows
    key_BK: jnp.ndarray  # int32


class Segments(NamedTuple):
    """Segments of rows and keys, and the keys of relative segment encodings (XLNet, section 2.5)."""

    key_2NH: jnp.ndarray  # float; [0] for a key of the row's own segment, [1] for a key of another segment
    row_BT: jnp.ndarray  # int32
    key_BK: jnp.ndarray  # int32


class AttentionInputs(NamedTuple):
    """Arguments of one attention call; a term that is None does not contribute to the scores."""

    query_BNTH: jnp.ndarray
    key_BNKH: jnp.ndarray
    value_BNKH: jnp.ndarray
    visibility: Visibility
    biases_3NH: jnp.ndarray | None = None  # float32: r_w, r_r and r_s
    positions: Positions | None = None
    segments: Segments | None = None
    dropout: AttentionDropout | None = None


class Numbers(NamedTuple):
    """Arguments of a call that have gradients; None where the call has no such term."""

    query_BNTH: Any
    key_BNKH: Any
    value_BNKH: Any
    biases_3NH: Any
    position_2NRH: Any
    segment_2NH: Any


Implementation: TypeAlias = Callable[[AttentionInputs], jnp.ndarray]


def numbers_of(inputs: AttentionInputs) -> Numbers:
    """Return the arguments of a call that have gradients."""
    positions, segments = inputs.positions, inputs.segments
    return Numbers(
        *inputs[:3],
        inputs.biases_3NH,
        None if positions is None else positions.key_2NRH,
        None if segments is None else segments.key_2NH,
    )


def with_numbers(inputs: AttentionInputs, numbers: Numbers) -> AttentionInputs:
    """Return a call with other numbers."""
    positions, segments = inputs.positions, inputs.segments
    return inputs._replace(
        query_BNTH=numbers.query_BNTH,
        key_BNKH=numbers.key_BNKH,
        value_BNKH=numbers.value_BNKH,
        biases_3NH=numbers.biases_3NH,
        positions=None if positions is None else positions._replace(key_2NRH=numbers.position_2NRH),
        segments=None if segments is None else segments._replace(key_2NH=numbers.segment_2NH),
    )


def unsupported(inputs: AttentionInputs, widest: int) -> str | None:
    """Return why no fused kernel computes these arguments on any device, in a clause; None where one may.

    widest: number of lanes that the width of a head must divide.
    """
    if inputs.visibility.mask_BTK is not None:
        return "the mask is dense, and the kernel computes visibility from ranks and spans"
    if widest % inputs.query_BNTH.shape[-1]:
        return f"heads are {inputs.query_BNTH.shape[-1]} wide, and the kernel wants a width that divides {widest}"
    if inputs.query_BNTH.dtype not in (jnp.bfloat16, jnp.float32):
        return f"queries are {inputs.query_BNTH.dtype}, and the kernel computes bfloat16 and float32"
    return None


def visible_BTK(visibility: Visibility) -> jnp.ndarray:
    """Return bool [B, T, K]: True where a row may attend to a key."""
    conditions = []
    if (ranks := visibility.ranks) is not None:
        conditions.append(ranks.key_BK[:, None, :] <= ranks.row_BT[:, :, None])
    if (span := visibility.span) is not None:
        key_B1K = span.key_BK[:, None, :]
        conditions.append((span.first_BT[:, :, None] <= key_B1K) & (key_B1K <= span.last_BT[:, :, None]))
    if visibility.mask_BTK is not None:
        conditions.append(visibility.mask_BTK)
    return functools.reduce(jnp.logical_and, conditions)

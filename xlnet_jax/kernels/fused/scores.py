"""Scores of a tile of rows with all keys: the part of the kernel that forward and backward pass share.

    score = (q + r_w) k  +  shift((q + r_r) r)  +  [segments differ] (q + r_s) (s_other - s_same)     each / sqrt(H)

The products run over the lanes of a group of heads; the lanes of other heads are zero in the queries. Everything
between the products runs over strips of a few rows, whose scores fit into registers.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from xlnet_jax.kernels.dropout import hash_words, row_seed, threshold
from xlnet_jax.kernels.fused.operands import Operands
from xlnet_jax.kernels.fused.shift import Shift, rotate_by_gather, rotate_by_steps, shifted_TK
from xlnet_jax.kernels.fused.tiles import (
    KEY_POSITION,
    KEY_RANK,
    KEY_SEGMENT,
    LANES,
    OTHER_SEGMENT,
    R_R,
    R_S,
    R_W,
    ROW_FIRST,
    ROW_LAST,
    ROW_POSITION,
    ROW_RANK,
    ROW_SEGMENT,
    ROWS,
    Sizes,
)
from xlnet_jax.kernels.numerics import MASKED

STRIP = 16
"""Rows of a strip: a register of bfloat16 has 16."""


class Tile(NamedTuple):
    """Place of the tile that a step of the grid computes. Content rows and query rows are two kinds of tiles."""

    is_query: bool
    rows: int  # rows that are computed
    number: jnp.ndarray  # of the tile in its kind
    example: jnp.ndarray
    group: jnp.ndarray


class Rows(NamedTuple):
    """Queries of a tile, scaled, with each bias; and integers of its rows."""

    with_r_w_TH: jnp.ndarray
    with_r_r_TH: jnp.ndarray
    with_r_s_TH: jnp.ndarray  # float32
    integers_T8: jnp.ndarray
    is_real_T1: jnp.ndarray | None  # None = all are


def tiles_here(sizes: Sizes) -> tuple[Tile, Tile]:
    """Return this step of a grid (group of heads, example, tile) as a tile of content rows, and as one of query rows:
    which of them it is, is known on the device only."""
    group, example, number = (pl.program_id(axis) for axis in range(3))
    content = Tile(False, ROWS, number, example, group)
    return content, Tile(True, sizes.query_rows, number - sizes.content_tiles, example, group)


def read_rows(sizes: Sizes, tile: Tile, refs: Operands) -> Rows:
    """Read the rows of a tile. Rows past the last one hold anything in memory; they are zero from here on."""
    query_TH, is_real_T1 = refs.query_BTH[0, : tile.rows].astype(jnp.float32), None
    if tile.is_query:
        row_T1 = jax.lax.broadcasted_iota(jnp.int32, (tile.rows, 1), 0) + tile.number * ROWS
        is_real_T1 = row_T1 < sizes.num_targets
        query_TH = jnp.where(is_real_T1, query_TH, 0.0)
    operand = sizes.product_type(refs.query_BTH.dtype)
    with_r_w_TH, with_r_r_TH, with_r_s_TH = (
        (query_TH + refs.vectors_8H[row : row + 1]) * sizes.scale for row in (R_W, R_R, R_S)
    )
    integers_T8 = refs.rows_B8T[0].T[: tile.rows]
    return Rows(with_r_w_TH.astype(operand), with_r_r_TH.astype(operand), with_r_s_TH, integers_T8, is_real_T1)


def in_head_1H(sizes: Sizes, head: int) -> jnp.ndarray:
    """Return bool [1, H]: True at the lanes of a head of the group."""
    lane_1H = jax.lax.broadcasted_iota(jnp.int32, (1, sizes.width), 1)
    return (lane_1H >= head * sizes.head_width) & (lane_1H < (head + 1) * sizes.head_width)


def product(a: jnp.ndarray, b: jnp.ndarray, axis_a: int, axis_b: int) -> jnp.ndarray:
    """Return the float32 product of two matrices, summed over these axes."""
    return jax.lax.dot_general(a, b, (((axis_a,), (axis_b,)), ((), ())), preferred_element_type=jnp.float32)


# ---- relative positions ----------------------------------------------------------------------------------------------


def window_of(sizes: Sizes, tile: Tile) -> Any:
    """Return the rows of the position keys that a tile reads: a diagonal band for content rows, all for query rows."""
    if tile.is_query:
        return pl.ds(0, sizes.padded_distances)
    start = sizes.padded_content - ROWS - tile.number * ROWS
    return pl.ds(pl.multiple_of(start, ROWS), sizes.padded_keys + LANES)


def direction_of(sizes: Sizes, tile: Tile, refs: Operands) -> Any:
    """Return the index of the table of position keys that an example reads: 0 forwards, 1 backwards."""
    return 0 if refs.is_reversed_B is None else refs.is_reversed_B[tile.example]


def shift_of(sizes: Sizes, tile: Tile, rows: Rows) -> Shift:
    """Return the shift of the tile's rows inside the window that `window_of` gives."""
    rotate = rotate_by_gather if sizes.generation.gathers_lanes else rotate_by_steps
    if tile.is_query:
        position_T1 = rows.integers_T8[:, ROW_POSITION : ROW_POSITION + 1]
        return Shift(position_T1 & (LANES - 1), (sizes.padded_content - 1 - position_T1) >> 7, rotate)
    turn_T1 = jax.lax.broadcasted_iota(jnp.int32, (tile.rows, 1), 0)
    return Shift(turn_T1, None, rotate)


# ---- strips ----------------------------------------------------------------------------------------------------------


class Strip(NamedTuple):
    """Comparisons of a strip of rows with all keys, which all heads share."""

    start: int
    stop: int
    is_visible_TK: jnp.ndarray
    is_other_TK: jnp.ndarray | None  # keys of another segment; None = no segments
    hidden_1K: jnp.ndarray  # float32, score of keys that are not visible


def strips(sizes: Sizes, tile: Tile, rows: Rows, refs: Operands) -> Iterator[Strip]:
    """Yield the strips of a tile."""
    keys_8K = refs.keys_B8K[0]
    column_1K = jax.lax.broadcasted_iota(jnp.int32, (1, sizes.padded_keys), 1)
    # A row that sees no key has a uniform softmax over the keys that there are, not over padding.
    hidden_1K = jnp.where(column_1K < sizes.num_keys, MASKED, 2 * MASKED)
    for start in range(0, tile.rows, STRIP):
        row_T8 = rows.integers_T8[start : start + STRIP]
        rank_T1, first_T1, last_T1, segment_T1 = (
            row_T8[:, i : i + 1] for i in (ROW_RANK, ROW_FIRST, ROW_LAST, ROW_SEGMENT)
        )
        conditions = []
        if sizes.has_ranks:
            conditions.append(keys_8K[KEY_RANK : KEY_RANK + 1] <= rank_T1)
        if sizes.has_span:
            position_1K = keys_8K[KEY_POSITION : KEY_POSITION + 1]
            conditions += [position_1K >= first_T1, position_1K <= last_T1]
        is_visible_TK = conditions[0]
        for condition in conditions[1:]:
            is_visible_TK &= condition
        is_other_TK = keys_8K[KEY_SEGMENT : KEY_SEGMENT + 1] != segment_T1 if sizes.has_segments else None
        yield Strip(start, start + STRIP, is_visible_TK, is_other_TK, hidden_1K)


class HeadScores(NamedTuple):
    """Products of one head that its scores are made of."""

    content_TK: jnp.ndarray
    by_distance_TR: jnp.ndarray | None
    segment_T1: jnp.ndarray | None  # (q + r_s) (s_other - s_same)


def head_scores(rows: Rows, refs: Operands, window_RH: jnp.ndarray | None, in_head_1H: jnp.ndarray) -> HeadScores:
    """Return the products of a head with the keys, the position keys and the segment keys."""
    operand = rows.with_r_w_TH.dtype
    content_TK = product(jnp.where(in_head_1H, rows.with_r_w_TH, 0), refs.key_BKH[0].astype(operand), 1, 1)
    by_distance_TR = segment_T1 = None
    if window_RH is not None:
        by_distance_TR = product(jnp.where(in_head_1H, rows.with_r_r_TH, 0), window_RH, 1, 1)
    if refs.vectors_8H is not None:
        other_1H = jnp.where(in_head_1H, refs.vectors_8H[OTHER_SEGMENT : OTHER_SEGMENT + 1], 0.0)
        segment_T1 = (rows.with_r_s_TH * other_1H).sum(1, keepdims=True)
    return HeadScores(content_TK, by_distance_TR, segment_T1)


def strip_scores_TK(sizes: Sizes, strip: Strip, scores: HeadScores, shift: Shift | None) -> jnp.ndarray:
    """Return the masked scores of a strip of rows of one head."""
    here = slice(strip.start, strip.stop)
    score_TK = scores.content_TK[here]
    if shift is not None and scores.by_distance_TR is not None:
        score_TK += shifted_TK(scores.by_distance_TR[here], shift.strip(strip.start, strip.stop), sizes.padded_keys)
    if strip.is_other_TK is not None and scores.segment_T1 is not None:
        score_TK += jnp.where(strip.is_other_TK, scores.segment_T1[here], 0.0)
    # A score in float32 vanishes beside MASKED, so this is a sum: the gradient does not stop at hidden keys.
    return jnp.where(strip.is_visible_TK, score_TK, strip.hidden_1K)


# ---- dropout ---------------------------------------------------------------------------------------------------------


def random_words_TK(sizes: Sizes, tile: Tile, strip: Strip, refs: Operands, head: int) -> jnp.ndarray | None:
    """Return the random words of a strip for a head of the group and the next one; None without dropout."""
    if refs.seed_BN is None:
        return None
    seed = refs.seed_BN[tile.example, tile.group * sizes.group + head].astype(jnp.uint32)
    first_row = tile.number * ROWS + strip.start + (sizes.num_content if tile.is_query else 0)
    row_T1 = jax.lax.broadcasted_iota(jnp.int32, (STRIP, 1), 0) + first_row
    column_1K = jax.lax.broadcasted_iota(jnp.int32, (1, sizes.padded_keys), 1)
    return hash_words(row_seed(seed, row_T1), column_1K)


def dropped_TK(
    sizes: Sizes, tile: Tile, refs: Operands, head: int, word_TK: jnp.ndarray | None, x_TK: jnp.ndarray
) -> jnp.ndarray:
    """Return x with zeros where the dropout mask of a head drops it (`dropout.attention_mask_BNTK`)."""
    if word_TK is None or refs.seed_BN is None:
        return x_TK
    if sizes.heads_at_once == 2:
        half_TK = word_TK >> 16 if head % 2 else word_TK & jnp.uint32(0xFFFF)
    else:
        seed = refs.seed_BN[tile.example, tile.group * sizes.group + head].astype(jnp.uint32)
        half_TK = (word_TK >> ((seed & 1) * 16)) & jnp.uint32(0xFFFF)
    return jnp.where(half_TK.astype(jnp.int32) >= threshold(sizes.dropout_rate), x_TK, 0)

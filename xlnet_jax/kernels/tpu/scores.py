"""Compute the scores of a tile of rows with all keys, for the forward and the backward kernel.

    score = (q + r_w) k  +  shift((q + r_r) r)  +  [segments differ] (q + r_s) (s_other - s_same)     each / sqrt(H)

The matrix products cover all rows of a tile and the lanes of a group of heads; lanes of other heads are zero in the
queries. Their results are in scratch memory. Everything between the products runs in a loop over strips of a few rows,
whose scores fit into registers.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.arguments import MASKED
from xlnet_jax.kernels.dropout import hash_words, row_seed, threshold
from xlnet_jax.kernels.tpu.operands import NEVER, Operands
from xlnet_jax.kernels.tpu.shift import Shift, rotate_by_gather, rotate_by_steps, shift_TK
from xlnet_jax.kernels.tpu.tiles import LANES, ROWS, SUBLANES, KeyField, RowField, Sizes, VectorRow

STRIP = 16
"""Rows of a strip: a register of bfloat16 has 16."""


class Tile(NamedTuple):
    """Place of the tile that a grid step computes. There are tiles of content rows and tiles of query rows."""

    is_query: bool
    rows: int  # rows that are computed
    number: jnp.ndarray  # of the tile among those of its kind
    example: jnp.ndarray
    group: jnp.ndarray


def tiles_here(sizes: Sizes) -> tuple[Tile, Tile]:
    """Return this grid step (group of heads, example, tile) as a tile of content rows and as a tile of query rows. Only
    the device knows which one it is."""
    group, example, number = (pl.program_id(axis) for axis in range(3))
    content = Tile(False, ROWS, number, example, group)
    return content, Tile(True, sizes.query_rows, number - sizes.content_tiles, example, group)


def call_at(sizes: Sizes, content: Tile, query: Tile, refs: Operands, compute: Callable[[Tile], None]) -> None:
    """Call `compute` for the tile of content rows or query rows of this step."""
    pl.when(content.number < sizes.content_tiles)(lambda: compute(content))
    if sizes.query_tiles:
        is_busy = query.number >= 0
        if refs.busy_BQ is not None:
            is_busy &= refs.busy_BQ[query.example, jnp.maximum(query.number, 0)] != 0
        pl.when(is_busy)(lambda: compute(query))


class Scratch(NamedTuple):
    """References to the data that the strips of a tile read: integers of its rows, and products of the heads computed
    together (`Sizes.heads_at_once`)."""

    integers_T8: Any  # int32, columns RowField.RANK to RowField.NUMBER
    content: tuple[Any, ...]  # one per head, float32 [T, K]: (q + r_w) k
    by_distance: tuple[Any, ...]  # one per head, float32 [T, R]: (q + r_r) r; empty without relative positions
    segment: tuple[Any, ...]  # one per head, float32 [T, 1]: (q + r_s) (s_other - s_same); empty without segments


def scratch_shapes(sizes: Sizes) -> Scratch:
    """Return the scratch memory of a tile."""
    return Scratch(
        pltpu.VMEM((ROWS, SUBLANES), jnp.int32),
        head_scratch(sizes, sizes.padded_keys, jnp.float32),
        head_scratch(sizes, sizes.window, jnp.float32, sizes.num_directions > 0),
        head_scratch(sizes, 1, jnp.float32, sizes.has_segments),
    )


def head_scratch(sizes: Sizes, width: int, dtype: Any, is_used: bool = True) -> tuple[Any, ...]:
    """Return scratch memory [T, width] for each head computed together; none if it is not used."""
    return (pltpu.VMEM((ROWS, width), dtype),) * (sizes.heads_at_once if is_used else 0)


# ---- rows of a tile --------------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """Queries of a tile with each bias, scaled."""

    with_r_w_TH: jnp.ndarray
    with_r_r_TH: jnp.ndarray
    with_r_s_TH: jnp.ndarray  # float32


def read_rows(sizes: Sizes, tile: Tile, refs: Operands) -> Rows:
    """Read the queries of a tile."""
    query_TH = read_real_TH(sizes, tile, refs.query_BTH)
    with_r_w_TH, with_r_r_TH, with_r_s_TH = (
        (query_TH + refs.vectors_8H[row : row + 1]) * sizes.scale
        for row in (VectorRow.R_W, VectorRow.R_R, VectorRow.R_S)
    )
    operand = sizes.product_type(refs.query_BTH.dtype)
    return Rows(with_r_w_TH.astype(operand), with_r_r_TH.astype(operand), with_r_s_TH)


def read_real_TH(sizes: Sizes, tile: Tile, rows_BTH: Any) -> jnp.ndarray:
    """Read the rows of a tile as float32. Rows past the last one are set to zero: their memory is undefined."""
    rows_TH = rows_BTH[0, : tile.rows].astype(jnp.float32)
    if not tile.is_query:
        return rows_TH
    row_T1 = jax.lax.broadcasted_iota(jnp.int32, (tile.rows, 1), 0) + tile.number * ROWS
    return jnp.where(row_T1 < sizes.num_targets, rows_TH, 0.0)


def in_head_1H(sizes: Sizes, head: int) -> jnp.ndarray:
    """Return bool [1, H]: True = a lane of this head of the group."""
    lane_1H = jax.lax.broadcasted_iota(jnp.int32, (1, sizes.width), 1)
    return (lane_1H >= head * sizes.head_width) & (lane_1H < (head + 1) * sizes.head_width)


def product(a: jnp.ndarray, b: jnp.ndarray, axis_a: int, axis_b: int) -> jnp.ndarray:
    """Return the float32 product of two matrices, summed over these axes."""
    return jax.lax.dot_general(a, b, (((axis_a,), (axis_b,)), ((), ())), preferred_element_type=jnp.float32)


def window_width(sizes: Sizes, tile: Tile) -> int:
    """Return the number of distances that a tile reads: a diagonal band for content rows, all for query rows."""
    return sizes.padded_distances if tile.is_query else sizes.padded_keys + LANES


def window_of(sizes: Sizes, tile: Tile) -> Any:
    """Return the rows of the position keys that a tile reads."""
    start = 0 if tile.is_query else pl.multiple_of(sizes.padded_places - (tile.number + 1) * ROWS, ROWS)
    return pl.ds(start, window_width(sizes, tile))


def read_window_RH(sizes: Sizes, tile: Tile, refs: Operands) -> jnp.ndarray | None:
    """Read the position keys of a tile in the direction of its example; None without relative positions."""
    if refs.position_2RH is None:
        return None
    window_RH = refs.position_2RH[direction_of(tile, refs), window_of(sizes, tile)]
    return window_RH.astype(sizes.product_type(window_RH.dtype))


def direction_of(tile: Tile, refs: Operands) -> Any:
    """Return the index of the table of position keys for an example: 0 = forwards, 1 = backwards."""
    return 0 if refs.is_reversed_B is None else refs.is_reversed_B[tile.example]


def multiply_queries(
    sizes: Sizes, tile: Tile, rows: Rows, refs: Operands, window_RH: jnp.ndarray | None, first: int, scratch: Scratch
) -> None:
    """Store the products of queries with keys, position keys and segment keys, for the heads from `first` on."""
    key_KH, (with_r_w_TH, with_r_r_TH, with_r_s_TH) = refs.key_BKH[0], rows
    key_KH, here = key_KH.astype(with_r_w_TH.dtype), slice(0, tile.rows)
    for i in range(sizes.heads_at_once):
        mask_1H = in_head_1H(sizes, first + i)
        scratch.content[i][here] = product(jnp.where(mask_1H, with_r_w_TH, 0), key_KH, 1, 1)
        if window_RH is not None:
            by_distance_TR = product(jnp.where(mask_1H, with_r_r_TH, 0), window_RH, 1, 1)
            scratch.by_distance[i][here, : len(window_RH)] = by_distance_TR
        if sizes.has_segments:
            other_1H = jnp.where(mask_1H, refs.vectors_8H[VectorRow.OTHER_SEGMENT : VectorRow.OTHER_SEGMENT + 1], 0.0)
            scratch.segment[i][here] = (with_r_s_TH * other_1H).sum(1, keepdims=True)


# ---- strips ----------------------------------------------------------------------------------------------------------


class Strip(NamedTuple):
    """Comparisons, shift and random words of a strip of rows, shared by its heads."""

    here: Any  # its rows in the tile
    is_visible_TK: jnp.ndarray
    is_other_TK: jnp.ndarray | None  # True = key in another segment; None = no segments
    hidden_1K: jnp.ndarray  # float32, score of keys that are not visible
    shift: Shift | None
    word_TK: jnp.ndarray | None  # uint32, random bits; None = no dropout


def for_each_strip(
    sizes: Sizes, tile: Tile, refs: Operands, first: int, scratch: Scratch, body: Callable[[Strip], None]
) -> None:
    """Loop over the strips of a tile, for the heads from `first` on."""

    count = tile.rows // STRIP

    @pl.loop(0, count, unroll=count if sizes.generation.unrolls else 1)
    def strip(number: Any) -> None:
        body(_read_strip(sizes, tile, refs, first, scratch, pl.multiple_of(number * STRIP, STRIP)))


def _read_strip(sizes: Sizes, tile: Tile, refs: Operands, first: int, scratch: Scratch, start: Any) -> Strip:
    row_T8 = scratch.integers_T8[pl.ds(start, STRIP)]
    offset_T1 = jax.lax.broadcasted_iota(jnp.int32, (STRIP, 1), 0) + start
    key_8K = refs.keys_B8K[0]

    def row_T1(field: int) -> jnp.ndarray:
        return row_T8[:, field : field + 1]

    def key_1K(field: int) -> jnp.ndarray:
        return key_8K[field : field + 1]

    conditions, is_other_TK, shift, word_TK = [], None, None, None
    if sizes.has_ranks:
        conditions.append(key_1K(KeyField.RANK) <= row_T1(RowField.RANK))
    if sizes.has_span:
        position_1K = key_1K(KeyField.POSITION)
        conditions.append(position_1K >= row_T1(RowField.FIRST))
        conditions.append(position_1K <= row_T1(RowField.LAST))
    if sizes.has_segments:
        is_other_TK = key_1K(KeyField.SEGMENT) != row_T1(RowField.SEGMENT)
    # A row that sees no key has a uniform softmax over the real keys, not over padding.
    hidden_1K = jnp.where(key_1K(KeyField.NUMBER) == NEVER, 2 * MASKED, MASKED)
    is_visible_TK = functools.reduce(jnp.logical_and, conditions)
    if sizes.num_directions:  # relative to the window of `window_of`
        rotate = rotate_by_gather if sizes.generation.gathers_lanes else rotate_by_steps
        shift = Shift(offset_T1, None, rotate)
        if tile.is_query:
            position_T1 = row_T1(RowField.POSITION)
            shift = Shift(position_T1 & (LANES - 1), (sizes.padded_places - 1 - position_T1) >> 7, rotate)
    if refs.seed_BN is not None:
        number_T1, number_1K = row_T1(RowField.NUMBER), refs.keys_B8K[0, KeyField.NUMBER : KeyField.NUMBER + 1]
        word_TK = hash_words(row_seed(_seed(sizes, tile, refs, first), number_T1), number_1K)
    return Strip(pl.ds(start, STRIP), is_visible_TK, is_other_TK, hidden_1K, shift, word_TK)


def scores_TK(sizes: Sizes, tile: Tile, strip: Strip, scratch: Scratch, i: int) -> jnp.ndarray:
    """Return the masked scores of a strip of rows for head i in the scratch memory."""
    score_TK = scratch.content[i][strip.here]
    if strip.shift is not None:
        by_distance_TR = scratch.by_distance[i][strip.here, : window_width(sizes, tile)]
        score_TK += shift_TK(by_distance_TR, strip.shift, sizes.padded_keys)
    if strip.is_other_TK is not None:
        score_TK += jnp.where(strip.is_other_TK, scratch.segment[i][strip.here], 0.0)
    # Next to MASKED a float32 score vanishes, so this equals a sum: gradients do not stop at hidden keys.
    return jnp.where(strip.is_visible_TK, score_TK, strip.hidden_1K)


def _seed(sizes: Sizes, tile: Tile, refs: Operands, head: int) -> jnp.ndarray:
    return refs.seed_BN[tile.example, tile.group * sizes.group + head].astype(jnp.uint32)


def drop_TK(sizes: Sizes, tile: Tile, strip: Strip, refs: Operands, head: int, x_TK: jnp.ndarray) -> jnp.ndarray:
    """Set the elements of x that the head's dropout mask drops to zero (`dropout.attention_mask_BNTK`)."""
    if strip.word_TK is None:
        return x_TK
    if sizes.heads_at_once == 2:
        half_TK = strip.word_TK >> 16 if head % 2 else strip.word_TK & jnp.uint32(0xFFFF)
    else:
        half_TK = (strip.word_TK >> ((_seed(sizes, tile, refs, head) & 1) * 16)) & jnp.uint32(0xFFFF)
    return jnp.where(half_TK.astype(jnp.int32) >= threshold(sizes.dropout_rate), x_TK, 0)

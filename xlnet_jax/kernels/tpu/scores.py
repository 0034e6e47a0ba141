"""Compute the scores of a tile of rows with all keys, for the forward and the backward kernel.

    score = (q + r_w) k  +  shift((q + r_r) r)  +  [segments differ] (q + r_s) (s_other - s_same)     each / sqrt(H)

The matrix products cover all rows of a tile and the lanes of a group of heads; lanes of other heads are zero in the
queries. Everything between the products is done for strips of a few rows, whose numbers fit into registers.

The work of a head is divided into stages, and each keeps another unit of the core busy: matrix products, rotations,
arithmetic. Results between stages are in scratch memory. The compiler overlaps only instructions that stand near each
other, so the stages of two heads are mixed, step by step (`run_stages`).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.arguments import MASKED
from xlnet_jax.kernels.dropout import hash_words, row_seed, threshold
from xlnet_jax.kernels.tpu.operands import NEVER, Operands
from xlnet_jax.kernels.tpu.shift import Shift, rotate_by_gather, rotate_by_steps, rotate_in_order, shift_TK
from xlnet_jax.kernels.tpu.tiles import LANES, ROWS, SUBLANES, KeyField, RowField, Sizes, VectorRow

Step: TypeAlias = Callable[[], None]
"""part of a stage, which traces its instructions"""

CHUNK = 256
"""Keys or distances of one matrix product: the width of the largest matrix unit."""

STRIP = 16
"""Rows of a strip: a register of bfloat16 has 16."""


class Tile(NamedTuple):
    """Tile that a grid step computes with a block of keys. There are tiles of content rows and tiles of query rows."""

    is_query: bool
    rows: int  # rows that are computed
    number: jnp.ndarray  # of the tile among those of its kind in the block of positions
    place: "Place"


class Place(NamedTuple):
    """Place of a step in the grid."""

    group: jnp.ndarray  # of heads
    example: jnp.ndarray
    row_block: jnp.ndarray
    key_block: jnp.ndarray
    tile: jnp.ndarray

    @classmethod
    def here(cls) -> "Place":
        return cls(*(pl.program_id(axis) for axis in range(5)))

    def tiles(self, sizes: Sizes) -> tuple[Tile, Tile]:
        """Return this step as a tile of content rows and as a tile of query rows. Only the device knows which one it
        is."""
        content = Tile(False, ROWS, self.tile, self)
        return content, Tile(True, sizes.query_rows, self.tile - sizes.of_block.content_tiles, self)

    def is_busy(self, sizes: Sizes, busy_BS: Any) -> Any:
        """Return False if the step need not be computed (`busy_BS`)."""
        if busy_BS is None:
            return True
        content, query = (tile.number for tile in self.tiles(sizes))
        first_query = sizes.content_tiles
        number = jnp.where(
            query < 0,
            self.row_block * sizes.of_block.content_tiles + content,
            first_query + query * sizes.row_blocks + self.row_block,
        )
        return busy_BS[self.example, number * sizes.key_blocks + self.key_block] != 0

    def is_first(self, sizes: Sizes) -> Any:
        """Return True if no block of keys was computed with this tile before."""
        is_content = self.tile < sizes.of_block.content_tiles
        return (self.key_block == 0) & (is_content | (self.row_block == 0))

    def is_last(self, sizes: Sizes) -> Any:
        """Return True if no block of keys will be computed with this tile after this step."""
        is_content = self.tile < sizes.of_block.content_tiles
        is_last_block = is_content | (self.row_block == sizes.row_blocks - 1)
        return (self.key_block == sizes.key_blocks - 1) & is_last_block


def call_at(sizes: Sizes, place: Place, refs: Operands, compute: Callable[[Tile], None]) -> None:
    """Call `compute` for the tile of content rows or query rows of this step."""
    content, query = place.tiles(sizes)
    is_busy = place.is_busy(sizes, refs.busy_BS)
    pl.when((content.number < sizes.of_block.content_tiles) & is_busy)(lambda: compute(content))
    if sizes.query_tiles:
        pl.when((query.number >= 0) & is_busy)(lambda: compute(query))


class Scratch(NamedTuple):
    """References to what the stages of a tile share. Tuples have an item for each head that is in work
    (`Sizes.buffers`)."""

    integers_T8: Any  # int32, columns RowField.RANK to RowField.NUMBER
    content: tuple[Any, ...]  # float32 [T, K]: (q + r_w) k, and later the scores
    by_distance: tuple[Any, ...]  # float32 [T, R]: (q + r_r) r; empty without relative positions
    segment: tuple[Any, ...]  # float32 [T, 128], the same in all lanes: (q + r_s) (s_other - s_same)
    words: tuple[Any, ...]  # int32 [T, K]: random words, one item if heads share them; empty without dropout
    fields: tuple[Any, ...]  # of `Sizes.compared_fields`, int32 [T, 128], the same in all lanes


def scratch_shapes(sizes: Sizes) -> Scratch:
    """Return the scratch memory of a tile."""
    return Scratch(
        pltpu.VMEM((ROWS, SUBLANES), jnp.int32),
        head_scratch(sizes, sizes.padded_keys, jnp.float32),
        head_scratch(sizes, sizes.window, jnp.float32, sizes.num_directions > 0),
        head_scratch(sizes, LANES, jnp.float32, sizes.has_segments),
        head_scratch(sizes, sizes.padded_keys, jnp.int32, sizes.dropout_rate > 0)[: 1 if sizes.shares_words else None],
        (pltpu.VMEM((ROWS, LANES), jnp.int32),) * len(sizes.compared_fields),
    )


def head_scratch(sizes: Sizes, width: int, dtype: Any, is_used: bool = True) -> tuple[Any, ...]:
    """Return scratch memory [T, width] for each buffer; none if it is not used."""
    return (pltpu.VMEM((ROWS, width), dtype),) * (sizes.buffers if is_used else 0)


# ---- rows of a tile --------------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """Queries of a tile with each bias, scaled. Scores are in base 2: the weight is 2 ** score."""

    with_r_w_TH: jnp.ndarray
    with_r_r_TH: jnp.ndarray
    with_r_s_TH: jnp.ndarray  # float32


def read_rows(sizes: Sizes, tile: Tile, refs: Operands, scale: float) -> Rows:
    """Read the queries of a tile, multiplied by a number."""
    query_TH = read_real_TH(sizes, tile, refs.query_BTH)
    with_r_w_TH, with_r_r_TH, with_r_s_TH = (
        (query_TH + refs.vectors_8H[row : row + 1]) * scale for row in (VectorRow.R_W, VectorRow.R_R, VectorRow.R_S)
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


def window_of(sizes: Sizes, tile: Tile, chunk: Any) -> Any:
    """Return the rows of the position keys that a tile reads."""
    start = 0 if tile.is_query else pl.multiple_of(sizes.padded_places - (tile.number + 1) * ROWS, ROWS)
    return pl.ds(start + chunk.start, chunk.size)


def direction_of(tile: Tile, refs: Operands) -> Any:
    """Return the index of the table of position keys for an example: 0 = forwards, 1 = backwards."""
    return 0 if refs.is_reversed_B is None else refs.is_reversed_B[tile.place.example]


def chunks(width: int) -> list[Any]:
    """Divide a width into slices for one matrix product each."""
    return [pl.ds(start, min(CHUNK, width - start)) for start in range(0, width, CHUNK)]


def product_steps(sizes: Sizes, tile: Tile, rows: Rows, refs: Operands, scratch: Scratch, head: int) -> list[Step]:
    """Return the steps that store the products of a head's queries with all keys, and its random words."""
    i, here, mask_1H = head % sizes.buffers, slice(0, tile.rows), in_head_1H(sizes, head)
    with_r_w_TH, with_r_r_TH = (jnp.where(mask_1H, x_TH, 0) for x_TH in (rows.with_r_w_TH, rows.with_r_r_TH))

    def multiply_keys(chunk: Any) -> None:
        scratch.content[i][here, chunk] = product(with_r_w_TH, read_keys_KH(sizes, refs.key_BKH, chunk), 1, 1)

    def multiply_distances(chunk: Any) -> None:
        scratch.by_distance[i][here, chunk] = product(with_r_r_TH, read_window_RH(sizes, tile, refs, chunk), 1, 1)

    def multiply_segment() -> None:
        other_1H = jnp.where(mask_1H, refs.vectors_8H[VectorRow.OTHER_SEGMENT : VectorRow.OTHER_SEGMENT + 1], 0.0)
        segment_T1 = (rows.with_r_s_TH * other_1H).sum(1, keepdims=True)
        scratch.segment[i][here] = jnp.broadcast_to(segment_T1, (tile.rows, LANES))

    steps: list[Step] = [functools.partial(multiply_keys, chunk) for chunk in chunks(sizes.padded_keys)]
    if sizes.num_directions:
        steps += [functools.partial(multiply_distances, chunk) for chunk in chunks(window_width(sizes, tile))]
    steps += [multiply_segment] * sizes.has_segments
    return steps + word_steps(sizes, tile, refs, scratch, head)


def read_keys_KH(sizes: Sizes, x_BKH: Any, chunk: Any) -> jnp.ndarray:
    """Read keys or values in the type in which they are multiplied."""
    x_KH = x_BKH[0, chunk]
    return x_KH.astype(sizes.product_type(x_KH.dtype))


def read_window_RH(sizes: Sizes, tile: Tile, refs: Operands, chunk: Any) -> jnp.ndarray:
    """Read the position keys of a tile in the direction of its example."""
    window_RH = refs.position_2RH[direction_of(tile, refs), window_of(sizes, tile, chunk)]
    return window_RH.astype(sizes.product_type(window_RH.dtype))


# ---- stages ----------------------------------------------------------------------------------------------------------


def run_stages(sizes: Sizes, stages: list[Callable[[int], list[Step]]]) -> None:
    """Run the stages of all heads. With two buffers, two heads are in work, one of them a stage ahead.

    stages: functions of a head that return its steps
    """
    for first in range(0, sizes.heads_in_group, sizes.buffers):
        heads = range(first, min(first + sizes.buffers, sizes.heads_in_group))
        for time in range(len(stages) + len(heads) - 1):
            lists = [stages[time - i](head) for i, head in enumerate(heads) if 0 <= time - i < len(stages)]
            # Evenly mixed.
            ranks = [((at + 0.5) / len(steps), step) for steps in lists for at, step in enumerate(steps)]
            for _, step in sorted(ranks, key=lambda item: item[0]):
                step()


# ---- strips ----------------------------------------------------------------------------------------------------------


def strip_steps(sizes: Sizes, tile: Tile, *bodies: Callable[[Any], None]) -> list[Step]:
    """Return the steps that call functions with the first row of each strip of a tile. Each function depends on the one
    before and is one strip behind it."""
    count = tile.rows // STRIP
    if sizes.generation.unrolls:
        return [
            functools.partial(body, (time - lag) * STRIP)
            for time in range(count + len(bodies) - 1)
            for lag, body in enumerate(bodies)
            if 0 <= time - lag < count
        ]

    def run(body: Callable[[Any], None]) -> None:
        pl.loop(0, count)(lambda number: body(pl.multiple_of(number * STRIP, STRIP)))

    return [functools.partial(run, body) for body in bodies]


def read_integers(whole: Sizes, place: Place, refs: Operands, scratch: Scratch) -> None:
    """Read the integers of the rows of a tile; of a long window, with positions relative to the block. A column would
    use one lane of each register, so they are rows in memory and are transposed on the chip."""
    row_T8 = refs.rows_B8T[0].T
    if not whole.fits:
        is_position_18 = jax.lax.broadcasted_iota(jnp.int32, (1, SUBLANES), 1) == RowField.POSITION
        row_T8 -= jnp.where(is_position_18, place.row_block * whole.row_block, 0)
    scratch.integers_T8[...] = row_T8
    for field, row_T in zip(whole.compared_fields, scratch.fields, strict=True):
        row_T[...] = jnp.broadcast_to(scratch.integers_T8[:, field : field + 1], row_T.shape)


def is_here_T1(whole: Sizes, tile: Tile, scratch: Scratch) -> jnp.ndarray | bool:
    """Return False for the query rows of a tile whose positions are in other blocks: their results are not used."""
    if whole.fits or not tile.is_query:
        return True
    position_T1 = scratch.integers_T8[: tile.rows, RowField.POSITION : RowField.POSITION + 1]
    return (position_T1 >= 0) & (position_T1 < whole.row_block)


def word_steps(sizes: Sizes, tile: Tile, refs: Operands, scratch: Scratch, head: int) -> list[Step]:
    """Return the steps that store the random words of a head, unless those of the head before are the same."""
    if refs.seed_BN is None or (sizes.shares_words and head % 2):
        return []

    def draw(start: Any) -> None:
        here = pl.ds(start, STRIP)
        number_T1 = scratch.integers_T8[here][:, RowField.NUMBER : RowField.NUMBER + 1]
        number_1K = refs.keys_B8K[0][KeyField.NUMBER : KeyField.NUMBER + 1]
        word_TK = hash_words(row_seed(_seed(sizes, tile, refs, head), number_T1), number_1K)
        # With the highest bit of both halves inverted, signed numbers compare as unsigned ones.
        scratch.words[head % len(scratch.words)][here] = (word_TK ^ jnp.uint32(0x80008000)).astype(jnp.int32)

    return strip_steps(sizes, tile, draw)


def shift_of(sizes: Sizes, tile: Tile, scratch: Scratch, start: Any) -> Shift:
    """Return the shift of a strip, relative to the window of `window_of`."""
    rotate = rotate_by_gather if sizes.generation.gathers_lanes else rotate_by_steps
    if tile.is_query:
        position_T1 = scratch.integers_T8[pl.ds(start, STRIP)][:, RowField.POSITION : RowField.POSITION + 1]
        turn_T1, skip_T1 = position_T1 & (LANES - 1), (sizes.padded_places - 1 - position_T1) >> 7
        right, left = (functools.partial(rotate, amount_T1=amount_T1) for amount_T1 in (turn_T1, LANES - turn_T1))
        return Shift(turn_T1, skip_T1, right, left)
    row_T1, last = jax.lax.broadcasted_iota(jnp.int32, (STRIP, 1), 0), STRIP - 1
    turn_T1 = row_T1 + start
    if not sizes.generation.gathers_lanes:
        right = functools.partial(rotate_by_steps, amount_T1=row_T1, base=start, below=STRIP)
        left = functools.partial(rotate_by_steps, amount_T1=last - row_T1, base=LANES - last - start, below=STRIP)
        return Shift(turn_T1, None, right, left)
    left = functools.partial(rotate_by_gather, amount_T1=LANES - turn_T1)
    if sizes.generation.rotates_in_order:
        return Shift(turn_T1, None, functools.partial(rotate_in_order, first=start), left)
    return Shift(turn_T1, None, functools.partial(rotate_by_gather, amount_T1=turn_T1), left)


def shift_steps(sizes: Sizes, tile: Tile, scratch: Scratch, head: int) -> list[Step]:
    """Return the steps that add a head's scores by distance to its scores by key."""
    if not sizes.num_directions:
        return []
    content, by_distance = (arrays[head % sizes.buffers] for arrays in (scratch.content, scratch.by_distance))

    def add(start: Any) -> None:
        here, shift = pl.ds(start, STRIP), shift_of(sizes, tile, scratch, start)
        content[here] += shift_TK(by_distance[here, : window_width(sizes, tile)], shift, sizes.padded_keys)

    return strip_steps(sizes, tile, add)


def widen_TK(sizes: Sizes, column: Any, here: Any) -> jnp.ndarray:
    """Read a column that is stored in all lanes of a register, as [T, K]."""
    return jnp.concatenate([column[here]] * (sizes.padded_keys // LANES), axis=1)


def row_TK(sizes: Sizes, scratch: Scratch, field: int, here: Any) -> jnp.ndarray:
    """Read a field of the rows of a strip."""
    return widen_TK(sizes, scratch.fields[sizes.compared_fields.index(field)], here)


def is_other_TK(sizes: Sizes, refs: Operands, scratch: Scratch, here: Any) -> jnp.ndarray:
    """Return True where a key is in another segment."""
    key_8K = refs.keys_B8K[0]
    return key_8K[KeyField.SEGMENT : KeyField.SEGMENT + 1] != row_TK(sizes, scratch, RowField.SEGMENT, here)


def scores_TK(sizes: Sizes, refs: Operands, scratch: Scratch, head: int, here: Any) -> jnp.ndarray:
    """Return the masked scores of a strip of rows for a head."""
    i, key_8K, conditions = head % sizes.buffers, refs.keys_B8K[0], []

    def key_1K(field: int) -> jnp.ndarray:
        return key_8K[field : field + 1]

    if sizes.has_ranks:
        conditions.append(key_1K(KeyField.RANK) <= row_TK(sizes, scratch, RowField.RANK, here))
    if sizes.has_span:
        position_1K = key_1K(KeyField.POSITION)
        conditions.append(position_1K >= row_TK(sizes, scratch, RowField.FIRST, here))
        conditions.append(position_1K <= row_TK(sizes, scratch, RowField.LAST, here))
    # A row that sees no key has a uniform softmax over the real keys, not over padding.
    hidden_1K = jnp.where(key_1K(KeyField.NUMBER) == NEVER, 2 * MASKED, MASKED)
    score_TK = scratch.content[i][here]
    if sizes.has_segments:
        score_TK += jnp.where(is_other_TK(sizes, refs, scratch, here), widen_TK(sizes, scratch.segment[i], here), 0.0)
    # Next to MASKED a float32 score vanishes, so this equals a sum: gradients do not stop at hidden keys.
    return jnp.where(functools.reduce(jnp.logical_and, conditions), score_TK, hidden_1K)


def _seed(sizes: Sizes, tile: Tile, refs: Operands, head: int) -> jnp.ndarray:
    return refs.seed_BN[tile.place.example, tile.place.group * sizes.group + head].astype(jnp.uint32)


def drop_TK(
    sizes: Sizes, tile: Tile, refs: Operands, scratch: Scratch, head: int, here: Any, *xs_TK: jnp.ndarray
) -> list[jnp.ndarray]:
    """Set the elements of x that the head's dropout mask drops to zero (`dropout.attention_mask_BNTK`)."""
    if refs.seed_BN is None:
        return list(xs_TK)
    word_TK = scratch.words[head % len(scratch.words)][here]
    # The lower half of a word is for even heads. Bits below the compared half change nothing.
    if not sizes.shares_words:
        word_TK = word_TK << (16 - 16 * (_seed(sizes, tile, refs, head) & 1)).astype(jnp.int32)
    elif head % 2 == 0:
        word_TK = word_TK << 16
    is_kept_TK = word_TK >= (threshold(sizes.dropout_rate) << 16) - 2**31
    return [jnp.where(is_kept_TK, x_TK, 0) for x_TK in xs_TK]

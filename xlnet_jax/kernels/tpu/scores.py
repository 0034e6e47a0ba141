"""Compute the scores of a tile of rows with all keys, for the forward and the backward kernel.

    score = (q + r_w) k  +  shift((q + r_r) r)  +  [segments differ] (q + r_s) (s_other - s_same)     each / sqrt(H)

The matrix products cover all rows of a tile and the lanes of a group of heads; lanes of other heads are zero in the
queries. Products whose result has the width of a head are computed transposed: a matrix unit holds one operand, of 128
x 128 numbers, and takes one cycle per row of the other, and a head has only 64 columns. So keys, position keys and
queries are transposed once, [H, K], and the scores never. Everything between the products is done for strips of a few
rows, whose numbers fit into registers.

The work of a head is divided into stages, and each uses a different unit of the core: matrix products, rotations,
arithmetic. Results between stages are in scratch memory. The compiler overlaps only instructions that are near each
other, so the stages of two heads are mixed, step by step (`run_stages`)."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.arguments import MASKED
from xlnet_jax.kernels.dropout import column_seed, lowbias32, row_seed, threshold
from xlnet_jax.kernels.tpu.grid import Place
from xlnet_jax.kernels.tpu.operands import NEVER, TpuOperands
from xlnet_jax.kernels.tpu.shift import (
    Shift,
    in_pairs,
    rotate_by_gather,
    rotate_by_steps,
    rotate_in_order,
    rotate_in_order_by_steps,
    shift_TK,
)
from xlnet_jax.kernels.tpu.tiles import LANES, ROWS, SUBLANES, KeyField, RowField, TpuSizes, VectorRow

Step: TypeAlias = Callable[[], None]
"""part of a stage, which traces its instructions"""

CHUNK = 256
"""Keys or distances of one matrix product: the width of the largest matrix unit."""

STRIP = 16
"""Rows of a strip: a register of bfloat16 has 16."""


class Scratch(NamedTuple):
    """References to what the stages of a tile share. Tuples have an item for each head in flight
    (`TpuSizes.buffers`)."""

    integers_T8: Any  # int32, columns RowField.RANK to RowField.NUMBER
    rows: dict[int, Any]  # by RowField, of `TpuSizes.row_fields`: int32 [T, 128], the same in all lanes
    keys: dict[int, Any]  # by KeyField, of `TpuSizes.key_fields`: int32 [8, K], the same in all rows
    hidden_8K: Any  # float32: the score of a key that a row does not see
    content: tuple[Any, ...]  # float32 [T, K]: (q + r_w) k, and later the scores
    by_distance: tuple[Any, ...]  # float32 [T, R]: (q + r_r) r; empty without relative positions
    segment: tuple[Any, ...]  # float32 [T, 128], the same in all lanes: (q + r_s) (s_other - s_same)
    words: tuple[Any, ...]  # int32 [T, K]: random words, one item if heads share them; empty without dropout


def scratch_shapes(sizes: TpuSizes) -> Scratch:
    """Return the scratch memory of a tile."""
    words = head_scratch(sizes, sizes.padded_keys, jnp.int32, sizes.dropout_rate > 0)
    return Scratch(
        pltpu.VMEM((ROWS, SUBLANES), jnp.int32),
        dict.fromkeys(sizes.row_fields, pltpu.VMEM((ROWS, LANES), jnp.int32)),
        dict.fromkeys(sizes.key_fields, pltpu.VMEM((SUBLANES, sizes.padded_keys), jnp.int32)),
        pltpu.VMEM((SUBLANES, sizes.padded_keys), jnp.float32),
        head_scratch(sizes, sizes.padded_keys, jnp.float32),
        head_scratch(sizes, sizes.window, jnp.float32, sizes.num_directions > 0),
        head_scratch(sizes, LANES, jnp.float32, sizes.has_segments),
        words[: 1 if sizes.shares_words else None],
    )


def head_scratch(sizes: TpuSizes, width: int, dtype: Any, is_used: bool = True) -> tuple[Any, ...]:
    """Return `packed` scratch memory [T, width] for each buffer; none if it is not used."""
    return (packed(ROWS, width, dtype),) * (sizes.buffers if is_used else 0)


def packed(rows: int, width: int, dtype: Any) -> Any:
    """Return scratch memory for `store` and `load`. Two rows of bfloat16 are stored as one of int32: an array of
    bfloat16 would fill only half of each register that is stored or loaded."""
    return pltpu.VMEM((rows // 2, width), jnp.int32) if dtype == jnp.bfloat16 else pltpu.VMEM((rows, width), dtype)


def store(there: Any, start: Any, x: jnp.ndarray) -> None:
    """Store an array in the rows from `start` of `packed` memory, and its first columns."""
    if x.dtype == jnp.bfloat16:
        start, x = start // 2, pltpu.bitcast(x, jnp.int32)
    there[pl.ds(start, x.shape[0]), : x.shape[1]] = x


def load(there: Any, start: Any, rows: int, columns: Any = slice(None)) -> jnp.ndarray:
    """Load rows from `start` of `packed` memory."""
    if there.dtype != jnp.int32:
        return there[pl.ds(start, rows), columns]
    return pltpu.bitcast(there[pl.ds(start // 2, rows // 2), columns], jnp.bfloat16)


def read_keys(refs: TpuOperands, scratch: Scratch) -> None:
    """Read the integers of the keys, once for all tiles. In memory they are single rows, which every tile would have to
    repeat."""
    key_8K = refs.keys_B8K[0]

    def repeat_8K(row_1K: jnp.ndarray) -> jnp.ndarray:
        return jnp.broadcast_to(row_1K, key_8K.shape)

    for field, field_8K in scratch.keys.items():
        field_1K = key_8K[field : field + 1]
        field_8K[...] = repeat_8K(column_seed(field_1K).astype(jnp.int32) if field == KeyField.NUMBER else field_1K)
    # A row that sees no key has a uniform softmax over the real keys, not over padding.
    is_padding_1K = key_8K[KeyField.NUMBER : KeyField.NUMBER + 1] == NEVER
    scratch.hidden_8K[...] = repeat_8K(jnp.where(is_padding_1K, 2 * MASKED, MASKED))


# ---- matrices --------------------------------------------------------------------------------------------------------


def product(a: jnp.ndarray, b: jnp.ndarray, axis_a: int, axis_b: int) -> jnp.ndarray:
    """Return the float32 product of two matrices, summed over these axes."""
    return jax.lax.dot_general(a, b, (((axis_a,), (axis_b,)), ((), ())), preferred_element_type=jnp.float32)


def chunks(width: int) -> list[Any]:
    """Divide a width into slices for one matrix product each."""
    return [pl.ds(start, min(CHUNK, width - start)) for start in range(0, width, CHUNK)]


def in_head_1H(sizes: TpuSizes, head: int) -> jnp.ndarray:
    """Return bool [1, H]: True = a lane of this head of the group."""
    lane_1H = jax.lax.broadcasted_iota(jnp.int32, (1, sizes.width), 1)
    return (lane_1H >= head * sizes.head_width) & (lane_1H < (head + 1) * sizes.head_width)


def by_lane_TH(sizes: TpuSizes, columns_T1: list[jnp.ndarray]) -> jnp.ndarray:
    """Return a column of each head of the group in the lanes of the head; zeros in other lanes."""
    x_TH = jnp.zeros((len(columns_T1[0]), sizes.width), jnp.float32)
    for head, column_T1 in enumerate(columns_T1):
        x_TH = jnp.where(in_head_1H(sizes, head), column_T1, x_TH)
    return x_TH


def join_heads_TH(sizes: TpuSizes, heads_HT: list[jnp.ndarray]) -> jnp.ndarray:
    """Join the transposed results of the heads of a group; zeros in the lanes of missing heads."""
    missing = sizes.group - len(heads_HT)
    zeros_HT = jnp.zeros((missing * sizes.head_width, heads_HT[0].shape[1]), jnp.float32)
    return jnp.concatenate([*heads_HT, *[zeros_HT] * (missing > 0)], axis=0).T


def add_to(total: dict[int, jnp.ndarray], head: int, x: jnp.ndarray) -> None:
    """Add to the total of a head."""
    total[head] = total[head] + x if head in total else x


# ---- stages ----------------------------------------------------------------------------------------------------------


def run_stages(sizes: TpuSizes, stages: list[Callable[[int], list[Step]]]) -> None:
    """Run the stages of all heads. With two buffers, two heads are in flight, one of them a stage ahead.

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


@dataclass(frozen=True)
class ScoreStages:
    """Stages that compute the scores of a tile, for the forward and the backward kernel. Scores are in base 2: the
    weight is 2 ** score."""

    whole: TpuSizes
    place: Place
    is_query: bool
    """True = the rows of the tile are query rows, False = content rows"""
    refs: TpuOperands
    scratch: Scratch

    @property
    def sizes(self) -> TpuSizes:
        """Sizes of a block, if the window is long."""
        return self.whole.of_block

    # ---- inputs ------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Number of rows that are computed."""
        return self.sizes.query_rows if self.is_query else ROWS

    @property
    def number(self) -> jnp.ndarray:
        """Number of the tile among those of its kind in the block of positions."""
        return self.place.tile - self.sizes.content_tiles if self.is_query else self.place.tile

    @property
    def here(self) -> Any:
        """Slice of the rows that are computed."""
        return slice(0, self.rows)

    @property
    def operand(self) -> jnp.dtype:
        """dtype of the matmul operands."""
        return self.refs.query_BTH.dtype

    @property
    def window_width(self) -> int:
        """Number of distances that the tile reads: a diagonal band for content rows, all for query rows."""
        return self.sizes.padded_distances if self.is_query else self.sizes.padded_keys + LANES

    def buffer(self, head: int) -> int:
        """Return the number of the head's scratch memory."""
        return head % self.sizes.buffers

    def read_integers(self) -> None:
        """Read the integers of the rows; of a long window, with positions relative to the block. A column would use one
        lane of each register, so they are rows in memory and are transposed on the chip."""
        row_T8 = self.refs.rows_B8T[0].T
        if not self.whole.fits:
            is_position_18 = jax.lax.broadcasted_iota(jnp.int32, (1, SUBLANES), 1) == RowField.POSITION
            row_T8 -= jnp.where(is_position_18, self.place.row_block * self.whole.row_block, 0)
        self.scratch.integers_T8[...] = row_T8
        for field, field_T in self.scratch.rows.items():
            if self.is_query or field != RowField.POSITION:
                field_T[...] = jnp.broadcast_to(self.scratch.integers_T8[:, field : field + 1], field_T.shape)

    def is_here_1T(self, rows: int) -> jnp.ndarray | bool:
        """Return False for the query rows whose positions are in other blocks: their results are not used."""
        if self.whole.fits or not self.is_query:
            return True
        position_1T = self.refs.rows_B8T[0, RowField.POSITION : RowField.POSITION + 1, :rows]
        position_1T -= self.place.row_block * self.whole.row_block
        return (position_1T >= 0) & (position_1T < self.whole.row_block)

    def read_rows(self, scale: float) -> list[jnp.ndarray]:
        """Read the queries with r_w, with r_r and with r_s, multiplied by a number: float32 [T, H] each."""
        query_TH, biases = self.read_real_TH(self.refs.query_BTH), (VectorRow.R_W, VectorRow.R_R, VectorRow.R_S)
        return [(query_TH + self.refs.vectors_8H[row : row + 1]) * scale for row in biases]

    def read_real_TH(self, rows_BTH: Any) -> jnp.ndarray:
        """Read the rows of the tile as float32. Rows past the last one are set to zero: their memory is undefined."""
        rows_TH = rows_BTH[0, self.here].astype(jnp.float32)
        if not self.is_query:
            return rows_TH
        row_T1 = jax.lax.broadcasted_iota(jnp.int32, (self.rows, 1), 0) + self.number * ROWS
        return jnp.where(row_T1 < self.sizes.num_targets, rows_TH, 0.0)

    def select_TH(self, head: int, x_TH: jnp.ndarray) -> jnp.ndarray:
        """Return the operand of a product with zeros in the lanes of other heads."""
        return jnp.where(in_head_1H(self.sizes, head), x_TH, 0.0).astype(self.operand)

    def load_head_HK(self, x_HK: Any, head: int, chunk: Any) -> jnp.ndarray:
        """Load the rows of a head from transposed keys or values."""
        return load(x_HK, head * self.sizes.head_width, self.sizes.head_width, chunk)

    def window_of(self, chunk: Any) -> Any:
        """Return the columns of the position keys that the tile reads."""
        places = self.sizes.padded_places
        start = 0 if self.is_query else pl.multiple_of(places - (self.number + 1) * ROWS, ROWS)
        return pl.ds(start + chunk.start, chunk.size)

    def read_window_HR(self, chunk: Any, lanes: Any = slice(None)) -> jnp.ndarray:
        """Read position keys in the direction of the example. lanes: of a head."""
        return self.refs.position_2HR[direction_of(self.place, self.refs), lanes, self.window_of(chunk)]

    # ---- products ----------------------------------------------------------------------------------------------------

    def product_steps(self, rows: list[jnp.ndarray], head: int) -> list[Step]:
        """Return the steps that store the products of a head's queries with all keys, and its random words. rows: from
        `read_rows`."""
        sizes, scratch, i = self.sizes, self.scratch, self.buffer(head)
        (with_r_w_TH, with_r_r_TH), with_r_s_TH = (self.select_TH(head, x_TH) for x_TH in rows[:2]), rows[2]

        def multiply_keys(chunk: Any) -> None:
            scratch.content[i][self.here, chunk] = product(with_r_w_TH, self.refs.key_BKH[0, chunk], 1, 1)

        def multiply_distances(chunk: Any) -> None:
            scratch.by_distance[i][self.here, chunk] = product(with_r_r_TH, self.read_window_HR(chunk), 1, 0)

        def multiply_segment() -> None:
            other_1H = self.refs.vectors_8H[VectorRow.OTHER_SEGMENT : VectorRow.OTHER_SEGMENT + 1]
            of_head_1H = jnp.where(in_head_1H(sizes, head), other_1H, 0.0)
            segment_T1 = (with_r_s_TH * of_head_1H).sum(1, keepdims=True)
            scratch.segment[i][self.here] = jnp.broadcast_to(segment_T1, (self.rows, LANES))

        steps: list[Step] = [functools.partial(multiply_keys, chunk) for chunk in chunks(sizes.padded_keys)]
        if sizes.num_directions:
            steps += [functools.partial(multiply_distances, chunk) for chunk in chunks(self.window_width)]
        steps += [multiply_segment] * sizes.has_segments
        return steps + self.word_steps(head)

    def word_steps(self, head: int) -> list[Step]:
        """Return the steps that store the random words of a head, unless those of the head before are the same."""
        if self.refs.seed_BN is None or (self.sizes.shares_words and head % 2):
            return []
        words_TK = self.scratch.words[head % len(self.scratch.words)]
        by_shifts = not self.sizes.generation.multiplies_integers

        def draw(start: Any) -> None:
            here = pl.ds(start, STRIP)
            number_T1 = self.scratch.integers_T8[here][:, RowField.NUMBER : RowField.NUMBER + 1]
            seed_T1 = row_seed(self.seed(head), number_T1, by_shifts=by_shifts)
            word_TK = lowbias32(seed_T1 + self.key_TK(KeyField.NUMBER).astype(jnp.uint32), by_shifts=by_shifts)
            # With the highest bit of both halves inverted, signed numbers compare as unsigned ones.
            words_TK[here] = (word_TK ^ jnp.uint32(0x80008000)).astype(jnp.int32)

        return self.strip_steps(draw)

    def seed(self, head: int) -> jnp.ndarray:
        """Return the seed of the head's dropout."""
        return self.refs.seed_BN[self.place.example, self.place.group * self.sizes.group + head].astype(jnp.uint32)

    # ---- strips ------------------------------------------------------------------------------------------------------

    def strip_steps(self, *bodies: Callable[[Any], None], rows: int = STRIP) -> list[Step]:
        """Return the steps that call functions with the first row of each strip of the tile. Each function depends on
        the one before and is one strip behind it. rows: height of a strip"""
        count = self.rows // rows
        if self.sizes.generation.unrolls:
            return [
                functools.partial(body, (time - lag) * rows)
                for time in range(count + len(bodies) - 1)
                for lag, body in enumerate(bodies)
                if 0 <= time - lag < count
            ]

        def run(body: Callable[[Any], None]) -> None:
            pl.loop(0, count)(lambda number: body(pl.multiple_of(number * rows, rows)))

        return [functools.partial(run, body) for body in bodies]

    @property
    def shift_rows(self) -> int:
        """Number of rows that are shifted together: more where strips are not unrolled, to hide the waits."""
        return STRIP if self.sizes.generation.unrolls or self.rows % (2 * STRIP) else 2 * STRIP

    def shift_of(self, start: Any) -> Shift:
        """Return the shift of a strip, relative to the window of `window_of`."""
        shift = self.shift_of_float32(start)
        if not self.sizes.rotates_pairs:
            return shift
        return shift._replace(right=in_pairs(shift.right), left=in_pairs(shift.left))

    def shift_of_float32(self, start: Any) -> Shift:
        """Return the same shift, one register at a time."""
        generation = self.sizes.generation
        rotate = rotate_by_gather if generation.gathers_lanes else rotate_by_steps
        if self.is_query:
            position_T = self.scratch.rows[RowField.POSITION][pl.ds(start, self.shift_rows)]
            turn_T, skip_T = position_T & (LANES - 1), (self.sizes.padded_places - 1 - position_T) >> 7
            right, left = (functools.partial(rotate, amount_T=amount_T) for amount_T in (turn_T, LANES - turn_T))
            return Shift(turn_T, skip_T, right, left)
        turn_T1 = jax.lax.broadcasted_iota(jnp.int32, (self.shift_rows, 1), 0) + start
        if not generation.gathers_lanes:
            right = functools.partial(rotate_in_order_by_steps, first=start, change=1)
            left = functools.partial(rotate_in_order_by_steps, first=LANES - start, change=-1)
            return Shift(turn_T1, None, right, left)
        left = functools.partial(rotate_by_gather, amount_T=LANES - turn_T1)
        if generation.rotates_in_order:
            return Shift(turn_T1, None, functools.partial(rotate_in_order, first=start), left)
        return Shift(turn_T1, None, functools.partial(rotate_by_gather, amount_T=turn_T1), left)

    def shift_steps(self, head: int) -> list[Step]:
        """Return the steps that add a head's scores by distance to its scores by key."""
        if not self.sizes.num_directions:
            return []
        content, by_distance = (
            arrays[self.buffer(head)] for arrays in (self.scratch.content, self.scratch.by_distance)
        )

        def add(start: Any) -> None:
            here = pl.ds(start, self.shift_rows)
            by_distance_TR = by_distance[here, : self.window_width]
            content[here] += shift_TK(by_distance_TR, self.shift_of(start), self.sizes.padded_keys)

        return self.strip_steps(add, rows=self.shift_rows)

    def widen_TK(self, column: Any, here: Any) -> jnp.ndarray:
        """Read a column that is stored in all lanes of a register, as [T, K]."""
        return jnp.concatenate([column[here]] * (self.sizes.padded_keys // LANES), axis=1)

    def row_TK(self, field: int, here: Any) -> jnp.ndarray:
        """Read a field of the rows of a strip."""
        return self.widen_TK(self.scratch.rows[field], here)

    def key_TK(self, field: int) -> jnp.ndarray:
        """Read a field of the keys for the rows of a strip."""
        return repeat_TK(self.scratch.keys[field])

    def is_other_TK(self, here: Any) -> jnp.ndarray:
        """Return True where a key is in another segment."""
        return self.key_TK(KeyField.SEGMENT) != self.row_TK(RowField.SEGMENT, here)

    def scores_TK(self, head: int, here: Any) -> jnp.ndarray:
        """Return the masked scores of a strip of rows for a head."""
        sizes, i, conditions = self.sizes, self.buffer(head), []
        if sizes.has_ranks:
            conditions.append(self.key_TK(KeyField.RANK) <= self.row_TK(RowField.RANK, here))
        if sizes.has_span:
            position_TK = self.key_TK(KeyField.POSITION)
            conditions.append(position_TK >= self.row_TK(RowField.FIRST, here))
            conditions.append(position_TK <= self.row_TK(RowField.LAST, here))
        score_TK = self.scratch.content[i][here]
        if sizes.has_segments:
            score_TK += jnp.where(self.is_other_TK(here), self.widen_TK(self.scratch.segment[i], here), 0.0)
        # Next to MASKED a float32 score vanishes, so this equals a sum: gradients do not stop at hidden keys.
        return jnp.where(functools.reduce(jnp.logical_and, conditions), score_TK, repeat_TK(self.scratch.hidden_8K))

    def drop_TK(self, head: int, here: Any, *xs_TK: jnp.ndarray) -> list[jnp.ndarray]:
        """Set the elements of x that the head's dropout mask drops to zero (`dropout.attention_mask_BNTK`)."""
        if self.refs.seed_BN is None:
            return list(xs_TK)
        word_TK = self.scratch.words[head % len(self.scratch.words)][here]
        # The lower half of a word is for even heads. Bits below the compared half change nothing.
        if not self.sizes.shares_words:
            word_TK = word_TK << (16 - 16 * (self.seed(head) & 1)).astype(jnp.int32)
        elif head % 2 == 0:
            word_TK = word_TK << 16
        is_kept_TK = word_TK >= (threshold(self.sizes.dropout_rate) << 16) - 2**31
        return [jnp.where(is_kept_TK, x_TK, 0) for x_TK in xs_TK]


def repeat_TK(rows_8K: Any) -> jnp.ndarray:
    """Read an array with equal rows, for the rows of a strip."""
    return jnp.concatenate([rows_8K[...]] * (STRIP // SUBLANES), axis=0)


def direction_of(place: Place, refs: TpuOperands) -> Any:
    """Return the index of the table of position keys for an example: 0 = forwards, 1 = backwards."""
    return 0 if refs.is_reversed_B is None else refs.is_reversed_B[place.example]

"""Define the backward kernel. It computes the gradients of all operands in one pass over the tiles of rows.

With w = exp(score - maximum) and s = 1 / (sum of w) of a row, and m the dropout mask scaled by 1 / (1 - rate):

    d value = (m w s)^T d output
    d score = w s (m (d output value^T) - mean),   mean = sum over features of output x d output
    d query = d score key + unshift(d score) position key + (sum over other segments of d score) difference

and the transposes of the last line for keys, position keys and the difference of the segment keys. Output and d output
are multiplied by s instead of the scores, because they are smaller. Of a window divided into blocks of keys, maximum
and sum are those of all blocks, so the gradients of blocks are simply summed.
"""

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.arguments import MASKED, like
from xlnet_jax.kernels.tpu.grid import Place, call_at, compiler_params, grid_of
from xlnet_jax.kernels.tpu.operands import (
    TpuOperands,
    estimate_cost,
    first_distance,
    operand_blocks,
    row_blocks,
)
from xlnet_jax.kernels.tpu.scores import (
    STRIP,
    ScoreStages,
    Scratch,
    Step,
    add_to,
    by_lane_TH,
    chunks,
    direction_of,
    head_scratch,
    in_head_1H,
    join_heads_TH,
    load,
    packed,
    product,
    read_keys,
    run_stages,
    scratch_shapes,
    store,
)
from xlnet_jax.kernels.tpu.shift import unshift_TR
from xlnet_jax.kernels.tpu.tiles import LANES, ROWS, TpuSizes, VectorRow


class BackwardScratch(NamedTuple):
    """Scratch memory of the backward kernel besides `Scratch`."""

    # Of the keys of an example: the keys, and float32 sums over its rows.
    transposed_HK: Any
    key_sum_HK: Any
    value_sum_HK: Any
    # Of the strips of a tile; tuples have an item for each head in flight. With float32 operands, `dropped`, `grad` and
    # `by_distance` are empty, and other memory is reused.
    softmax_TS: Any  # columns: maximum and 1 / sum of each head of the group
    maximum: tuple[Any, ...]  # float32 [T, 128], the same in all lanes
    mean: tuple[Any, ...]  # float32 [T, 128], the same in all lanes
    wanted: tuple[Any, ...]  # float32 [T, K]: d output value^T
    dropped: tuple[Any, ...]  # [T, K]: dropout(w)
    grad: tuple[Any, ...]  # [T, K]: d score
    by_distance: tuple[Any, ...]  # [T, R]: d score by distance; empty without relative positions
    other: tuple[Any, ...]  # float32 [T, 1]: sum of d score over keys in other segments; empty without segments
    # Of a long window, float32.
    query_sum_TH: Any = None  # over the blocks of keys, for the rows of a block of positions and all query rows
    position_sum_HR: Any = None  # over the rows of a block of positions; None = no relative positions
    copy_HR: Any = None  # of a part of the gradients in the device's memory
    is_busy_1: Any = None  # int32 in scalar memory, 1 = a tile was computed with this block of keys


def backward(whole: TpuSizes, operands: TpuOperands, interpret: Any) -> TpuOperands:
    """Return the gradients of queries, keys, values, position keys and vectors, all but the first three float32."""
    query, key, value, position, vectors = operands[:5]
    shapes = TpuOperands(like(query), like(key), like(value), like(position, jnp.float32), like(vectors))
    blocks = TpuOperands(row_blocks(whole, is_output=True), *operand_blocks(whole, operands)[1:5])
    zeros, in_memory = [], pl.BlockSpec(memory_space=pl.ANY)
    if not whole.fits:
        # Of a long window, these gradients are added to zeros in the device's memory, block by block.
        key_BHK = jnp.swapaxes(key, 1, 2)
        zeros = [jnp.zeros(x.shape, jnp.float32) for x in (key_BHK, key_BHK, position) if x is not None]
        of_position = None if position is None else in_memory
        blocks = blocks._replace(key_BKH=in_memory, value_BKH=in_memory, position_2HR=of_position)
        shapes = shapes._replace(key_BKH=like(zeros[0]), value_BKH=like(zeros[1]))
    before = len(jax.tree.leaves(operands))
    gradients = pl.pallas_call(
        functools.partial(_backward_kernel, whole),
        grid=grid_of(whole, len(operands.query_BTH)),
        in_specs=[operand_blocks(whole, operands), [in_memory] * len(zeros)],
        out_specs=blocks,
        out_shape=shapes,
        input_output_aliases={before + i: 1 + i for i in range(len(zeros))},
        scratch_shapes=_scratch(whole, operands),
        compiler_params=compiler_params(whole),
        cost_estimate=estimate_cost(whole, operands, shapes, products=8),
        interpret=interpret,
        name="fused_attention_backward",
    )(operands, zeros)
    if whole.fits:
        return gradients
    key_BKH, value_BKH = (jnp.swapaxes(x, 1, 2).astype(key.dtype) for x in gradients[1:3])
    return gradients._replace(key_BKH=key_BKH, value_BKH=value_BKH)


def _scratch(whole: TpuSizes, operands: TpuOperands) -> list[Any]:
    sizes, has_positions = whole.of_block, whole.num_directions > 0
    operand = operands.query_BTH.dtype
    is_narrow, keys = operand != jnp.float32, (sizes.width, sizes.padded_keys)
    memory = BackwardScratch(
        packed(*keys, operand),
        pltpu.VMEM(keys, jnp.float32),
        pltpu.VMEM(keys, jnp.float32),
        pltpu.VMEM((ROWS, sizes.softmax_rows), jnp.float32),
        head_scratch(sizes, LANES, jnp.float32),
        head_scratch(sizes, LANES, jnp.float32),
        head_scratch(sizes, sizes.padded_keys, jnp.float32),
        head_scratch(sizes, sizes.padded_keys, operand, is_narrow),
        head_scratch(sizes, sizes.padded_keys, operand, is_narrow),
        head_scratch(sizes, sizes.window, operand, is_narrow and has_positions),
        head_scratch(sizes, 1, jnp.float32, sizes.has_segments),
    )
    if not whole.fits:
        of_distances = pltpu.VMEM((sizes.width, sizes.padded_distances), jnp.float32)
        memory = memory._replace(
            query_sum_TH=pltpu.VMEM((sizes.padded_rows, sizes.width), jnp.float32),
            position_sum_HR=of_distances if has_positions else None,
            copy_HR=of_distances,
            is_busy_1=pltpu.SMEM((1,), jnp.int32),
        )
    return [scratch_shapes(sizes), memory]


# ---- a step of the grid ----------------------------------------------------------------------------------------------


def _backward_kernel(whole: TpuSizes, refs: TpuOperands, zeros: Any, *others: Any) -> None:
    *gradients, scratch, memory = others
    grads, place = TpuOperands(*gradients), Place.here()
    # In float32 a gradient overwrites its input.
    memory = memory._replace(
        dropped=memory.dropped or scratch.content,
        grad=memory.grad or memory.wanted,
        by_distance=memory.by_distance or scratch.by_distance,
    )

    def differentiate(is_query: bool) -> None:
        GradientStages(whole, place, is_query, refs, scratch, grads, memory).differentiate_tile()

    _start(whole, place, refs, grads, scratch, memory)
    call_at(whole, place, refs, differentiate)
    _finish(whole, place, refs, grads, memory)


def _start(
    whole: TpuSizes, place: Place, refs: TpuOperands, grads: TpuOperands, scratch: Scratch, memory: BackwardScratch
) -> None:
    """Read what tiles share, and clear the sums that start here."""

    def clear(x: Any) -> None:
        x[...] = jnp.zeros_like(x)

    @pl.when(place.tile == 0)
    def start_keys() -> None:
        read_keys(refs, scratch)
        store(memory.transposed_HK, 0, refs.key_BKH[0].T)
        clear(memory.key_sum_HK)
        clear(memory.value_sum_HK)
        if not whole.fits:
            memory.is_busy_1[0] = 0
            if memory.position_sum_HR is not None:
                clear(memory.position_sum_HR)

    @pl.when((place.example == 0) & (place.row_block == 0) & (place.key_block == 0) & (place.tile == 0))
    def start_group() -> None:
        clear(grads.vectors_8H)
        if whole.fits and grads.position_2HR is not None:
            clear(grads.position_2HR)

    if not whole.fits:
        pl.when(place.is_first(whole))(lambda: clear(memory.query_sum_TH.at[place.rows(ROWS)]))


def _finish(whole: TpuSizes, place: Place, refs: TpuOperands, grads: TpuOperands, memory: BackwardScratch) -> None:
    """Flush the accumulators that finish on this tile."""

    @pl.when(place.tile == whole.of_block.tiles - 1)
    def write_sums() -> None:
        if not whole.fits:
            pl.when(memory.is_busy_1[0] == 1)(lambda: _add_sums(whole, place, refs, grads, memory))
            return
        operand = refs.query_BTH.dtype
        grads.key_BKH[0] = memory.key_sum_HK[...].astype(operand).T.astype(grads.key_BKH.dtype)
        grads.value_BKH[0] = memory.value_sum_HK[...].astype(operand).T.astype(grads.value_BKH.dtype)

    if not whole.fits:

        @pl.when(place.is_last(whole))
        def write_queries() -> None:
            grads.query_BTH[0] = memory.query_sum_TH[place.rows(ROWS)].astype(grads.query_BTH.dtype)


def _add_sums(whole: TpuSizes, place: Place, refs: TpuOperands, grads: TpuOperands, memory: BackwardScratch) -> None:
    """Add the gradients of a block of a long window to those in the device's memory."""
    sizes = whole.of_block
    lanes = pl.ds(pl.multiple_of(place.group * sizes.width, sizes.width), sizes.width)
    keys = pl.ds(pl.multiple_of(place.key_block * sizes.padded_keys, LANES), sizes.padded_keys)
    copy_HK = memory.copy_HR.at[:, : sizes.padded_keys]
    _add_in_memory(grads.key_BKH.at[place.example, lanes, keys], memory.key_sum_HK, copy_HK)
    _add_in_memory(grads.value_BKH.at[place.example, lanes, keys], memory.value_sum_HK, copy_HK)
    if memory.position_sum_HR is not None:
        window = pl.ds(first_distance(whole, place.row_block, place.key_block), sizes.padded_distances)
        there = grads.position_2HR.at[direction_of(place, refs), lanes, window]
        _add_in_memory(there, memory.position_sum_HR, memory.copy_HR)


def _add_in_memory(there: Any, x: Any, copy: Any) -> None:
    """Add numbers on the chip to those in the device's memory. copy: scratch memory of their size."""
    pltpu.sync_copy(there, copy)
    copy[...] += x[...]
    pltpu.sync_copy(copy, there)


# ---- a tile ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GradientStages(ScoreStages):
    """Stages that compute the gradients of a tile."""

    grads: TpuOperands
    memory: BackwardScratch
    by_key: dict[int, jnp.ndarray] = field(default_factory=dict)
    """by head, [H, T]: gradients of the queries with r_w"""
    by_distance: dict[int, jnp.ndarray] = field(default_factory=dict)
    """by head, [H, T]: gradients of the queries with r_r"""
    others: dict[int, jnp.ndarray] = field(default_factory=dict)
    """by head, [T, 1]: sum of d score over keys in other segments"""

    @property
    def of_positions_HR(self) -> Any:
        """Sums: gradients of the position keys of the example's direction."""
        if not self.whole.fits:
            return self.memory.position_sum_HR
        return self.grads.position_2HR.at[direction_of(self.place, self.refs)]

    def differentiate_tile(self) -> None:
        """Add the gradients of the tile."""
        grads, memory = self.grads, self.memory
        self.read_integers()
        softmax_ST = self.refs.softmax_BST[0]
        is_sum_ST = jax.lax.broadcasted_iota(jnp.int32, softmax_ST.shape, 0) % 2 == 1
        # Rows in other blocks get weights of 0 for any score.
        maximum_ST = jnp.where(self.is_here_1T(ROWS), softmax_ST, -MASKED)
        memory.softmax_TS[...] = jnp.where(is_sum_ST, 1.0 / softmax_ST, maximum_ST).T
        query_TH = self.compute_TH()
        if self.whole.fits:
            grads.query_BTH[0, : self.rows] = query_TH.astype(grads.query_BTH.dtype)
        else:
            memory.query_sum_TH[self.place.rows(self.rows)] += query_TH
            memory.is_busy_1[0] = 1

    def compute_TH(self) -> jnp.ndarray:
        """Return the gradient of the queries; add the other gradients to sums."""
        rows = self.read_rows(self.sizes.scale_2)
        with_r_w_TH, with_r_r_TH, with_r_s_TH = self.read_rows(self.sizes.scale)
        scaled_TH, mean_TH = self.read_outputs()
        scaled_HT, with_r_w_HT, with_r_r_HT = (x.astype(self.operand).T for x in (scaled_TH, with_r_w_TH, with_r_r_TH))
        run_stages(
            self.sizes,
            [
                functools.partial(self.product_steps, rows),
                lambda head: self.wanted_steps(scaled_TH, mean_TH, head) + self.shift_steps(head),
                self.differentiate_steps,
                lambda head: self.unshift_steps(head) + self.key_steps(scaled_HT, with_r_w_HT, head),
                functools.partial(self.distance_steps, with_r_r_HT),
            ],
        )
        return self.join_TH(with_r_s_TH)

    def read_outputs(self) -> tuple[jnp.ndarray, jnp.ndarray]:
        """Read d output s / (1 - rate), and output x d output s, to be summed over features: float32 [T, H] each."""
        sizes, softmax_TS = self.sizes, self.memory.softmax_TS
        inverses_T1 = [softmax_TS[self.here, 2 * head + 1 : 2 * head + 2] for head in range(sizes.heads_in_group)]
        scaled_TH = self.read_real_TH(self.refs.grad_BTH) * by_lane_TH(sizes, inverses_T1)
        mean_TH = scaled_TH * self.read_real_TH(self.refs.read_BTH)
        return scaled_TH * (1.0 / (1.0 - sizes.dropout_rate)), mean_TH

    def wanted_steps(self, scaled_TH: jnp.ndarray, mean_TH: jnp.ndarray, head: int) -> list[Step]:
        """Return the steps that store the gradients of the dropped weights of a head."""
        memory, i = self.memory, self.buffer(head)
        scaled_TH = self.select_TH(head, scaled_TH)

        def widen() -> None:
            mean_T1 = jnp.where(in_head_1H(self.sizes, head), mean_TH, 0.0).sum(1, keepdims=True)
            maximum_T1 = memory.softmax_TS[self.here, 2 * head : 2 * head + 1]
            for x_T, x_T1 in ((memory.mean[i], mean_T1), (memory.maximum[i], maximum_T1)):
                x_T[self.here] = jnp.broadcast_to(x_T1, (self.rows, LANES))

        def multiply_chunk(chunk: Any) -> None:
            value_KH = self.refs.value_BKH[0, chunk]
            memory.wanted[i][self.here, chunk] = product(scaled_TH, value_KH, 1, 1)

        return [widen, *[functools.partial(multiply_chunk, chunk) for chunk in chunks(self.sizes.padded_keys)]]

    def differentiate_steps(self, head: int) -> list[Step]:
        """Return the steps that store the weights and gradients of the scores of a head."""
        return self.strip_steps(functools.partial(self.differentiate, head))

    def differentiate(self, head: int, start: Any) -> None:
        """Store the weights and gradients of the scores of a strip."""
        here, i, memory = pl.ds(start, STRIP), self.buffer(head), self.memory
        weights_TK = jnp.exp2(self.scores_TK(head, here) - self.widen_TK(memory.maximum[i], here))
        wanted_TK, dropped_TK = self.drop_TK(head, here, memory.wanted[i][here], weights_TK)
        grad_TK = weights_TK * (wanted_TK - self.widen_TK(memory.mean[i], here))
        store(memory.dropped[i], start, dropped_TK.astype(self.operand))
        store(memory.grad[i], start, grad_TK.astype(self.operand))
        if self.sizes.has_segments:
            memory.other[i][here] = jnp.where(self.is_other_TK(here), grad_TK, 0.0).sum(1, keepdims=True)

    def unshift_steps(self, head: int) -> list[Step]:
        """Return the steps that store the gradients of the scores by distance."""
        if not self.sizes.num_directions:
            return []
        grad, by_distance = (arrays[self.buffer(head)] for arrays in (self.memory.grad, self.memory.by_distance))

        def unshift(start: Any) -> None:
            grad_TK = load(grad, start, self.shift_rows).astype(jnp.float32)
            by_distance_TR = unshift_TR(grad_TK, self.shift_of(start), self.window_width)
            store(by_distance, start, by_distance_TR.astype(self.operand))

        return self.strip_steps(unshift, rows=self.shift_rows)

    def key_steps(self, scaled_HT: jnp.ndarray, with_r_w_HT: jnp.ndarray, head: int) -> list[Step]:
        """Return the steps that add the gradients of keys, values and queries by key."""
        i, lanes, memory = self.buffer(head), self.sizes.lanes(head), self.memory
        scaled_HT, with_r_w_HT = scaled_HT[lanes], with_r_w_HT[lanes]

        def multiply_chunk(chunk: Any) -> None:
            grad_TK, dropped_TK = (load(x[i], 0, self.rows, chunk) for x in (memory.grad, memory.dropped))
            memory.value_sum_HK[lanes, chunk] += product(scaled_HT, dropped_TK, 1, 0)
            memory.key_sum_HK[lanes, chunk] += product(with_r_w_HT, grad_TK, 1, 0)
            add_to(self.by_key, head, product(self.load_head_HK(memory.transposed_HK, head, chunk), grad_TK, 1, 1))

        def read_other() -> None:
            self.others[head] = self.memory.other[i][self.here]

        steps = [functools.partial(multiply_chunk, chunk) for chunk in chunks(self.sizes.padded_keys)]
        return steps + [read_other] * self.sizes.has_segments

    def distance_steps(self, with_r_r_HT: jnp.ndarray, head: int) -> list[Step]:
        """Return the steps that add the gradients of position keys and queries by distance."""
        i, lanes = self.buffer(head), self.sizes.lanes(head)
        with_r_r_HT = with_r_r_HT[lanes]

        def multiply_chunk(chunk: Any) -> None:
            grad_TR = load(self.memory.by_distance[i], 0, self.rows, chunk)
            self.of_positions_HR[lanes, self.window_of(chunk)] += product(with_r_r_HT, grad_TR, 1, 0)
            add_to(self.by_distance, head, product(self.read_window_HR(chunk, lanes), grad_TR, 1, 1))

        width = self.window_width if self.sizes.num_directions else 0
        return [functools.partial(multiply_chunk, chunk) for chunk in chunks(width)]

    def join_TH(self, with_r_s_TH: jnp.ndarray) -> jnp.ndarray:
        """Return the gradient of the queries from those of all heads; add those of biases and of the difference of the
        segment keys. with_r_s: queries."""
        sizes, of_vectors_8H = self.sizes, self.grads.vectors_8H
        by_bias = {VectorRow.R_W: join_heads_TH(sizes, list(self.by_key.values()))}
        if self.by_distance:
            by_bias[VectorRow.R_R] = join_heads_TH(sizes, list(self.by_distance.values()))
        if self.others:
            # The gradient of (q + r_s) (s_other - s_same).
            other_TH = by_lane_TH(sizes, list(self.others.values()))
            row = slice(VectorRow.OTHER_SEGMENT, VectorRow.OTHER_SEGMENT + 1)
            of_vectors_8H[row] += (other_TH * with_r_s_TH).sum(0, keepdims=True)
            by_bias[VectorRow.R_S] = other_TH * self.refs.vectors_8H[row]
        for bias, x_TH in by_bias.items():
            of_vectors_8H[bias : bias + 1] += x_TH.sum(0, keepdims=True) * sizes.scale
        return functools.reduce(jnp.add, by_bias.values()) * sizes.scale

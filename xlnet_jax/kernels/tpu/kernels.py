"""Define the kernels. The forward kernel computes the attention output of a tile of rows and the softmax statistics for
the backward pass. The backward kernel computes the gradients of all operands in one pass over the tiles of rows.

With w = exp(score - maximum) and s = 1 / (sum of w) of a row, and m the dropout mask scaled by 1 / (1 - rate):

    output = sum over keys of m w s value
    d value = (m w s)^T d output
    d score = w s (m (d output value^T) - mean),   mean = sum over features of output x d output
    d query = d score key + unshift(d score) position key + (sum over other segments of d score) difference

and the transposes of the last line for keys, position keys and the difference of the segment keys. Output and d output
are multiplied by s instead of the scores, because they are smaller.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.tpu.operands import (
    Operands,
    compiler_params,
    estimate_cost,
    key_blocks,
    operand_blocks,
    position_blocks,
    row_blocks,
    softmax_blocks,
    vector_blocks,
)
from xlnet_jax.kernels.tpu.scores import (
    STRIP,
    Scratch,
    Step,
    Tile,
    call_at,
    chunks,
    direction_of,
    drop_TK,
    head_scratch,
    in_head_1H,
    is_other_TK,
    product,
    product_steps,
    read_integers,
    read_keys_KH,
    read_real_TH,
    read_rows,
    read_window_RH,
    run_stages,
    scores_TK,
    scratch_shapes,
    shift_of,
    shift_steps,
    strip_steps,
    tiles_here,
    widen_TK,
    window_of,
    window_width,
)
from xlnet_jax.kernels.tpu.shift import unshift_TR
from xlnet_jax.kernels.tpu.tiles import LANES, ROWS, SUBLANES, Sizes, VectorRow

# ---- forward ---------------------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """Scratch memory of the softmax."""

    dropped: tuple[Any, ...]  # for each head in work, [T, K]: dropout(w); in float32 the scores of Scratch are reused
    softmax_TS: Any  # float32; columns: maximum and sum of each head of the group
    maximum: tuple[Any, ...]  # for each head in work, float32 [T, 128], the same in all lanes


def forward(sizes: Sizes, operands: Operands, interpret: Any) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the output [B, T, N x H], and float32 [B, softmax rows of each group, T] (`Sizes.softmax_rows`)."""
    batch, query_BTH = len(operands.query_BTH), operands.query_BTH
    softmax_BST = jax.ShapeDtypeStruct((batch, sizes.num_groups * sizes.softmax_rows, sizes.padded_rows), jnp.float32)
    operand = sizes.product_type(query_BTH.dtype)
    weights = Weights(
        head_scratch(sizes, sizes.padded_keys, operand, operand != jnp.float32),
        pltpu.VMEM((ROWS, sizes.softmax_rows), jnp.float32),
        head_scratch(sizes, LANES, jnp.float32),
    )
    return pl.pallas_call(
        functools.partial(_forward_kernel, sizes),
        grid=(sizes.num_groups, batch, sizes.tiles),
        in_specs=[operand_blocks(sizes, operands)],
        out_specs=(row_blocks(sizes), softmax_blocks(sizes)),
        out_shape=(jax.ShapeDtypeStruct(query_BTH.shape, query_BTH.dtype), softmax_BST),
        scratch_shapes=(scratch_shapes(sizes), weights),
        compiler_params=compiler_params(sizes),
        cost_estimate=estimate_cost(sizes, operands, (query_BTH, softmax_BST), products=3),
        interpret=interpret,
        name="fused_attention_forward",
    )(operands)


def _forward_kernel(
    sizes: Sizes, refs: Operands, read_BTH: Any, softmax_BST: Any, scratch: Scratch, weights: Weights
) -> None:
    content, query = tiles_here(sizes)
    # Weights in float32 overwrite the scores.
    weights = weights._replace(dropped=weights.dropped or scratch.content)

    def attend(tile: Tile) -> None:
        read_integers(sizes, refs, scratch)
        _attend_tile(sizes, tile, refs, read_BTH, scratch, weights)
        softmax_BST[0] = weights.softmax_TS[...].T

    call_at(sizes, content, query, refs, attend)


def _attend_tile(sizes: Sizes, tile: Tile, refs: Operands, read_BTH: Any, scratch: Scratch, weights: Weights) -> None:
    rows, here = read_rows(sizes, tile, refs, sizes.scale_2), slice(0, tile.rows)
    reads: dict[int, jnp.ndarray] = {}

    def read_steps(head: int) -> list[Step]:
        dropped_TK = weights.dropped[head % sizes.buffers]

        def multiply_chunk(chunk: Any) -> None:
            summed_TH = product(dropped_TK[here, chunk], read_keys_KH(sizes, refs.value_BKH, chunk), 1, 0)
            reads[head] = reads[head] + summed_TH if head in reads else summed_TH

        return [functools.partial(multiply_chunk, chunk) for chunk in chunks(sizes.padded_keys)]

    def softmax_steps(head: int) -> list[Step]:
        score = functools.partial(_score, sizes, refs, scratch, weights, head)
        return strip_steps(sizes, tile, score, functools.partial(_softmax, sizes, tile, refs, scratch, weights, head))

    run_stages(
        sizes,
        [
            functools.partial(product_steps, sizes, tile, rows, refs, scratch),
            functools.partial(shift_steps, sizes, tile, scratch),
            softmax_steps,
            read_steps,
        ],
    )
    read_TH = jnp.zeros((tile.rows, sizes.width), jnp.float32)
    for head, summed_TH in reads.items():
        sum_T1 = weights.softmax_TS[here, 2 * head + 1 : 2 * head + 2]
        scaled_TH = summed_TH / ((1.0 - sizes.dropout_rate) * sum_T1)
        read_TH = jnp.where(in_head_1H(sizes, head), scaled_TH, read_TH)
    read_BTH[0, here] = read_TH.astype(read_BTH.dtype)


def _score(sizes: Sizes, refs: Operands, scratch: Scratch, weights: Weights, head: int, start: Any) -> None:
    here, i = pl.ds(start, STRIP), head % sizes.buffers
    score_TK = scores_TK(sizes, refs, scratch, head, here)
    scratch.content[i][here] = score_TK
    maximum_T1 = score_TK.max(1, keepdims=True)
    weights.softmax_TS[here, 2 * head : 2 * head + 1] = maximum_T1
    weights.maximum[i][here] = jnp.broadcast_to(maximum_T1, (STRIP, LANES))


def _softmax(
    sizes: Sizes, tile: Tile, refs: Operands, scratch: Scratch, weights: Weights, head: int, start: Any
) -> None:
    here, i = pl.ds(start, STRIP), head % sizes.buffers
    weights_TK = jnp.exp2(scratch.content[i][here] - widen_TK(sizes, weights.maximum[i], here))
    weights.softmax_TS[here, 2 * head + 1 : 2 * head + 2] = weights_TK.sum(1, keepdims=True)
    (kept_TK,) = drop_TK(sizes, tile, refs, scratch, head, here, weights_TK)
    weights.dropped[i][here] = kept_TK.astype(weights.dropped[i].dtype)


# ---- backward --------------------------------------------------------------------------------------------------------


class Saved(NamedTuple):
    """Inputs of the backward kernel besides `Operands`: arrays outside, references inside."""

    read_BTH: Any
    softmax_BST: Any
    grad_BTH: Any


class Gradients(NamedTuple):
    """Gradients of the operands."""

    query_BTH: Any
    key_BKH: Any
    value_BKH: Any
    position_2RH: Any  # float32; None = no relative positions
    vectors_8H: Any  # float32


class Sums(NamedTuple):
    """Scratch memory: sums over the rows of an example, in float32."""

    key_KH: Any
    value_KH: Any


class Work(NamedTuple):
    """Scratch memory of the strips of a tile, one item for each head in work.

    With float32 operands, `dropped`, `grad` and `by_distance` are empty, and other scratch memory is reused.
    """

    softmax_TS: Any  # columns: maximum and sum of each head of the group
    maximum: tuple[Any, ...]  # float32 [T, 128], the same in all lanes
    mean: tuple[Any, ...]  # float32 [T, 128], the same in all lanes
    wanted: tuple[Any, ...]  # float32 [T, K]: d output value^T
    dropped: tuple[Any, ...]  # [T, K]: dropout(w)
    grad: tuple[Any, ...]  # [T, K]: d score
    by_distance: tuple[Any, ...]  # [T, R]: d score by distance; empty without relative positions
    other: tuple[Any, ...]  # float32 [T, 1]: sum of d score over keys in other segments; empty without segments


def _work_shapes(sizes: Sizes, operand: Any) -> Work:
    is_narrow = operand != jnp.float32
    return Work(
        pltpu.VMEM((ROWS, sizes.softmax_rows), jnp.float32),
        head_scratch(sizes, LANES, jnp.float32),
        head_scratch(sizes, LANES, jnp.float32),
        head_scratch(sizes, sizes.padded_keys, jnp.float32),
        head_scratch(sizes, sizes.padded_keys, operand, is_narrow),
        head_scratch(sizes, sizes.padded_keys, operand, is_narrow),
        head_scratch(sizes, sizes.window, operand, is_narrow and sizes.num_directions > 0),
        head_scratch(sizes, 1, jnp.float32, sizes.has_segments),
    )


def backward(sizes: Sizes, operands: Operands, saved: Saved, interpret: Any) -> Gradients:
    """Return the gradients of queries, keys, values, position keys and vectors."""

    def like(array: Any, dtype: Any = None) -> Any:
        return None if array is None else jax.ShapeDtypeStruct(array.shape, dtype or array.dtype)

    shapes = Gradients(
        like(operands.query_BTH),
        like(operands.key_BKH),
        like(operands.value_BKH),
        like(operands.position_2RH, jnp.float32),
        like(operands.vectors_8H),
    )
    position_2RH = None if operands.position_2RH is None else position_blocks(sizes)
    keys, rows = key_blocks(sizes), row_blocks(sizes)
    sum_of_keys = pltpu.VMEM((sizes.padded_keys, sizes.width), jnp.float32)
    return pl.pallas_call(
        functools.partial(_backward_kernel, sizes),
        grid=(sizes.num_groups, len(operands.query_BTH), sizes.tiles),
        in_specs=[operand_blocks(sizes, operands), Saved(rows, softmax_blocks(sizes), rows)],
        out_specs=Gradients(rows, keys, keys, position_2RH, vector_blocks(sizes)),
        out_shape=shapes,
        scratch_shapes=(
            Sums(sum_of_keys, sum_of_keys),
            scratch_shapes(sizes),
            _work_shapes(sizes, sizes.product_type(operands.query_BTH.dtype)),
        ),
        compiler_params=compiler_params(sizes),
        cost_estimate=estimate_cost(sizes, operands, (saved, shapes), products=8),
        interpret=interpret,
        name="fused_attention_backward",
    )(operands, saved)


def _backward_kernel(sizes: Sizes, refs: Operands, saved: Saved, *others: Any) -> None:
    *gradients, sums, scratch, work = others
    grads = Gradients(*gradients)
    content, query = tiles_here(sizes)
    # In float32 a gradient overwrites its input.
    work = work._replace(
        dropped=work.dropped or scratch.content,
        grad=work.grad or work.wanted,
        by_distance=work.by_distance or scratch.by_distance,
    )

    @pl.when(content.number == 0)
    def clear_sums() -> None:
        sums.key_KH[...] = jnp.zeros_like(sums.key_KH)
        sums.value_KH[...] = jnp.zeros_like(sums.value_KH)

    @pl.when((content.number == 0) & (content.example == 0))
    def clear_gradients() -> None:
        grads.vectors_8H[...] = jnp.zeros_like(grads.vectors_8H)
        if grads.position_2RH is not None:
            grads.position_2RH[...] = jnp.zeros_like(grads.position_2RH)

    def differentiate(tile: Tile) -> None:
        read_integers(sizes, refs, scratch)
        work.softmax_TS[...] = saved.softmax_BST[0].T
        _differentiate_tile(sizes, tile, refs, saved, grads, sums, scratch, work)

    call_at(sizes, content, query, refs, differentiate)

    @pl.when(content.number == sizes.tiles - 1)
    def write_sums() -> None:
        grads.key_BKH[0] = sums.key_KH[...].astype(grads.key_BKH.dtype)
        grads.value_BKH[0] = sums.value_KH[...].astype(grads.value_BKH.dtype)


def _differentiate_tile(
    sizes: Sizes, tile: Tile, refs: Operands, saved: Saved, grads: Gradients, sums: Sums, scratch: Scratch, work: Work
) -> None:
    rows, here = read_rows(sizes, tile, refs, sizes.scale_2), slice(0, tile.rows)
    operand, direction = rows.with_r_w_TH.dtype, direction_of(tile, refs)
    scaled_rows = read_rows(sizes, tile, refs, sizes.scale)
    read_TH, grad_TH = read_real_TH(sizes, tile, saved.read_BTH), read_real_TH(sizes, tile, saved.grad_BTH)
    scaled: dict[int, jnp.ndarray] = {}
    # Gradients of the queries of each head with each bias.
    by_key: dict[int, jnp.ndarray] = {}
    by_distance: dict[int, jnp.ndarray] = {}
    others: dict[int, jnp.ndarray] = {}

    def wanted_steps(head: int) -> list[Step]:
        i, sum_column = head % sizes.buffers, 2 * head + 1

        def scale() -> None:
            in_head_TH = jnp.where(in_head_1H(sizes, head), grad_TH, 0.0)
            scaled_TH = in_head_TH / work.softmax_TS[here, sum_column : sum_column + 1]
            wide = (tile.rows, LANES)
            work.mean[i][here] = jnp.broadcast_to((scaled_TH * read_TH).sum(1, keepdims=True), wide)
            work.maximum[i][here] = jnp.broadcast_to(work.softmax_TS[here, sum_column - 1 : sum_column], wide)
            scaled[head] = (scaled_TH * (1.0 / (1.0 - sizes.dropout_rate))).astype(operand)

        def multiply_chunk(chunk: Any) -> None:
            work.wanted[i][here, chunk] = product(scaled[head], read_keys_KH(sizes, refs.value_BKH, chunk), 1, 1)

        return [scale, *[functools.partial(multiply_chunk, chunk) for chunk in chunks(sizes.padded_keys)]]

    def differentiate_steps(head: int) -> list[Step]:
        body = functools.partial(_differentiate, sizes, tile, refs, scratch, work, head)
        return strip_steps(sizes, tile, body)

    def unshift_steps(head: int) -> list[Step]:
        if not sizes.num_directions:
            return []
        return strip_steps(sizes, tile, functools.partial(_unshift, sizes, tile, scratch, work, head))

    def add_to(total: dict[int, jnp.ndarray], head: int, x_TH: jnp.ndarray) -> None:
        total[head] = total[head] + x_TH if head in total else x_TH

    def key_steps(head: int) -> list[Step]:
        i, mask_1H = head % sizes.buffers, in_head_1H(sizes, head)

        def multiply_keys(chunk: Any) -> None:
            grad_TK = work.grad[i][here, chunk]
            sums.value_KH[chunk] += product(work.dropped[i][here, chunk], scaled[head], 0, 0)
            sums.key_KH[chunk] += product(grad_TK, jnp.where(mask_1H, scaled_rows.with_r_w_TH, 0), 0, 0)
            add_to(by_key, head, product(grad_TK, read_keys_KH(sizes, refs.key_BKH, chunk), 1, 0))

        def read_other() -> None:
            others[head] = work.other[i][here]

        steps = [functools.partial(multiply_keys, chunk) for chunk in chunks(sizes.padded_keys)]
        return steps + [read_other] * sizes.has_segments

    def distance_steps(head: int) -> list[Step]:
        i, mask_1H = head % sizes.buffers, in_head_1H(sizes, head)

        def multiply_chunk(chunk: Any) -> None:
            grad_TR = work.by_distance[i][here, chunk]
            of_positions_RH = product(grad_TR, jnp.where(mask_1H, scaled_rows.with_r_r_TH, 0), 0, 0)
            grads.position_2RH[direction, window_of(sizes, tile, chunk)] += of_positions_RH
            add_to(by_distance, head, product(grad_TR, read_window_RH(sizes, tile, refs, chunk), 1, 0))

        width = window_width(sizes, tile) if sizes.num_directions else 0
        return [functools.partial(multiply_chunk, chunk) for chunk in chunks(width)]

    run_stages(
        sizes,
        [
            functools.partial(product_steps, sizes, tile, rows, refs, scratch),
            lambda head: wanted_steps(head) + shift_steps(sizes, tile, scratch, head),
            differentiate_steps,
            lambda head: unshift_steps(head) + key_steps(head),
            distance_steps,
        ],
    )

    def join_TH(parts: dict[int, jnp.ndarray]) -> jnp.ndarray:
        joined_TH = jnp.zeros((tile.rows, sizes.width), jnp.float32)
        for head, x_TH in parts.items():
            joined_TH = jnp.where(in_head_1H(sizes, head), x_TH, joined_TH)
        return joined_TH

    with_r_w_TH, with_r_r_TH, with_r_s_TH = (join_TH(parts) for parts in (by_key, by_distance, others))
    # Until here, with_r_s_TH is the gradient of (q + r_s) (s_other - s_same).
    other_1H = (with_r_s_TH * scaled_rows.with_r_s_TH).sum(0, keepdims=True)
    with_r_s_TH *= refs.vectors_8H[VectorRow.OTHER_SEGMENT : VectorRow.OTHER_SEGMENT + 1]
    by_bias = [a * sizes.scale for a in (with_r_w_TH, with_r_r_TH, with_r_s_TH)]
    grads.query_BTH[0, here] = functools.reduce(jnp.add, by_bias).astype(grads.query_BTH.dtype)
    missing = jnp.zeros((SUBLANES - len(by_bias) - 1, sizes.width), jnp.float32)
    grads.vectors_8H[...] += jnp.concatenate([*(a.sum(0, keepdims=True) for a in by_bias), other_1H, missing])


def _differentiate(
    sizes: Sizes, tile: Tile, refs: Operands, scratch: Scratch, work: Work, head: int, start: Any
) -> None:
    here, i = pl.ds(start, STRIP), head % sizes.buffers
    operand = work.grad[i].dtype
    weights_TK = jnp.exp2(scores_TK(sizes, refs, scratch, head, here) - widen_TK(sizes, work.maximum[i], here))
    wanted_TK, dropped_TK = drop_TK(sizes, tile, refs, scratch, head, here, work.wanted[i][here], weights_TK)
    grad_TK = weights_TK * (wanted_TK - widen_TK(sizes, work.mean[i], here))
    work.dropped[i][here] = dropped_TK.astype(operand)
    work.grad[i][here] = grad_TK.astype(operand)
    if sizes.has_segments:
        is_other = is_other_TK(sizes, refs, scratch, here)
        work.other[i][here] = jnp.where(is_other, grad_TK, 0.0).sum(1, keepdims=True)


def _unshift(sizes: Sizes, tile: Tile, scratch: Scratch, work: Work, head: int, start: Any) -> None:
    here, i, width = pl.ds(start, STRIP), head % sizes.buffers, window_width(sizes, tile)
    by_distance_TR = unshift_TR(work.grad[i][here].astype(jnp.float32), shift_of(sizes, tile, scratch, start), width)
    work.by_distance[i][here, :width] = by_distance_TR.astype(work.by_distance[i].dtype)

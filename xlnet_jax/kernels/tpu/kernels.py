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
    Scratch,
    Strip,
    Tile,
    call_at,
    direction_of,
    drop_TK,
    for_each_strip,
    head_scratch,
    in_head_1H,
    multiply_queries,
    product,
    read_real_TH,
    read_rows,
    read_window_RH,
    scores_TK,
    scratch_shapes,
    tiles_here,
    window_of,
    window_width,
)
from xlnet_jax.kernels.tpu.shift import unshift_TR
from xlnet_jax.kernels.tpu.tiles import ROWS, SUBLANES, Sizes, VectorRow

# ---- forward ---------------------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """Scratch memory of the softmax."""

    dropped: tuple[
        Any, ...
    ]  # for each head computed together, [T, K]: dropout(w); in float32 the scores of Scratch are reused
    softmax_TS: Any  # float32; columns: maximum and sum of each head of the group


def forward(sizes: Sizes, operands: Operands, interpret: Any) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the output [B, T, N x H], and float32 [B, softmax rows of each group, T] (`Sizes.softmax_rows`)."""
    batch, query_BTH = len(operands.query_BTH), operands.query_BTH
    softmax_BST = jax.ShapeDtypeStruct((batch, sizes.num_groups * sizes.softmax_rows, sizes.padded_rows), jnp.float32)
    operand = sizes.product_type(query_BTH.dtype)
    weights = Weights(
        head_scratch(sizes, sizes.padded_keys, operand, operand != jnp.float32),
        pltpu.VMEM((ROWS, sizes.softmax_rows), jnp.float32),
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
    # A column would use one lane of each register, so integers are rows in memory and are transposed on the chip.
    scratch.integers_T8[...] = refs.rows_B8T[0].T

    def attend(tile: Tile) -> None:
        _attend_tile(sizes, tile, refs, read_BTH, scratch, weights)

    call_at(sizes, content, query, refs, attend)
    softmax_BST[0] = weights.softmax_TS[...].T


def _attend_tile(sizes: Sizes, tile: Tile, refs: Operands, read_BTH: Any, scratch: Scratch, weights: Weights) -> None:
    rows, window_RH = read_rows(sizes, tile, refs), read_window_RH(sizes, tile, refs)
    value_KH = refs.value_BKH[0].astype(weights.dropped[0].dtype)
    read_TH = jnp.zeros((tile.rows, sizes.width), jnp.float32)
    for first in range(0, sizes.heads_in_group, sizes.heads_at_once):
        multiply_queries(sizes, tile, rows, refs, window_RH, first, scratch)
        softmax = functools.partial(_softmax, sizes, tile, refs, first, scratch, weights)
        for_each_strip(sizes, tile, refs, first, scratch, softmax)
        for i, head in enumerate(range(first, first + sizes.heads_at_once)):
            summed_TH = product(weights.dropped[i][: tile.rows], value_KH, 1, 0)
            sum_T1 = weights.softmax_TS[: tile.rows, 2 * head + 1 : 2 * head + 2]
            scaled_TH = summed_TH / ((1.0 - sizes.dropout_rate) * sum_T1)
            read_TH = jnp.where(in_head_1H(sizes, head), scaled_TH, read_TH)
    read_BTH[0, : tile.rows] = read_TH.astype(read_BTH.dtype)


def _softmax(
    sizes: Sizes, tile: Tile, refs: Operands, first: int, scratch: Scratch, weights: Weights, strip: Strip
) -> None:
    for i, head in enumerate(range(first, first + sizes.heads_at_once)):
        score_TK = scores_TK(sizes, tile, strip, scratch, i)
        maximum_T1 = score_TK.max(1, keepdims=True)
        weights_TK = jnp.exp(score_TK - maximum_T1)
        weights.softmax_TS[strip.here, 2 * head : 2 * head + 1] = maximum_T1
        weights.softmax_TS[strip.here, 2 * head + 1 : 2 * head + 2] = weights_TK.sum(1, keepdims=True)
        dropped_ = drop_TK(sizes, tile, strip, refs, head, weights_TK)
        weights.dropped[i][strip.here] = dropped_.astype(weights.dropped[i].dtype)


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
    """Scratch memory of the strips of a tile, one item for each head computed together.

    With float32 operands, `dropped`, `grad` and `by_distance` are empty, and other scratch memory is reused.
    """

    softmax_TS: Any  # columns: maximum and sum of each head of the group
    mean: tuple[Any, ...]  # float32 [T, 1]
    wanted: tuple[Any, ...]  # float32 [T, K]: d output value^T
    dropped: tuple[Any, ...]  # [T, K]: dropout(w)
    grad: tuple[Any, ...]  # [T, K]: d score
    by_distance: tuple[Any, ...]  # [T, R]: d score by distance; empty without relative positions
    other: tuple[Any, ...]  # float32 [T, 1]: sum of d score over keys in other segments; empty without segments


def _work_shapes(sizes: Sizes, operand: Any) -> Work:
    is_narrow = operand != jnp.float32
    return Work(
        pltpu.VMEM((ROWS, sizes.softmax_rows), jnp.float32),
        head_scratch(sizes, 1, jnp.float32),
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
    scratch.integers_T8[...], work.softmax_TS[...] = refs.rows_B8T[0].T, saved.softmax_BST[0].T

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
        _differentiate_tile(sizes, tile, refs, saved, grads, sums, scratch, work)

    call_at(sizes, content, query, refs, differentiate)

    @pl.when(content.number == sizes.tiles - 1)
    def write_sums() -> None:
        grads.key_BKH[0] = sums.key_KH[...].astype(grads.key_BKH.dtype)
        grads.value_BKH[0] = sums.value_KH[...].astype(grads.value_BKH.dtype)


def _differentiate_tile(
    sizes: Sizes, tile: Tile, refs: Operands, saved: Saved, grads: Gradients, sums: Sums, scratch: Scratch, work: Work
) -> None:
    rows, window_RH = read_rows(sizes, tile, refs), read_window_RH(sizes, tile, refs)
    operand, here = rows.with_r_w_TH.dtype, slice(0, tile.rows)
    key_KH, value_KH = refs.key_BKH[0].astype(operand), refs.value_BKH[0].astype(operand)
    direction, window = direction_of(tile, refs), window_of(sizes, tile)
    read_TH, grad_TH = read_real_TH(sizes, tile, saved.read_BTH), read_real_TH(sizes, tile, saved.grad_BTH)
    # Gradients of the queries with each bias.
    with_r_w_TH = with_r_r_TH = with_r_s_TH = jnp.zeros((tile.rows, sizes.width), jnp.float32)
    for first in range(0, sizes.heads_in_group, sizes.heads_at_once):
        multiply_queries(sizes, tile, rows, refs, window_RH, first, scratch)
        masks = [in_head_1H(sizes, first + i) for i in range(sizes.heads_at_once)]
        scaled = []
        for i, mask_1H in enumerate(masks):
            sum_column = 2 * (first + i) + 1
            scaled_TH = jnp.where(mask_1H, grad_TH, 0.0) / work.softmax_TS[here, sum_column : sum_column + 1]
            work.mean[i][here] = (scaled_TH * read_TH).sum(1, keepdims=True)
            scaled.append((scaled_TH * (1.0 / (1.0 - sizes.dropout_rate))).astype(operand))
            work.wanted[i][here] = product(scaled[i], value_KH, 1, 1)
        differentiate = functools.partial(_differentiate, sizes, tile, refs, first, scratch, work)
        for_each_strip(sizes, tile, refs, first, scratch, differentiate)
        for i, mask_1H in enumerate(masks):
            score_TK = work.grad[i][here]
            sums.value_KH[...] += product(work.dropped[i][here], scaled[i], 0, 0)
            sums.key_KH[...] += product(score_TK, jnp.where(mask_1H, rows.with_r_w_TH, 0), 0, 0)
            with_r_w_TH = jnp.where(mask_1H, product(score_TK, key_KH, 1, 0), with_r_w_TH)
            if window_RH is not None:
                by_distance_TR = work.by_distance[i][here, : len(window_RH)]
                of_positions_RH = product(by_distance_TR, jnp.where(mask_1H, rows.with_r_r_TH, 0), 0, 0)
                grads.position_2RH[direction, window] += of_positions_RH
                with_r_r_TH = jnp.where(mask_1H, product(by_distance_TR, window_RH, 1, 0), with_r_r_TH)
            if sizes.has_segments:
                with_r_s_TH = jnp.where(mask_1H, work.other[i][here], with_r_s_TH)
    # Until here, with_r_s_TH is the gradient of (q + r_s) (s_other - s_same).
    other_1H = (with_r_s_TH * rows.with_r_s_TH).sum(0, keepdims=True)
    with_r_s_TH *= refs.vectors_8H[VectorRow.OTHER_SEGMENT : VectorRow.OTHER_SEGMENT + 1]
    by_bias = [a * sizes.scale for a in (with_r_w_TH, with_r_r_TH, with_r_s_TH)]
    grads.query_BTH[0, here] = functools.reduce(jnp.add, by_bias).astype(grads.query_BTH.dtype)
    missing = jnp.zeros((SUBLANES - len(by_bias) - 1, sizes.width), jnp.float32)
    grads.vectors_8H[...] += jnp.concatenate([*(a.sum(0, keepdims=True) for a in by_bias), other_1H, missing])


def _differentiate(
    sizes: Sizes, tile: Tile, refs: Operands, first: int, scratch: Scratch, work: Work, strip: Strip
) -> None:
    for i, head in enumerate(range(first, first + sizes.heads_at_once)):
        here, operand = strip.here, work.grad[i].dtype
        weights_TK = jnp.exp(scores_TK(sizes, tile, strip, scratch, i) - work.softmax_TS[here, 2 * head : 2 * head + 1])
        wanted_TK = drop_TK(sizes, tile, strip, refs, head, work.wanted[i][here])
        grad_TK = weights_TK * (wanted_TK - work.mean[i][here])
        work.dropped[i][here] = drop_TK(sizes, tile, strip, refs, head, weights_TK).astype(operand)
        work.grad[i][here] = grad_TK.astype(operand)
        if strip.is_other_TK is not None:
            work.other[i][here] = jnp.where(strip.is_other_TK, grad_TK, 0.0).sum(1, keepdims=True)
        if strip.shift is not None:
            width = window_width(sizes, tile)
            work.by_distance[i][here, :width] = unshift_TR(grad_TK, strip.shift, width).astype(operand)

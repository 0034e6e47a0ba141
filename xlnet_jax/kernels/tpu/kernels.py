"""Define the kernels. The forward kernel computes the attention output of a tile of rows and the softmax statistics for
the backward pass. The backward kernel computes the gradients of all operands in one pass over the tiles of rows.

With w = exp(score - maximum) and s = 1 / (sum of w) of a row, and m the dropout mask scaled by 1 / (1 - rate):

    output = sum over keys of m w s value
    d value = (m w s)^T d output
    d score = w s (m (d output value^T) - mean),   mean = sum over features of output x d output
    d query = d score key + unshift(d score) position key + (sum over other segments of d score) difference

and the transposes of the last line for keys, position keys and the difference of the segment keys. Output and d output
are multiplied by s instead of the scores, because they are smaller.

A window that does not fit the chip is divided into blocks of keys. The outputs o of two blocks, not yet divided by the
sums s of their softmax with maxima m, are joined as (Milakov and Gimelshein 2018, section 3)

    m = max(m1, m2)     s = s1 2^(m1 - m) + s2 2^(m2 - m)     o = o1 2^(m1 - m) + o2 2^(m2 - m)

The backward kernel uses the joined m, s and o, so the gradients of blocks are simply summed.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.arguments import MASKED
from xlnet_jax.kernels.tpu.operands import (
    Operands,
    compiler_params,
    estimate_cost,
    first_distance,
    grid_of,
    key_blocks,
    operand_blocks,
    position_blocks,
    row_blocks,
    softmax_blocks,
    vector_blocks,
)
from xlnet_jax.kernels.tpu.scores import (
    STRIP,
    Place,
    Scratch,
    Step,
    Tile,
    call_at,
    chunks,
    direction_of,
    drop_TK,
    head_scratch,
    in_head_1H,
    is_here_T1,
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


class Joined(NamedTuple):
    """Scratch memory: float32 results of the blocks of keys so far, for the rows of a block of positions and all query
    rows."""

    read_TH: Any  # output, not divided by the sums
    softmax_TS: Any  # as in `Weights`


LEAST = 4 * MASKED
"""maximum of no scores"""


def forward(whole: Sizes, operands: Operands, interpret: Any) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the output [B, T, N x H], and float32 [B, softmax rows of each group, T] (`Sizes.softmax_rows`)."""
    batch, query_BTH, sizes = len(operands.query_BTH), operands.query_BTH, whole.of_block
    softmax_BST = jax.ShapeDtypeStruct((batch, sizes.num_groups * sizes.softmax_rows, whole.padded_rows), jnp.float32)
    operand = sizes.product_type(query_BTH.dtype)
    weights = Weights(
        head_scratch(sizes, sizes.padded_keys, operand, operand != jnp.float32),
        pltpu.VMEM((ROWS, sizes.softmax_rows), jnp.float32),
        head_scratch(sizes, LANES, jnp.float32),
    )
    joined = Joined(
        pltpu.VMEM((sizes.padded_rows, sizes.width), jnp.float32),
        pltpu.VMEM((sizes.padded_rows, sizes.softmax_rows), jnp.float32),
    )
    return pl.pallas_call(
        functools.partial(_forward_kernel, whole),
        grid=grid_of(whole, batch),
        in_specs=[operand_blocks(whole, operands)],
        out_specs=(row_blocks(whole, is_output=True), softmax_blocks(whole, is_output=True)),
        out_shape=(jax.ShapeDtypeStruct(query_BTH.shape, query_BTH.dtype), softmax_BST),
        scratch_shapes=(scratch_shapes(sizes), weights, None if whole.fits else joined),
        compiler_params=compiler_params(whole),
        cost_estimate=estimate_cost(whole, operands, (query_BTH, softmax_BST), products=3),
        interpret=interpret,
        name="fused_attention_forward",
    )(operands)


def _forward_kernel(
    whole: Sizes,
    refs: Operands,
    read_BTH: Any,
    softmax_BST: Any,
    scratch: Scratch,
    weights: Weights,
    joined: Joined | None,
) -> None:
    place, sizes = Place.here(), whole.of_block
    # Weights in float32 overwrite the scores.
    weights = weights._replace(dropped=weights.dropped or scratch.content)
    rows = rows_of(place, ROWS)

    if joined is not None:

        @pl.when(place.is_first(whole))
        def clear() -> None:
            column_1S = jax.lax.broadcasted_iota(jnp.int32, (1, sizes.softmax_rows), 1)
            joined.read_TH[rows] = jnp.zeros_like(joined.read_TH[rows])
            joined.softmax_TS[rows] = jnp.broadcast_to(
                jnp.where(column_1S % 2 == 0, LEAST, 0.0), weights.softmax_TS.shape
            )

    def attend(tile: Tile) -> None:
        read_integers(whole, place, refs, scratch)
        read_TH = _attend_tile(sizes, tile, refs, scratch, weights)
        if joined is None:
            sum_TH = (1.0 - sizes.dropout_rate) * _by_lane_TH(sizes, weights.softmax_TS[: tile.rows], 1)
            read_BTH[0, : tile.rows] = (read_TH / sum_TH).astype(read_BTH.dtype)
            softmax_BST[0] = weights.softmax_TS[...].T
        else:
            _join(sizes, tile, read_TH, weights, joined, is_here_T1(whole, tile, scratch))

    call_at(whole, place, refs, attend)
    if joined is None:
        return

    @pl.when(place.is_last(whole))
    def finish() -> None:
        softmax_TS = joined.softmax_TS[rows]
        sum_TH = (1.0 - sizes.dropout_rate) * _by_lane_TH(sizes, softmax_TS, 1)
        read_BTH[0], softmax_BST[0] = (joined.read_TH[rows] / sum_TH).astype(read_BTH.dtype), softmax_TS.T


def rows_of(place: Place, rows: int) -> Any:
    """Return the rows of a tile in the scratch memory of a block of positions."""
    return pl.ds(pl.multiple_of(place.tile * ROWS, ROWS), rows)


def _attend_tile(sizes: Sizes, tile: Tile, refs: Operands, scratch: Scratch, weights: Weights) -> jnp.ndarray:
    """Return the sums of the weighted values; write the softmax statistics."""
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
        read_TH = jnp.where(in_head_1H(sizes, head), summed_TH, read_TH)
    return read_TH


def _by_lane_TH(sizes: Sizes, softmax_TS: jnp.ndarray, column: int) -> jnp.ndarray:
    """Return the maximum (column 0) or sum (1) of each lane's head."""
    by_lane_TH = jnp.ones((len(softmax_TS), sizes.width), jnp.float32)
    for head in range(sizes.heads_in_group):
        place = 2 * head + column
        by_lane_TH = jnp.where(in_head_1H(sizes, head), softmax_TS[:, place : place + 1], by_lane_TH)
    return by_lane_TH


def _join(
    sizes: Sizes, tile: Tile, read_TH: jnp.ndarray, weights: Weights, joined: Joined, is_here_T1: jnp.ndarray | bool
) -> None:
    """Join the results of another block of keys to those of the rows that are here."""
    rows, new_TS = rows_of(tile.place, tile.rows), weights.softmax_TS[: tile.rows]
    old_TS = joined.softmax_TS[rows]
    columns, scales = [], []
    for head in range(sizes.heads_in_group):
        (old, before), (new, here) = (
            (x_TS[:, 2 * head : 2 * head + 1], x_TS[:, 2 * head + 1 : 2 * head + 2]) for x_TS in (old_TS, new_TS)
        )
        maximum = jnp.where(is_here_T1, jnp.maximum(old, new), old)
        of_old, of_new = jnp.exp2(old - maximum), jnp.where(is_here_T1, jnp.exp2(new - maximum), 0.0)
        columns += [maximum, before * of_old + here * of_new]
        scales += [of_old, of_new]
    unused = jnp.ones((tile.rows, sizes.softmax_rows - len(columns)), jnp.float32)
    joined.softmax_TS[rows] = jnp.concatenate([*columns, unused], axis=1)
    of_old_TH, of_new_TH = (_by_lane_TH(sizes, jnp.concatenate(scales, axis=1), column) for column in (0, 1))
    joined.read_TH[rows] = joined.read_TH[rows] * of_old_TH + read_TH * of_new_TH


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


class Summed(NamedTuple):
    """Scratch memory of long windows, float32."""

    query_TH: Any  # sums over the blocks of keys, for the rows of a block of positions and all query rows
    position_RH: Any  # sums over the rows of a block of positions; None = no relative positions
    copy_RH: Any  # of a part of the gradients in the device's memory


def backward(whole: Sizes, operands: Operands, saved: Saved, interpret: Any) -> Gradients:
    """Return the gradients of queries, keys, values, position keys and vectors."""
    sizes = whole.of_block

    def like(array: Any, dtype: Any = None) -> Any:
        return None if array is None else jax.ShapeDtypeStruct(array.shape, dtype or array.dtype)

    shapes = Gradients(
        like(operands.query_BTH),
        like(operands.key_BKH),
        like(operands.value_BKH),
        like(operands.position_2RH, jnp.float32),
        like(operands.vectors_8H),
    )
    has_positions, results = operands.position_2RH is not None, shapes
    keys, rows = key_blocks(whole), row_blocks(whole)
    written = row_blocks(whole, is_output=True)
    blocks = Gradients(written, keys, keys, position_blocks(whole) if has_positions else None, vector_blocks(whole))
    sum_of_keys = pltpu.VMEM((sizes.padded_keys, sizes.width), jnp.float32)
    inputs, zeros, summed = (operands, saved), None, None
    if not whole.fits:
        # Of a long window, these gradients are added to zeros in the device's memory, block by block. The zeros have
        # more than 128 lanes, because v3 copies no parts of narrower arrays.
        lanes = max(sizes.num_groups, 2) * sizes.width
        zeros = tuple(jnp.zeros((*x.shape[:2], lanes), jnp.float32) for x in shapes[1:4] if x is not None)
        of_keys, of_values, *of_positions = map(like, zeros)
        shapes = shapes._replace(key_BKH=of_keys, value_BKH=of_values, position_2RH=(*of_positions, None)[0])
        in_memory = pl.BlockSpec(memory_space=pl.ANY)
        blocks = blocks._replace(
            key_BKH=in_memory, value_BKH=in_memory, position_2RH=in_memory if has_positions else None
        )
        of_distances = pltpu.VMEM((sizes.padded_distances, sizes.width), jnp.float32)
        of_rows = pltpu.VMEM((sizes.padded_rows, sizes.width), jnp.float32)
        summed = Summed(of_rows, of_distances if has_positions else None, of_distances)
    before = len(jax.tree.leaves(inputs))
    gradients = pl.pallas_call(
        functools.partial(_backward_kernel, whole),
        grid=grid_of(whole, len(operands.query_BTH)),
        in_specs=[
            operand_blocks(whole, operands),
            Saved(rows, softmax_blocks(whole), rows),
            None if zeros is None else (in_memory,) * len(zeros),
        ],
        out_specs=blocks,
        out_shape=shapes,
        input_output_aliases={} if zeros is None else {before + i: 1 + i for i in range(len(zeros))},
        scratch_shapes=(
            Sums(sum_of_keys, sum_of_keys),
            scratch_shapes(sizes),
            _work_shapes(sizes, sizes.product_type(operands.query_BTH.dtype)),
            summed,
        ),
        compiler_params=compiler_params(whole),
        cost_estimate=estimate_cost(whole, operands, (saved, shapes), products=8),
        interpret=interpret,
        name="fused_attention_backward",
    )(*inputs, zeros)
    return jax.tree.map(lambda x, of: x[..., : of.shape[-1]].astype(of.dtype), gradients, results)


def _backward_kernel(whole: Sizes, refs: Operands, saved: Saved, zeros: Any, *others: Any) -> None:
    *gradients, sums, scratch, work, summed = others
    grads, sizes, place = Gradients(*gradients), whole.of_block, Place.here()
    rows = rows_of(place, ROWS)
    # In float32 a gradient overwrites its input.
    work = work._replace(
        dropped=work.dropped or scratch.content,
        grad=work.grad or work.wanted,
        by_distance=work.by_distance or scratch.by_distance,
    )

    def clear(x: Any) -> None:
        x[...] = jnp.zeros_like(x)

    @pl.when(place.tile == 0)
    def clear_sums() -> None:
        clear(sums.key_KH)
        clear(sums.value_KH)
        if summed is not None and summed.position_RH is not None:
            clear(summed.position_RH)

    @pl.when((place.example == 0) & (place.row_block == 0) & (place.key_block == 0) & (place.tile == 0))
    def clear_gradients() -> None:
        clear(grads.vectors_8H)
        if summed is None and grads.position_2RH is not None:
            clear(grads.position_2RH)

    if summed is not None:

        @pl.when(place.is_first(whole))
        def clear_queries() -> None:
            summed.query_TH[rows] = jnp.zeros_like(summed.query_TH[rows])

    def differentiate(tile: Tile) -> None:
        read_integers(whole, place, refs, scratch)
        work.softmax_TS[...] = saved.softmax_BST[0].T
        if summed is not None and tile.is_query:
            # Rows in other blocks get weights of 0 for any score.
            here, is_here = slice(0, tile.rows), is_here_T1(whole, tile, scratch)
            work.softmax_TS[here] = jnp.where(is_here, work.softmax_TS[here], -MASKED)
        of_positions = None
        if grads.position_2RH is not None:
            of_positions = grads.position_2RH.at[direction_of(tile, refs)] if summed is None else summed.position_RH
        query_TH = _differentiate_tile(sizes, tile, refs, saved, grads, of_positions, sums, scratch, work)
        if summed is None:
            grads.query_BTH[0, : tile.rows] = query_TH.astype(grads.query_BTH.dtype)
        else:
            summed.query_TH[rows_of(place, tile.rows)] += query_TH

    call_at(whole, place, refs, differentiate)

    @pl.when(place.tile == sizes.tiles - 1)
    def write_sums() -> None:
        if summed is None:
            grads.key_BKH[0] = sums.key_KH[...].astype(grads.key_BKH.dtype)
            grads.value_BKH[0] = sums.value_KH[...].astype(grads.value_BKH.dtype)
            return
        lanes = pl.ds(pl.multiple_of(place.group * sizes.width, sizes.width), sizes.width)
        keys = pl.ds(pl.multiple_of(place.key_block * sizes.padded_keys, LANES), sizes.padded_keys)
        copy_KH = summed.copy_RH.at[: sizes.padded_keys]
        _add_in_memory(grads.key_BKH.at[place.example, keys, lanes], sums.key_KH, copy_KH)
        _add_in_memory(grads.value_BKH.at[place.example, keys, lanes], sums.value_KH, copy_KH)
        if summed.position_RH is not None:
            content, _ = place.tiles(whole)
            window = pl.ds(first_distance(whole, place.row_block, place.key_block), sizes.padded_distances)
            there = grads.position_2RH.at[direction_of(content, refs), window, lanes]
            _add_in_memory(there, summed.position_RH, summed.copy_RH)

    if summed is not None:

        @pl.when(place.is_last(whole))
        def write_queries() -> None:
            grads.query_BTH[0] = summed.query_TH[rows].astype(grads.query_BTH.dtype)


def _add_in_memory(there: Any, x: Any, copy: Any) -> None:
    """Add numbers on the chip to those in the device's memory. copy: scratch memory of their size."""
    pltpu.sync_copy(there, copy)
    copy[...] += x[...]
    pltpu.sync_copy(copy, there)


def _differentiate_tile(
    sizes: Sizes,
    tile: Tile,
    refs: Operands,
    saved: Saved,
    grads: Gradients,
    of_positions: Any,
    sums: Sums,
    scratch: Scratch,
    work: Work,
) -> jnp.ndarray:
    """Return the gradient of the queries; add the other gradients to sums. of_positions: those of position keys."""
    rows, here = read_rows(sizes, tile, refs, sizes.scale_2), slice(0, tile.rows)
    operand = rows.with_r_w_TH.dtype
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
            of_positions[window_of(sizes, tile, chunk)] += of_positions_RH
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
    missing = jnp.zeros((SUBLANES - len(by_bias) - 1, sizes.width), jnp.float32)
    grads.vectors_8H[...] += jnp.concatenate([*(a.sum(0, keepdims=True) for a in by_bias), other_1H, missing])
    return functools.reduce(jnp.add, by_bias)


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

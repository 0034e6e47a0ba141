"""Forward kernel: the attention output of a tile of rows, and what the backward pass needs of its softmax.

output = sum over keys of dropout(w) v / (sum of w (1 - rate)),   w = exp(score - maximum)
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
    operand_blocks,
    row_blocks,
    softmax_blocks,
)
from xlnet_jax.kernels.tpu.scores import (
    Scratch,
    Strip,
    Tile,
    drop_TK,
    for_each_strip,
    head_scratch,
    in_head_1H,
    is_busy,
    multiply_queries,
    product,
    read_rows,
    read_window_RH,
    scores_TK,
    scratch_shapes,
    tiles_here,
)
from xlnet_jax.kernels.tpu.tiles import ROWS, Sizes


class Weights(NamedTuple):
    """Scratch memory of the softmax."""

    dropped: tuple[Any, ...]  # a head each of those computed together, [T, K]: dropout(w); in float32 those of Scratch
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
        functools.partial(_kernel, sizes),
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


def _kernel(sizes: Sizes, refs: Operands, read_BTH: Any, softmax_BST: Any, scratch: Scratch, weights: Weights) -> None:
    content, query = tiles_here(sizes)
    # Weights in float32 take the place of the scores that they are made of.
    weights = weights._replace(dropped=weights.dropped or scratch.content)
    # Columns have one lane of a register in use, so they are rows in memory, and turn on the chip.
    scratch.integers_T8[...] = refs.rows_B8T[0].T

    @pl.when(content.number < sizes.content_tiles)
    def content_rows() -> None:
        _attend(sizes, content, refs, read_BTH, scratch, weights)

    if sizes.query_tiles:

        @pl.when(is_busy(query, refs))
        def query_rows() -> None:
            _attend(sizes, query, refs, read_BTH, scratch, weights)

    softmax_BST[0] = weights.softmax_TS[...].T


def _attend(sizes: Sizes, tile: Tile, refs: Operands, read_BTH: Any, scratch: Scratch, weights: Weights) -> None:
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

"""Forward kernel: the attention output of a tile of rows, and what the backward pass needs of its softmax.

output = sum over keys of dropout(w) v / (sum of w (1 - rate)),   w = exp(score - maximum)
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from xlnet_jax.kernels.fused import blocks
from xlnet_jax.kernels.fused.operands import Operands
from xlnet_jax.kernels.fused.scores import (
    Tile,
    direction_of,
    dropped_TK,
    head_scores,
    in_head_1H,
    product,
    random_words_TK,
    read_rows,
    shift_of,
    strip_scores_TK,
    strips,
    tiles_here,
    window_of,
)
from xlnet_jax.kernels.fused.tiles import ROWS, Sizes


def forward(sizes: Sizes, operands: Operands, interpret: bool) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the output [B, T, N x H], and float32 [B, softmax rows of each group, T] (`Sizes.softmax_rows`)."""
    batch = len(operands.query_BTH)
    read_BTH = jax.ShapeDtypeStruct(operands.query_BTH.shape, operands.query_BTH.dtype)
    softmax_BST = jax.ShapeDtypeStruct((batch, sizes.num_groups * sizes.softmax_rows, sizes.padded_rows), jnp.float32)
    return pl.pallas_call(
        functools.partial(_kernel, sizes),
        grid=(sizes.num_groups, batch, sizes.tiles),
        in_specs=[blocks.of_operands(sizes, operands)],
        out_specs=(blocks.of_rows(sizes), blocks.of_softmax(sizes)),
        out_shape=(read_BTH, softmax_BST),
        compiler_params=blocks.compiler_params(sizes),
        cost_estimate=blocks.cost(sizes, operands, products=3),
        interpret=interpret,
        name="fused_attention_forward",
    )(operands)


def _kernel(sizes: Sizes, refs: Operands, read_BTH: Any, softmax_BST: Any) -> None:
    content, query = tiles_here(sizes)

    @pl.when(content.number < sizes.content_tiles)
    def _() -> None:
        _attend(sizes, content, refs, read_BTH, softmax_BST)

    if sizes.query_tiles:

        @pl.when(query.number >= 0)
        def _() -> None:
            _attend(sizes, query, refs, read_BTH, softmax_BST)


def _attend(sizes: Sizes, tile: Tile, refs: Operands, read_BTH: Any, softmax_BST: Any) -> None:
    rows, operand = read_rows(sizes, tile, refs), sizes.product_type(refs.query_BTH.dtype)
    value_KH = refs.value_BKH[0].astype(operand)
    window_RH = shift = None
    if refs.position_2RH is not None:
        window_RH = refs.position_2RH[direction_of(sizes, tile, refs), window_of(sizes, tile)].astype(operand)
        shift = shift_of(sizes, tile, rows)
    read_TH = jnp.zeros((tile.rows, sizes.width), jnp.float32)
    statistics = []
    for first in range(0, sizes.heads_in_group, sizes.heads_at_once):
        heads = range(first, first + sizes.heads_at_once)
        scores = [head_scores(rows, refs, window_RH, in_head_1H(sizes, head)) for head in heads]
        weights: list[list[jnp.ndarray]] = [[] for _ in heads]
        found: list[list[tuple[jnp.ndarray, jnp.ndarray]]] = [[] for _ in heads]
        for strip in strips(sizes, tile, rows, refs):
            words_TK = random_words_TK(sizes, tile, strip, refs, first)
            for i, head in enumerate(heads):
                score_TK = strip_scores_TK(sizes, strip, scores[i], shift)
                maximum_T1 = score_TK.max(1, keepdims=True)
                weights_TK = jnp.exp(score_TK - maximum_T1)
                found[i].append((maximum_T1, weights_TK.sum(1, keepdims=True)))
                weights[i].append(dropped_TK(sizes, tile, refs, head, words_TK, weights_TK).astype(operand))
        for i, head in enumerate(heads):
            maximum_T1, sum_T1 = (jnp.concatenate(column) for column in zip(*found[i], strict=True))
            statistics += [maximum_T1, sum_T1]
            summed_TH = product(jnp.concatenate(weights[i]), value_KH, 1, 0)
            scaled_TH = summed_TH * (1.0 / ((1.0 - sizes.dropout_rate) * sum_T1))
            read_TH = jnp.where(in_head_1H(sizes, head), scaled_TH, read_TH)
    read_BTH[0, : tile.rows] = read_TH.astype(read_BTH.dtype)
    _write_statistics(sizes, tile, statistics, softmax_BST)


def _write_statistics(sizes: Sizes, tile: Tile, statistics: list[jnp.ndarray], softmax_BST: Any) -> None:
    """Write columns [T, 1] as rows: an array with one lane in use would be 128 times as large in memory."""
    columns_TS = jnp.concatenate([jnp.broadcast_to(c, (tile.rows, 1)) for c in statistics], axis=1)
    missing = sizes.softmax_rows - len(statistics)
    columns_TS = jnp.pad(columns_TS, ((0, ROWS - tile.rows), (0, missing)))
    softmax_BST[0] = columns_TS.T

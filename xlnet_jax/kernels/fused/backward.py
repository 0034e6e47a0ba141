"""Backward kernel: gradients of all operands in one pass over the tiles of rows.

With w = exp(score - maximum) and s = 1 / (sum of w) of a row, and the mask m of dropout, scaled by 1 / (1 - rate):

    d value = (m w s)^T d output
    d score = w s (m (d output value^T) - mean),   mean = sum over features of output x d output
    d query = d score key + unshift(d score) position key + (sum over other segments of d score) difference

and the transposes of the last line for keys, position keys and the difference of the segment keys. s is multiplied
into d output, which is smaller than the scores.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

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
from xlnet_jax.kernels.fused.shift import unshifted_TR
from xlnet_jax.kernels.fused.tiles import OTHER_SEGMENT, SUBLANES, Sizes


class Saved(NamedTuple):
    """Inputs of the backward kernel besides `Operands`: arrays outside, references inside."""

    read_BTH: Any
    softmax_BST: Any
    grad_BTH: Any


class Gradients(NamedTuple):
    """Gradients of the operands that are numbers."""

    query_BTH: Any
    key_BKH: Any
    value_BKH: Any
    position_2RH: Any | None  # float32
    vectors_8H: Any  # float32


class Sums(NamedTuple):
    """Sums over the rows of an example, in float32."""

    key_KH: Any
    value_KH: Any


def backward(sizes: Sizes, operands: Operands, saved: Saved, interpret: bool) -> Gradients:
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
    position_2RH = None if operands.position_2RH is None else blocks.of_positions(sizes)
    keys, rows = blocks.of_keys(sizes), blocks.of_rows(sizes)
    sum_of_keys = pltpu.VMEM((sizes.padded_keys, sizes.width), jnp.float32)
    return pl.pallas_call(
        functools.partial(_kernel, sizes),
        grid=(sizes.num_groups, len(operands.query_BTH), sizes.tiles),
        in_specs=[blocks.of_operands(sizes, operands), Saved(rows, blocks.of_softmax(sizes), rows)],
        out_specs=Gradients(rows, keys, keys, position_2RH, blocks.of_vectors(sizes)),
        out_shape=shapes,
        scratch_shapes=[Sums(sum_of_keys, sum_of_keys)],
        compiler_params=blocks.compiler_params(sizes),
        cost_estimate=blocks.cost(sizes, operands, products=8),
        interpret=interpret,
        name="fused_attention_backward",
    )(operands, saved)


def _kernel(sizes: Sizes, refs: Operands, saved: Saved, *outputs: Any) -> None:
    *gradients, sums = outputs
    grads = Gradients(*gradients)
    content, query = tiles_here(sizes)
    tile, example = content.number, content.example

    @pl.when(tile == 0)
    def _() -> None:
        sums.key_KH[...] = jnp.zeros_like(sums.key_KH)
        sums.value_KH[...] = jnp.zeros_like(sums.value_KH)

    @pl.when((tile == 0) & (example == 0))
    def _() -> None:
        grads.vectors_8H[...] = jnp.zeros_like(grads.vectors_8H)
        if grads.position_2RH is not None:
            grads.position_2RH[...] = jnp.zeros_like(grads.position_2RH)

    @pl.when(tile < sizes.content_tiles)
    def _() -> None:
        _tile(sizes, content, refs, saved, grads, sums)

    if sizes.query_tiles:

        @pl.when(query.number >= 0)
        def _() -> None:
            _tile(sizes, query, refs, saved, grads, sums)

    @pl.when(tile == sizes.tiles - 1)
    def _() -> None:
        grads.key_BKH[0] = sums.key_KH[...].astype(grads.key_BKH.dtype)
        grads.value_BKH[0] = sums.value_KH[...].astype(grads.value_BKH.dtype)


def _tile(sizes: Sizes, tile: Tile, refs: Operands, saved: Saved, grads: Gradients, sums: Sums) -> None:
    rows, operand = read_rows(sizes, tile, refs), sizes.product_type(refs.query_BTH.dtype)
    key_KH, value_KH = refs.key_BKH[0].astype(operand), refs.value_BKH[0].astype(operand)
    window_RH = shift = None
    direction, window = direction_of(sizes, tile, refs), window_of(sizes, tile)
    if refs.position_2RH is not None:
        window_RH, shift = refs.position_2RH[direction, window].astype(operand), shift_of(sizes, tile, rows)
    read_TH, grad_TH = (a[0, : tile.rows].astype(jnp.float32) for a in (saved.read_BTH, saved.grad_BTH))
    if rows.is_real_T1 is not None:
        read_TH, grad_TH = (jnp.where(rows.is_real_T1, a, 0.0) for a in (read_TH, grad_TH))
    statistics_TS = saved.softmax_BST[0].T[: tile.rows]
    with_r_w_grad_TH = with_r_r_grad_TH = with_r_s_grad_TH = jnp.zeros((tile.rows, sizes.width), jnp.float32)
    other_1H = jnp.zeros((1, sizes.width), jnp.float32)
    for first in range(0, sizes.heads_in_group, sizes.heads_at_once):
        heads = range(first, first + sizes.heads_at_once)
        masks = [in_head_1H(sizes, head) for head in heads]
        scores = [head_scores(rows, refs, window_RH, mask) for mask in masks]
        maxima = [statistics_TS[:, 2 * head : 2 * head + 1] for head in heads]
        scaled = [
            jnp.where(m, grad_TH, 0.0) / statistics_TS[:, 2 * h + 1 : 2 * h + 2]
            for m, h in zip(masks, heads, strict=True)
        ]
        means = [(a * read_TH).sum(1, keepdims=True) for a in scaled]
        scaled = [(a * (1.0 / (1.0 - sizes.dropout_rate))).astype(operand) for a in scaled]
        products = [product(a, value_KH, 1, 1) for a in scaled]
        parts: list[list[tuple]] = [[] for _ in heads]
        for strip in strips(sizes, tile, rows, refs):
            at = slice(strip.start, strip.stop)
            words_TK = random_words_TK(sizes, tile, strip, refs, first)
            for i, head in enumerate(heads):
                score_TK = strip_scores_TK(sizes, strip, scores[i], shift)
                weights_TK = jnp.exp(score_TK - maxima[i][at])
                wanted_TK = dropped_TK(sizes, tile, refs, head, words_TK, products[i][at])
                grad_TK = weights_TK * (wanted_TK - means[i][at])
                dropped = dropped_TK(sizes, tile, refs, head, words_TK, weights_TK)
                other_T1 = by_distance_TR = None
                if strip.is_other_TK is not None:
                    other_T1 = jnp.where(strip.is_other_TK, grad_TK, 0.0).sum(1, keepdims=True)
                if shift is not None:
                    by_distance_TR = unshifted_TR(grad_TK, shift.strip(strip.start, strip.stop), len(window_RH))
                    by_distance_TR = by_distance_TR.astype(operand)
                parts[i].append((dropped.astype(operand), grad_TK.astype(operand), by_distance_TR, other_T1))
        for i in range(len(heads)):
            dropped_, grad_TK, by_distance_TR, other_T1 = (
                None if column[0] is None else jnp.concatenate(column) for column in zip(*parts[i], strict=True)
            )
            sums.value_KH[...] += product(dropped_, scaled[i], 0, 0)
            sums.key_KH[...] += product(grad_TK, jnp.where(masks[i], rows.with_r_w_TH, 0), 0, 0)
            with_r_w_grad_TH = jnp.where(masks[i], product(grad_TK, key_KH, 1, 0), with_r_w_grad_TH)
            if by_distance_TR is not None:
                with_r_r_TH = jnp.where(masks[i], rows.with_r_r_TH, 0)
                grads.position_2RH[direction, window] += product(by_distance_TR, with_r_r_TH, 0, 0)
                with_r_r_grad_TH = jnp.where(masks[i], product(by_distance_TR, window_RH, 1, 0), with_r_r_grad_TH)
            if other_T1 is not None:
                with_r_s_grad_TH = jnp.where(masks[i], other_T1, with_r_s_grad_TH)
    if sizes.has_segments:
        other_1H = (with_r_s_grad_TH * rows.with_r_s_TH).sum(0, keepdims=True)
        with_r_s_grad_TH *= refs.vectors_8H[OTHER_SEGMENT : OTHER_SEGMENT + 1]
    per_bias = [a * sizes.scale for a in (with_r_w_grad_TH, with_r_r_grad_TH, with_r_s_grad_TH)]
    grads.query_BTH[0, : tile.rows] = sum(per_bias).astype(grads.query_BTH.dtype)
    of_vectors = [*(a.sum(0, keepdims=True) for a in per_bias), other_1H]
    missing = jnp.zeros((SUBLANES - len(of_vectors), sizes.width), jnp.float32)
    grads.vectors_8H[...] += jnp.concatenate([*of_vectors, missing])

"""Backward kernels: a program for each tile of rows, then one for each tile of keys, so that each number is written by
one program, in an order that does not change from run to run (Dao, "FlashAttention-2", 2023, algorithm 2).

With p the probabilities, made again from the scores, and the mask m of dropout, scaled by 1 / (1 - rate):

    d value = (m p)^T d output
    d score = p (m (d output value^T) - mean),   mean = sum over features of output x d output

Rows give the gradients of queries, of position scores by distance and of segment scores; keys give those of keys and
values.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from xlnet_jax.kernels.gpu.forward import (
    Tile,
    distance_index,
    drop_TK,
    is_other_TK,
    other_distance_index,
    scores_TK,
)
from xlnet_jax.kernels.gpu.operands import KEYS, ROWS, Operands, Sizes, Vectors, blocks, compiler_params


class Saved(NamedTuple):
    """Inputs of the backward kernels besides operands and vectors, padded: arrays outside, references inside."""

    grad_BNTH: Any
    mean_BNT: Any  # float32
    maximum_BNT: Any  # float32
    sum_BNT: Any  # float32


class OfRows(NamedTuple):
    """Gradients that the rows give."""

    query_BNTH: Any
    by_distance_BNTR: Any
    other_BNT: Any


class OfKeys(NamedTuple):
    """Gradients that the keys give."""

    key_BNKH: Any
    value_BNKH: Any


def backward(sizes: Sizes, operands: Operands, vectors: Vectors, saved: Saved, interpret: bool) -> Operands:
    """Return the gradients of the operands."""
    batch, heads = operands.query_BNTH.shape[:2]

    def call(kernel: Any, tiles: int, name: str, shapes: Any) -> Any:
        return pl.pallas_call(
            functools.partial(kernel, sizes),
            grid=(tiles, heads, batch),
            in_specs=[blocks(operands), blocks(vectors), blocks(saved)],
            out_specs=blocks(shapes),
            out_shape=shapes,
            compiler_params=compiler_params(sizes),
            interpret=interpret,
            name=name,
        )(operands, vectors, saved)

    def like(array: Any) -> Any:
        return None if array is None else jax.ShapeDtypeStruct(array.shape, array.dtype)

    shapes_of_rows = OfRows(*map(like, (operands.query_BNTH, operands.by_distance_BNTR, operands.other_BNT)))
    shapes_of_keys = OfKeys(*map(like, (operands.key_BNKH, operands.value_BNKH)))
    query, by_distance, other = call(_of_rows, sizes.row_tiles, "fused_attention_backward", shapes_of_rows)
    key, value = call(_of_keys, sizes.key_tiles, "fused_attention_backward_keys", shapes_of_keys)
    return Operands(query, key, value, by_distance, other)


def _of_rows(sizes: Sizes, refs: Operands, vectors: Vectors, saved: Saved, *outputs: Any) -> None:
    grads, row = OfRows(*outputs), pl.program_id(0) * ROWS
    rows = Tile(row, 0).rows
    query_TH = refs.query_BNTH[rows]

    def add_keys(number: Any, so_far: tuple[jnp.ndarray, ...]) -> tuple[jnp.ndarray, ...]:
        query_grad_TH, other_T = so_far
        tile = Tile(row, number * KEYS)
        key_KH = refs.key_BNKH[tile.keys]
        _, grad_TK = _probabilities_and_gradients(sizes, refs, vectors, saved, tile, query_TH, key_KH)
        query_grad_TH += plgpu.dot(grad_TK.astype(key_KH.dtype), key_KH)
        if grads.by_distance_BNTR is not None:
            index = distance_index(sizes, vectors, tile)
            grads.by_distance_BNTR[index] = grad_TK.astype(grads.by_distance_BNTR.dtype)
        if grads.other_BNT is not None:
            other_T += jnp.where(is_other_TK(vectors, tile), grad_TK, 0.0).sum(1)
        return query_grad_TH, other_T

    nothing = jnp.zeros(query_TH.shape, jnp.float32), jnp.zeros(ROWS, jnp.float32)
    query_grad_TH, other_T = jax.lax.fori_loop(0, sizes.key_tiles, add_keys, nothing)
    grads.query_BNTH[rows] = query_grad_TH.astype(grads.query_BNTH.dtype)
    if grads.other_BNT is not None:
        grads.other_BNT[rows] = other_T
    if grads.by_distance_BNTR is not None:
        _clear_other_distances(sizes, vectors, row, grads.by_distance_BNTR)


def _of_keys(sizes: Sizes, refs: Operands, vectors: Vectors, saved: Saved, *outputs: Any) -> None:
    grads, key = OfKeys(*outputs), pl.program_id(0) * KEYS
    keys = Tile(0, key).keys
    key_KH = refs.key_BNKH[keys]

    def add_rows(number: Any, so_far: tuple[jnp.ndarray, ...]) -> tuple[jnp.ndarray, ...]:
        key_grad_KH, value_grad_KH = so_far
        tile = Tile(number * ROWS, key)
        query_TH, out_TH = refs.query_BNTH[tile.rows], saved.grad_BNTH[tile.rows]
        drop_TK, grad_TK = _probabilities_and_gradients(sizes, refs, vectors, saved, tile, query_TH, key_KH)
        value_grad_KH += plgpu.dot(drop_TK.astype(out_TH.dtype), out_TH, trans_a=True)
        key_grad_KH += plgpu.dot(grad_TK.astype(query_TH.dtype), query_TH, trans_a=True)
        return key_grad_KH, value_grad_KH

    nothing = jnp.zeros(key_KH.shape, jnp.float32), jnp.zeros(key_KH.shape, jnp.float32)
    key_grad_KH, value_grad_KH = jax.lax.fori_loop(0, sizes.row_tiles, add_rows, nothing)
    grads.key_BNKH[keys] = key_grad_KH.astype(grads.key_BNKH.dtype)
    grads.value_BNKH[keys] = value_grad_KH.astype(grads.value_BNKH.dtype)


def _probabilities_and_gradients(
    sizes: Sizes,
    refs: Operands,
    vectors: Vectors,
    saved: Saved,
    tile: Tile,
    query_TH: jnp.ndarray,
    key_KH: jnp.ndarray,
) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the probabilities of a tile after dropout, and the gradients of its scores."""
    rows = tile.rows
    score_TK = scores_TK(sizes, refs, vectors, query_TH, key_KH, tile)
    probability_TK = jnp.exp(score_TK - saved.maximum_BNT[rows][:, None]) / saved.sum_BNT[rows][:, None]
    wanted_TK = plgpu.dot(saved.grad_BNTH[rows], refs.value_BNKH[tile.keys], trans_b=True)
    dropped, wanted_TK = (drop_TK(sizes, vectors, tile, x_TK / sizes.keep) for x_TK in (probability_TK, wanted_TK))
    return dropped, probability_TK * (wanted_TK - saved.mean_BNT[rows][:, None])


def _clear_other_distances(sizes: Sizes, vectors: Vectors, row: Any, by_distance_TR: Any) -> None:
    """Write zeros at the distances before and after those of the keys."""

    def clear(number: Any, nothing: None) -> None:
        row_TK, column_TK = other_distance_index(sizes, vectors, Tile(row, number * KEYS))
        by_distance_TR[row_TK, column_TK] = jnp.zeros(row_TK.shape, by_distance_TR.dtype)

    jax.lax.fori_loop(0, sizes.distance_tiles, clear, None)

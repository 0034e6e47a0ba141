"""Forward kernel: one program for each tile of rows, which passes over the tiles of keys with an online softmax
(Dao, "FlashAttention-2", 2023, algorithm 1)."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from xlnet_jax.kernels.triton.operands import Operands, Vectors, blocks
from xlnet_jax.kernels.triton.scores import Tile, drop_TK, scores_TK
from xlnet_jax.kernels.triton.tiles import KEYS, ROWS, Sizes, compiler_params


class Read(NamedTuple):
    """Outputs of the forward kernel, padded.

    Maximum and sum stay apart: beside the maximum of a row that sees no key, the logarithm of its sum would vanish.
    """

    read_BNTH: Any
    maximum_BNT: Any  # float32, highest score of each row
    sum_BNT: Any  # float32, sum over keys of exp(score - maximum)


def forward(sizes: Sizes, operands: Operands, vectors: Vectors, interpret: bool) -> Read:
    """Return the attention output and the statistics of the softmax."""
    query = operands.query_BNTH
    statistic = jax.ShapeDtypeStruct(query.shape[:3], jnp.float32)
    shapes = Read(jax.ShapeDtypeStruct(query.shape, operands.value_BNKH.dtype), statistic, statistic)
    return pl.pallas_call(
        functools.partial(_kernel, sizes),
        grid=(sizes.row_tiles, query.shape[1], query.shape[0]),
        in_specs=[blocks(operands), blocks(vectors)],
        out_specs=blocks(shapes),
        out_shape=shapes,
        compiler_params=compiler_params(sizes),
        interpret=interpret,
        name="fused_attention_forward",
    )(operands, vectors)


def _kernel(sizes: Sizes, refs: Operands, vectors: Vectors, *outputs: Any) -> None:
    out, row = Read(*outputs), pl.program_id(0) * ROWS
    rows = Tile(row, 0).rows
    query_TH = refs.query_BNTH[rows]

    def add_keys(number: Any, so_far: tuple[jnp.ndarray, ...]) -> tuple[jnp.ndarray, ...]:
        read_TH, maximum_T, sum_T = so_far
        tile = Tile(row, number * KEYS)
        score_TK = scores_TK(sizes, refs, vectors, query_TH, refs.key_BNKH[tile.keys], tile)
        higher_T = jnp.maximum(maximum_T, score_TK.max(1))
        weights_TK = jnp.exp(score_TK - higher_T[:, None])
        shrink_T = jnp.exp(maximum_T - higher_T)
        value_KH = refs.value_BNKH[tile.keys]
        dropped = drop_TK(sizes, vectors, tile, weights_TK).astype(value_KH.dtype)
        read_TH = read_TH * shrink_T[:, None] + plgpu.dot(dropped, value_KH)
        return read_TH, higher_T, sum_T * shrink_T + weights_TK.sum(1)

    nothing = jnp.zeros(query_TH.shape, jnp.float32), jnp.full(ROWS, -jnp.inf), jnp.zeros(ROWS, jnp.float32)
    read_TH, maximum_T, sum_T = jax.lax.fori_loop(0, sizes.key_tiles, add_keys, nothing)
    out.read_BNTH[rows] = (read_TH / (sum_T * sizes.keep)[:, None]).astype(out.read_BNTH.dtype)
    out.maximum_BNT[rows] = maximum_T
    out.sum_BNT[rows] = sum_T

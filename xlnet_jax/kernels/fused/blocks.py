"""Blocks of the arrays that the kernels of the fused attention hold on the chip.

The grid is (group of heads, example, tile of rows), the last running fastest: keys and values of a head stay on the
chip for all rows of an example, position keys for the whole batch.
"""

from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.fused.operands import Operands
from xlnet_jax.kernels.fused.tiles import ROWS, SUBLANES, Sizes


def row_blocks(sizes: Sizes) -> pl.BlockSpec:
    """Return the blocks of an array [B, T, N x H]."""
    return pl.BlockSpec((1, ROWS, sizes.width), lambda group, example, tile: (example, tile, group))


def key_blocks(sizes: Sizes) -> pl.BlockSpec:
    """Return the blocks of an array [B, K, N x H]."""
    return pl.BlockSpec((1, sizes.padded_keys, sizes.width), lambda group, example, tile: (example, 0, group))


def position_blocks(sizes: Sizes) -> pl.BlockSpec:
    """Return the blocks of an array [directions, R, N x H]. They change with the group only: one buffer will do."""
    shape = (sizes.num_directions, sizes.padded_distances, sizes.width)
    return pl.BlockSpec(shape, lambda group, example, tile: (0, 0, group), pipeline_mode=pl.Buffered(1))


def vector_blocks(sizes: Sizes) -> pl.BlockSpec:
    """Return the blocks of an array [8, N x H]."""
    return pl.BlockSpec((SUBLANES, sizes.width), lambda group, example, tile: (0, group))


def softmax_blocks(sizes: Sizes) -> pl.BlockSpec:
    """Return the blocks of the softmax statistics."""
    return pl.BlockSpec((1, sizes.softmax_rows, ROWS), lambda group, example, tile: (example, group, tile))


def operand_blocks(sizes: Sizes, operands: Operands) -> Operands:
    """Return the blocks of all inputs."""
    scalars = pl.BlockSpec(memory_space=pltpu.SMEM)
    return Operands(
        query_BTH=row_blocks(sizes),
        key_BKH=key_blocks(sizes),
        value_BKH=key_blocks(sizes),
        position_2RH=None if operands.position_2RH is None else position_blocks(sizes),
        vectors_8H=vector_blocks(sizes),
        rows_B8T=pl.BlockSpec((1, SUBLANES, ROWS), lambda group, example, tile: (example, 0, tile)),
        keys_B8K=pl.BlockSpec((1, SUBLANES, sizes.padded_keys), lambda group, example, tile: (example, 0, 0)),
        is_reversed_B=None if operands.is_reversed_B is None else scalars,
        seed_BN=None if operands.seed_BN is None else scalars,
        busy_BQ=None if operands.busy_BQ is None else scalars,
    )


def compiler_params(sizes: Sizes) -> Any:
    """Return the settings of the compiler. Cores may share the groups; the sums over a batch need one core."""
    return pltpu.CompilerParams(
        dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=sizes.generation.vmem_bytes
    )


def estimate_cost(sizes: Sizes, operands: Operands, others: Any, products: int) -> pl.CostEstimate:
    """Return the FLOPs of a kernel and the bytes that it reads and writes, for the compiler's schedule and for plans.

    others: its further inputs and its outputs, arrays or their shapes; products: its products of rows and keys.
    """
    batch, elements = len(operands.query_BTH), sizes.busy_tiles * ROWS * sizes.padded_keys
    return pl.CostEstimate(
        flops=2 * products * batch * sizes.num_groups * sizes.group * elements * sizes.width,
        bytes_accessed=sum(a.size * a.dtype.itemsize for a in jax.tree.leaves((operands, others))),
        transcendentals=batch * sizes.num_heads * elements,
    )

"""Define the grid of the kernels: each step computes a tile of rows with a block of keys, for a group of heads."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.tpu.operands import TpuOperands
from xlnet_jax.kernels.tpu.tiles import ROWS, TpuSizes


def grid_of(sizes: TpuSizes, batch: int) -> tuple[int, ...]:
    """Return the grid of a call."""
    return sizes.num_groups, batch, sizes.row_blocks, sizes.key_blocks, sizes.of_block.tiles


def compiler_params(sizes: TpuSizes) -> Any:
    """Return the compiler's settings. Cores may divide the groups; the sums over a batch need a single core."""
    return pltpu.CompilerParams(
        dimension_semantics=("parallel", "arbitrary", "arbitrary", "arbitrary", "arbitrary"),
        vmem_limit_bytes=sizes.generation.vmem_bytes,
    )


class Place(NamedTuple):
    """Place of a step in the grid. Only the device knows whether its tile has content rows or query rows."""

    group: jnp.ndarray  # of heads
    example: jnp.ndarray
    row_block: jnp.ndarray
    key_block: jnp.ndarray
    tile: jnp.ndarray

    @classmethod
    def here(cls) -> "Place":
        return cls(*(pl.program_id(axis) for axis in range(5)))

    def is_busy(self, sizes: TpuSizes, busy_BS: Any) -> Any:
        """Return False if the step need not be computed (`busy_BS`)."""
        if busy_BS is None:
            return True
        content_tiles = sizes.of_block.content_tiles
        query = self.tile - content_tiles
        number = jnp.where(
            query < 0,
            self.row_block * content_tiles + self.tile,
            sizes.content_tiles + query * sizes.row_blocks + self.row_block,
        )
        return busy_BS[self.example, number * sizes.key_blocks + self.key_block] != 0

    def rows(self, count: int) -> Any:
        """Return the slice of the rows of a tile in the scratch memory of a block of positions."""
        return pl.ds(pl.multiple_of(self.tile * ROWS, ROWS), count)

    def is_first(self, sizes: TpuSizes) -> Any:
        """Return True if no block of keys was computed with this tile before."""
        is_content = self.tile < sizes.of_block.content_tiles
        return (self.key_block == 0) & (is_content | (self.row_block == 0))

    def is_last(self, sizes: TpuSizes) -> Any:
        """Return True if no block of keys will be computed with this tile after this step."""
        is_content = self.tile < sizes.of_block.content_tiles
        is_last_block = is_content | (self.row_block == sizes.row_blocks - 1)
        return (self.key_block == sizes.key_blocks - 1) & is_last_block


def call_at(sizes: TpuSizes, place: Place, refs: TpuOperands, compute: Callable[[bool], None]) -> None:
    """Call `compute` for the tile of this step, with True if its rows are query rows."""
    is_query, is_busy = place.tile >= sizes.of_block.content_tiles, place.is_busy(sizes, refs.busy_BS)
    pl.when(~is_query & is_busy)(lambda: compute(False))
    if sizes.query_tiles:
        pl.when(is_query & is_busy)(lambda: compute(True))

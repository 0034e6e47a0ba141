"""Sizes of the attention kernels for GPUs: tiles of rows and keys, and padded lengths.

Rows of both streams and keys are padded at their end to whole tiles. Inside the kernels T counts the rows of a tile and
K its keys.
"""

from dataclasses import dataclass
from typing import Any

from jax.experimental.pallas import triton as plgpu

ROWS = KEYS = 64
"""Rows and keys of a tile: powers of two, as Triton wants. Four warps hold a tile's scores in 32 registers a thread."""

NARROWEST = 16
"""Width of a head that Triton multiplies; narrower heads are padded."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of one call, as the kernels see it on one device."""

    num_places: int
    """positions that rows may be at, L of `AttentionInputs.num_places`; without relative positions 0"""
    num_rows: int
    num_keys: int
    head_width: int
    dropout_rate: float

    @property
    def row_tiles(self) -> int:
        return -(-self.num_rows // ROWS)

    @property
    def key_tiles(self) -> int:
        return -(-self.num_keys // KEYS)

    @property
    def more_rows(self) -> int:
        """Number of rows that fill the last tile."""
        return self.row_tiles * ROWS - self.num_rows

    @property
    def padded_keys(self) -> int:
        return self.key_tiles * KEYS

    @property
    def more_keys(self) -> int:
        """Number of keys that fill the last tile."""
        return self.padded_keys - self.num_keys

    @property
    def distance_tiles(self) -> int:
        """Number of tiles of the distances that a row has no key at."""
        return -(-self.num_places // KEYS)

    @property
    def more_distances(self) -> int:
        """Number of distances after those of the table: every row has some for all padded keys, and whole tiles of
        others."""
        return self.more_keys + self.distance_tiles * KEYS - self.num_places

    @property
    def more_width(self) -> int:
        return max(0, NARROWEST - self.head_width)

    @property
    def keep(self) -> float:
        """Share of the probabilities that dropout keeps."""
        return 1.0 - self.dropout_rate


def compiler_params(sizes: Sizes) -> Any:
    """Return the settings of the compiler."""
    return plgpu.CompilerParams(num_warps=8 if sizes.head_width > 64 else 4, num_stages=2)

"""Define sizes of the fused kernel: tiles of rows, groups of heads, padded lengths, and properties of TPU generations.

The kernel takes queries as [B, T, N x H], as the projection writes them, and divides them into tiles: 128 rows of one
example, for the heads that share 128 lanes. Content rows fill whole tiles; tiles of query rows follow.

Inside the kernel, dimension letters refer to a tile: T its rows, K the padded keys, R the padded distances, H the lanes
of a group of heads.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from xlnet_jax.kernels.arguments import round_up

LANES = 128
"""Numbers in a row of a TPU register."""

SUBLANES = 8
"""Rows of a register of 32-bit numbers."""

ROWS = LANES
"""Rows of a tile. The relative shift between its first and last row is less than a register's width."""


class RowField:
    """Rows of the integer array `TpuOperands.rows_B8T`."""

    RANK, FIRST, LAST, SEGMENT, POSITION, NUMBER = range(6)


class KeyField:
    """Rows of the integer array `TpuOperands.keys_B8K`."""

    RANK, POSITION, SEGMENT, NUMBER = range(4)


class VectorRow:
    """Rows of `TpuOperands.vectors_8H`: the biases, and the difference of the two segment keys."""

    R_W, R_R, R_S, OTHER_SEGMENT = range(4)


class TpuGeneration(NamedTuple):
    """Properties of a TPU generation that the kernel depends on."""

    vmem_bytes: int
    """bytes of on-chip memory that the kernel may use"""
    row_block: int
    """most content rows in a block: a block with `key_block` keys and `row_block` + `key_block` position keys fits"""
    key_block: int
    """most keys in a block"""
    multiplies_bfloat16: bool = True
    """False = the kernel reads float32; products still round it to bfloat16"""
    multiplies_integers: bool = True
    """False = the compiler multiplies integers by shifts and sums"""
    gathers_lanes: bool = True
    """True = each row of a register can be permuted differently"""
    rotates_in_order: bool = True
    """True = each row of a register can be rotated by one lane more than the row before"""
    unrolls: bool = True
    """True = strips can be unrolled, so that products and arithmetic overlap, without spilling too many values"""
    pairs_heads: bool = True
    """True = memory suffices for two heads in flight"""


_EARLY = TpuGeneration(
    16 * 2**20,
    768,
    768,
    multiplies_bfloat16=False,
    multiplies_integers=False,
    gathers_lanes=False,
    rotates_in_order=False,
    unrolls=False,
    pairs_heads=False,
)
GENERATIONS = {
    "v2": _EARLY,
    "v3": _EARLY,
    "v4": TpuGeneration(16 * 2**20, 768, 768, rotates_in_order=False),
    "v5e": TpuGeneration(64 * 2**20, 4096, 2048),
    "v5p": TpuGeneration(48 * 2**20, 4096, 2048),
    "v6e": TpuGeneration(64 * 2**20, 4096, 2048),
    "v7": TpuGeneration(48 * 2**20, 4096, 2048),
}


@dataclass(frozen=True)
class TpuSizes:
    """Sizes of one kernel call on one device, and the terms of its scores."""

    num_heads: int
    head_width: int
    num_content: int
    num_targets: int
    num_places: int
    """possible positions of rows, L of `AttentionInputs.num_places`"""
    num_keys: int
    num_directions: int
    """tables of position keys: 0 = no relative positions, 2 = examples may be read backwards"""
    has_ranks: bool
    has_span: bool
    has_segments: bool
    dropout_rate: float
    generation: TpuGeneration
    rotates_pairs: bool = False
    """True = two registers are rotated at a time, as bfloat16"""
    row_block: int = LANES
    """content rows and places are padded to a multiple of this; of a long window, those of a block"""
    key_block: int = LANES
    """keys are padded to a multiple of this; of a long window, those of a block"""

    def __post_init__(self) -> None:
        assert self.row_block % LANES == 0, self.row_block
        assert self.key_block % LANES == 0, self.key_block

    @property
    def fits(self) -> bool:
        """True if keys and position keys are no more than those of a block, so they fit on the chip together."""
        in_block = self.generation.row_block + 2 * self.generation.key_block
        return self.padded_keys + self.padded_distances <= in_block

    @property
    def row_blocks(self) -> int:
        """Number of blocks of positions: content rows are divided into them, and query rows by their positions."""
        return 1 if self.fits else self.padded_places // self.row_block

    @property
    def key_blocks(self) -> int:
        return 1 if self.fits else self.padded_keys // self.key_block

    @functools.cached_property
    def of_block(self) -> "TpuSizes":
        """Sizes of a block of positions with a block of keys, and of all query rows; of a short window, its own."""
        if self.fits:
            return self
        content, keys = min(self.row_block, self.padded_content), self.key_block
        return replace(
            self, num_content=content, num_places=self.row_block, num_keys=keys, row_block=LANES, key_block=LANES
        )

    @property
    def group(self) -> int:
        """Number of heads that share the lanes of a tile."""
        return max(1, LANES // self.head_width)

    @property
    def heads_in_group(self) -> int:
        """Number of heads computed in a group: fewer than `group` if there are fewer heads."""
        return min(self.group, self.num_heads)

    @property
    def width(self) -> int:
        """Number of lanes of a group of heads."""
        return self.group * self.head_width

    def lanes(self, head: int) -> slice:
        """Return the lanes of a head in its group."""
        return slice(head * self.head_width, (head + 1) * self.head_width)

    @property
    def num_groups(self) -> int:
        return -(-self.num_heads // self.group)

    @property
    def buffers(self) -> int:
        """Number of heads in flight."""
        return 2 if self.heads_in_group > 1 and self.generation.pairs_heads else 1

    @property
    def row_fields(self) -> list[int]:
        """Fields of rows that strips read, of `RowField`."""
        fields = [RowField.RANK] * self.has_ranks + [RowField.FIRST, RowField.LAST] * self.has_span
        has_queries = self.num_targets > 0 and self.num_directions > 0
        return fields + [RowField.SEGMENT] * self.has_segments + [RowField.POSITION] * has_queries

    @property
    def key_fields(self) -> list[int]:
        """Fields of keys that strips read, of `KeyField`."""
        fields = [KeyField.RANK] * self.has_ranks + [KeyField.POSITION] * self.has_span
        return fields + [KeyField.SEGMENT] * self.has_segments + [KeyField.NUMBER] * (self.dropout_rate > 0)

    @property
    def shares_words(self) -> bool:
        """True = heads 2i and 2i + 1 are in one group, so they share random words."""
        return self.group % 2 == 0 and self.num_heads % 2 == 0

    @property
    def padded_content(self) -> int:
        return round_up(self.num_content, self.row_block)

    @property
    def padded_places(self) -> int:
        return round_up(self.num_places, self.row_block)

    @property
    def padded_keys(self) -> int:
        return round_up(self.num_keys, self.key_block)

    @property
    def padded_distances(self) -> int:
        """Number of rows of the padded table of position keys."""
        return self.padded_places + self.padded_keys

    @property
    def window(self) -> int:
        """Maximum number of distances that a tile reads: query rows read all."""
        return self.padded_distances if self.num_targets else self.padded_keys + LANES

    @property
    def content_tiles(self) -> int:
        return self.padded_content // ROWS

    @property
    def query_tiles(self) -> int:
        return -(-self.num_targets // ROWS)

    @property
    def busy_tiles(self) -> int:
        """Number of tiles that are computed with each block of keys if each tile sees a key of it, and targets are in
        ascending order and evenly spread."""
        here = min(self.query_tiles, -(-self.query_tiles // self.row_blocks) + 1)
        return self.content_tiles + self.row_blocks * here

    @property
    def query_rows(self) -> int:
        """Number of rows computed in a tile of query rows: fewer than the tile if there are few targets."""
        return min(ROWS, round_up(self.num_targets, 16))

    @property
    def tiles(self) -> int:
        return self.content_tiles + self.query_tiles

    @property
    def padded_rows(self) -> int:
        return self.tiles * ROWS

    @property
    def softmax_rows(self) -> int:
        """Number of rows in a group's softmax statistics: maximum and sum of each head."""
        return round_up(2 * self.heads_in_group, SUBLANES)

    @property
    def scale(self) -> float:
        return self.head_width**-0.5

    @property
    def scale_2(self) -> float:
        """`scale` for scores in base 2."""
        return self.scale * math.log2(math.e)

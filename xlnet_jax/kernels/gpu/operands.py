"""Convert the arguments of a call to operands of the GPU kernels: products that XLA computes, integers, and tiles of
rows and keys.

Rows of both streams and keys are padded at their end to whole tiles. Inside the kernels, T is the rows of a tile and K
its keys.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from xlnet_jax.kernels.arguments import AttentionInputs, pad
from xlnet_jax.kernels.plain import bias_queries, direct_keys_BNRH, segment_scores_BNT

ROWS = KEYS = 64
"""Rows and keys of a tile: powers of two, as Triton requires. Four warps hold a tile's scores in 32 registers per
thread."""

NARROWEST = 16
"""Minimum head width that Triton multiplies; narrower heads are padded."""


@dataclass(frozen=True)
class GpuSizes:
    """Sizes of one kernel call on one device."""

    num_places: int
    """possible positions of rows, L of `AttentionInputs.num_places`; 0 without relative positions"""
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
        """Number of rows of padding in the last tile."""
        return self.row_tiles * ROWS - self.num_rows

    @property
    def padded_keys(self) -> int:
        return self.key_tiles * KEYS

    @property
    def more_keys(self) -> int:
        """Number of keys of padding in the last tile."""
        return self.padded_keys - self.num_keys

    @property
    def distance_tiles(self) -> int:
        """Number of tiles of the distances at which a row has no key."""
        return -(-self.num_places // KEYS)

    @property
    def more_distances(self) -> int:
        """Number of distances to add after those of the table: for the padded keys of every row, and to fill the tiles
        of distances without a key."""
        return self.more_keys + self.distance_tiles * KEYS - self.num_places

    @property
    def more_width(self) -> int:
        return max(0, NARROWEST - self.head_width)

    @property
    def keep(self) -> float:
        """Probability that dropout keeps an element."""
        return 1.0 - self.dropout_rate


def compiler_params(operands: "GpuOperands") -> Any:
    """Return the compiler's settings. A third stage, which prefetches one more tile, needs shared memory that not all
    cards have if tiles are larger."""
    query = operands.query_BNTH
    is_wide = query.shape[-1] > 64
    is_small = not is_wide and query.dtype == jnp.bfloat16
    return plgpu.CompilerParams(num_warps=8 if is_wide else 4, num_stages=3 if is_small else 2)


class GpuOperands(NamedTuple):
    """Floating-point inputs: arrays outside the kernels, references to one head of an example inside. None = no such
    term.

    Rows, keys and distances are padded to `GpuSizes`.
    """

    query_BNTH: Any  # with r_w, divided by sqrt(H)
    key_BNKH: Any
    value_BNKH: Any
    by_distance_BNTR: Any  # in the type of the queries; position scores, key j in column j + L - position
    other_BNT: Any  # float32; score of keys in another segment


class Vectors(NamedTuple):
    """Integer inputs: arrays outside the kernels, references to the vector of an example inside.

    None = no such term. Rows and keys are padded with zeros.
    """

    row_rank_BT: Any = None
    key_rank_BK: Any = None
    row_first_BT: Any = None
    row_last_BT: Any = None
    key_position_BK: Any = None
    row_segment_BT: Any = None
    key_segment_BK: Any = None
    row_position_BT: Any = None
    row_number_BT: Any = None  # `AttentionInputs.dropout_numbers`
    seed_BN: Any = None  # uint32


def sizes_of(inputs: AttentionInputs) -> GpuSizes:
    """Return the sizes of a call."""
    return GpuSizes(
        num_places=0 if inputs.position_key_2NRH is None else inputs.num_places,
        num_rows=inputs.query_BNTH.shape[2],
        num_keys=inputs.key_BNKH.shape[2],
        head_width=inputs.query_BNTH.shape[3],
        dropout_rate=0.0 if inputs.dropout is None else inputs.dropout.rate,
    )


def operands_of(sizes: GpuSizes, inputs: AttentionInputs) -> GpuOperands:
    """Return the floating-point inputs of a call. XLA differentiates this function."""
    with_r_w, with_r_r, with_r_s = (pad(query_BNTH, 2, sizes.more_rows) for query_BNTH in bias_queries(inputs))
    by_distance_BNTR = other_BNT = None
    if inputs.position_key_2NRH is not None:
        key_BNRH = pad(direct_keys_BNRH(inputs), 2, sizes.more_distances)
        with jax.named_scope("position_scores"):
            by_distance_BNTR = jnp.einsum("BNTH,BNRH->BNTR", with_r_r, key_BNRH)
    if inputs.segment_key_2NH is not None:
        other_BNT = segment_scores_BNT(with_r_s, inputs.segment_key_2NH)
    return GpuOperands(
        pad(with_r_w, 3, sizes.more_width),
        pad(pad(inputs.key_BNKH, 2, sizes.more_keys), 3, sizes.more_width),
        pad(pad(inputs.value_BNKH, 2, sizes.more_keys), 3, sizes.more_width),
        by_distance_BNTR,
        other_BNT,
    )


def vectors_of(sizes: GpuSizes, inputs: AttentionInputs) -> Vectors:
    """Return the integer inputs of a call."""
    vectors = {name: vector for name, vector in inputs.relations._asdict().items() if name in Vectors._fields}
    if inputs.position_key_2NRH is not None:
        # Positions are offsets for reading: one outside the window would read another array.
        vectors["row_position_BT"] = jnp.clip(_positions_BT(inputs), 0, sizes.num_places - 1)
    if inputs.dropout is not None:
        vectors["row_number_BT"], _ = inputs.dropout_numbers()
    more = {"T": sizes.more_rows, "K": sizes.more_keys}
    padded = {name: pad(vector, 1, more[name[-1]]) for name, vector in vectors.items() if vector is not None}
    return Vectors(**padded, seed_BN=None if inputs.dropout is None else inputs.dropout.seed_BN)


def _positions_BT(inputs: AttentionInputs) -> jnp.ndarray:
    (batch, _, rows, _), query_BP = inputs.query_BNTH.shape, inputs.relations.query_position_BP
    content_L = jnp.arange(rows - inputs.relations.num_targets)
    content_BL = jnp.broadcast_to(content_L[None], (batch, len(content_L)))
    return content_BL if query_BP is None else jnp.concatenate([content_BL, query_BP], axis=1)


def blocks(arrays: Any) -> Any:
    """Return the blocks of named arrays, from the dimension letters of the names; None for None."""
    return type(arrays)(
        *(
            None if array is None else block(array, lead=2 if "_BN" in name else 1)
            for name, array in arrays._asdict().items()
        )
    )


def block(array: Any, lead: int) -> pl.BlockSpec:
    """Return the block of an array: a program (tile, head, example) may read all of its example and, of an array with
    heads, of its head. lead: number of these axes"""
    rest = array.shape[lead:]
    return pl.BlockSpec((None,) * lead + rest, lambda tile, head, example: (example, head)[:lead] + (0,) * len(rest))

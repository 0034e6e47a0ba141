"""Operands of the kernels for GPUs from the arguments of a call: products that XLA computes, integers, and tiles of
rows and keys. Rows of both streams and keys are padded at their end to whole tiles. Inside the kernels T counts the
rows of a tile and K its keys.
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


class Operands(NamedTuple):
    """Inputs that are numbers: arrays outside the kernels, references to an example's head inside. None = no such term.

    Rows, keys and distances are padded to `Sizes`.
    """

    query_BNTH: Any  # with r_w, divided by sqrt(H)
    key_BNKH: Any
    value_BNKH: Any
    by_distance_BNTR: Any  # in the type of the queries; position scores, those of key j in column j + L - position
    other_BNT: Any  # float32; score of keys of another segment


class Vectors(NamedTuple):
    """Inputs that are integers: arrays outside the kernels, references to an example's vector inside.

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
    key_number_BK: Any = None
    seed_BN: Any = None  # uint32


def sizes_of(inputs: AttentionInputs) -> Sizes:
    """Return the sizes of a call."""
    return Sizes(
        num_places=0 if inputs.position_key_2NRH is None else inputs.num_places,
        num_rows=inputs.query_BNTH.shape[2],
        num_keys=inputs.key_BNKH.shape[2],
        head_width=inputs.query_BNTH.shape[3],
        dropout_rate=0.0 if inputs.dropout is None else inputs.dropout.rate,
    )


def operands_of(sizes: Sizes, inputs: AttentionInputs) -> Operands:
    """Return the numbers of a call; XLA differentiates them by the arguments."""
    with_r_w, with_r_r, with_r_s = (pad(query_BNTH, 2, sizes.more_rows) for query_BNTH in bias_queries(inputs))
    by_distance_BNTR = other_BNT = None
    if inputs.position_key_2NRH is not None:
        key_BNRH = pad(direct_keys_BNRH(inputs), 2, sizes.more_distances)
        with jax.named_scope("position_scores"):
            by_distance_BNTR = jnp.einsum("BNTH,BNRH->BNTR", with_r_r, key_BNRH)
    if inputs.segment_key_2NH is not None:
        other_BNT = segment_scores_BNT(with_r_s, inputs.segment_key_2NH)
    return Operands(
        pad(with_r_w, 3, sizes.more_width),
        pad(pad(inputs.key_BNKH, 2, sizes.more_keys), 3, sizes.more_width),
        pad(pad(inputs.value_BNKH, 2, sizes.more_keys), 3, sizes.more_width),
        by_distance_BNTR,
        other_BNT,
    )


def vectors_of(sizes: Sizes, inputs: AttentionInputs) -> Vectors:
    """Return the integers of a call."""
    vectors = {name: vector for name, vector in inputs.relations._asdict().items() if name in Vectors._fields}
    if inputs.position_key_2NRH is not None:
        # A row reads where its position says: one outside of the window would read another array.
        vectors["row_position_BT"] = jnp.clip(_positions_BT(inputs), 0, sizes.num_places - 1)
    if inputs.dropout is not None:
        vectors["row_number_BT"], vectors["key_number_BK"] = inputs.dropout_numbers()
    more = {"T": sizes.more_rows, "K": sizes.more_keys}
    padded = {name: pad(vector, 1, more[name[-1]]) for name, vector in vectors.items() if vector is not None}
    return Vectors(**padded, seed_BN=None if inputs.dropout is None else inputs.dropout.seed_BN)


def _positions_BT(inputs: AttentionInputs) -> jnp.ndarray:
    (batch, _, rows, _), query_BP = inputs.query_BNTH.shape, inputs.relations.query_position_BP
    content_L = jnp.arange(rows - inputs.relations.num_targets)
    content_BL = jnp.broadcast_to(content_L[None], (batch, len(content_L)))
    return content_BL if query_BP is None else jnp.concatenate([content_BL, query_BP], axis=1)


def blocks(arrays: Any) -> Any:
    """Return the blocks of arrays, all of which a program of (tile, head, example) may read: those of its example and,
    where there are heads, of its head."""

    def block_of(array: Any, name: str) -> pl.BlockSpec | None:
        if array is None:
            return None
        letters = name.rpartition("_")[2]
        lead, rest = (2, array.shape[2:]) if letters.startswith("BN") else (1, array.shape[1:])
        return pl.BlockSpec(
            (None,) * lead + rest, lambda tile, head, example: (example, head)[:lead] + (0,) * len(rest)
        )

    return type(arrays)(*(block_of(array, name) for name, array in arrays._asdict().items()))

"""Operands of the kernels for GPUs from the arguments of a call: products that XLA computes, and integers."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from xlnet_jax.kernels.arguments import AttentionInputs, Positions
from xlnet_jax.kernels.plain import directed_key_BNRH, scaled_queries, segment_scores_BNT
from xlnet_jax.kernels.triton.tiles import Sizes


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
    row_number_BT: Any = None  # `AttentionDropout.numbered`
    key_number_BK: Any = None
    seed_BN: Any = None  # uint32


def sizes_of(inputs: AttentionInputs) -> Sizes:
    """Return the sizes of a call."""
    num_keys, positions = inputs.key_BNKH.shape[2], inputs.positions
    return Sizes(
        num_places=0 if positions is None else positions.key_2NRH.shape[2] - num_keys,
        num_rows=inputs.query_BNTH.shape[2],
        num_keys=num_keys,
        head_width=inputs.query_BNTH.shape[3],
        dropout_rate=0.0 if inputs.dropout is None else inputs.dropout.rate,
    )


def operands_of(sizes: Sizes, inputs: AttentionInputs) -> Operands:
    """Return the numbers of a call; XLA differentiates them by the arguments."""
    with_r_w, with_r_r, with_r_s = (
        jnp.pad(query_BNTH, ((0, 0), (0, 0), (0, sizes.more_rows), (0, 0))) for query_BNTH in scaled_queries(inputs)
    )
    widened = ((0, 0), (0, 0), (0, 0), (0, sizes.more_width))
    padded_keys = ((0, 0), (0, 0), (0, sizes.more_keys), (0, sizes.more_width))
    by_distance_BNTR = other_BNT = None
    if inputs.positions is not None:
        key_BNRH = directed_key_BNRH(inputs.positions, with_r_r)
        key_BNRH = jnp.pad(key_BNRH, ((0, 0), (0, 0), (0, sizes.more_distances), (0, 0)))
        with jax.named_scope("position_scores"):
            by_distance_BNTR = jnp.einsum("BNTH,BNRH->BNTR", with_r_r, key_BNRH)
    if inputs.segments is not None:
        other_BNT = segment_scores_BNT(with_r_s, inputs.segments)
    return Operands(
        jnp.pad(with_r_w, widened),
        jnp.pad(inputs.key_BNKH, padded_keys),
        jnp.pad(inputs.value_BNKH, padded_keys),
        by_distance_BNTR,
        other_BNT,
    )


def vectors_of(sizes: Sizes, inputs: AttentionInputs) -> Vectors:
    """Return the integers of a call."""
    ranks, span, _ = inputs.visibility
    vectors: dict[str, jnp.ndarray] = {}
    if ranks is not None:
        vectors |= {"row_rank_BT": ranks.row_BT, "key_rank_BK": ranks.key_BK}
    if span is not None:
        vectors |= {"row_first_BT": span.first_BT, "row_last_BT": span.last_BT, "key_position_BK": span.key_BK}
    if (segments := inputs.segments) is not None:
        vectors |= {"row_segment_BT": segments.row_BT, "key_segment_BK": segments.key_BK}
    if inputs.positions is not None:
        # A row reads where its position says: one outside of the window would read another array.
        position_BT = _positions_BT(sizes, inputs.positions)
        vectors["row_position_BT"] = jnp.clip(position_BT, 0, sizes.num_places - 1)
    if inputs.dropout is not None:
        row_T, key_K = inputs.dropout.numbered(sizes.num_rows, sizes.num_keys)
        vectors |= {"row_number_BT": _of_all(inputs, row_T), "key_number_BK": _of_all(inputs, key_K)}
    more = {"T": sizes.more_rows, "K": sizes.more_keys}
    padded = {name: jnp.pad(vector, ((0, 0), (0, more[name[-1]]))) for name, vector in vectors.items()}
    return Vectors(**padded, seed_BN=None if inputs.dropout is None else inputs.dropout.seed_BN)


def _positions_BT(sizes: Sizes, positions: Positions) -> jnp.ndarray:
    batch, targets = positions.query_BP.shape
    content_L = jnp.arange(sizes.num_rows - targets)
    return jnp.concatenate([jnp.broadcast_to(content_L[None], (batch, len(content_L))), positions.query_BP], axis=1)


def _of_all(inputs: AttentionInputs, x_T: jnp.ndarray) -> jnp.ndarray:
    return jnp.broadcast_to(x_T[None], (len(inputs.query_BNTH), len(x_T)))


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

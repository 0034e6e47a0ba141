"""Operands of the fused kernel from the arguments of an attention call: joined heads, padded lengths, integers."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from xlnet_jax.kernels.arguments import AttentionInputs, Positions
from xlnet_jax.kernels.fused.tiles import (
    KEY_NUMBER,
    KEY_POSITION,
    KEY_RANK,
    KEY_SEGMENT,
    OTHER_SEGMENT,
    R_R,
    R_S,
    R_W,
    ROW_FIRST,
    ROW_LAST,
    ROW_NUMBER,
    ROW_POSITION,
    ROW_RANK,
    ROW_SEGMENT,
    SUBLANES,
    Generation,
    Sizes,
)

NEVER = jnp.iinfo(jnp.int32).max
"""Rank, position and number of padded keys: no row sees them."""


class Operands(NamedTuple):
    """Inputs of the kernel: arrays outside of it, references to their blocks inside. None = no such term.

    In their H the heads stand side by side.
    """

    query_BTH: Any
    key_BKH: Any
    value_BKH: Any
    position_2RH: Any  # forwards, then backwards where examples may read backwards
    vectors_8H: Any  # float32, rows R_W to OTHER_SEGMENT
    rows_B8T: Any  # int32, rows ROW_RANK to ROW_NUMBER
    keys_B8K: Any  # int32, rows KEY_RANK to KEY_NUMBER
    is_reversed_B: Any  # int32
    seed_BN: Any  # int32
    busy_BQ: Any = None  # int32, which tiles of query rows to compute; None = all


def sizes_of(inputs: AttentionInputs, generation: Generation) -> Sizes:
    """Return the sizes of a call. Without relative positions nothing tells the streams apart: all rows are content."""
    _, num_heads, num_rows, head_width = inputs.query_BNTH.shape
    num_keys, positions = inputs.key_BNKH.shape[2], inputs.positions
    num_targets = 0 if positions is None else positions.query_BP.shape[1]
    sizes = Sizes(
        num_heads=num_heads,
        head_width=head_width,
        num_content=num_rows - num_targets,
        num_targets=num_targets,
        num_places=num_rows if positions is None else positions.key_2NRH.shape[2] - num_keys,
        num_keys=num_keys,
        num_directions=0 if positions is None else 1 if positions.is_reversed_B is None else 2,
        has_ranks=inputs.visibility.ranks is not None,
        has_span=inputs.visibility.span is not None,
        has_segments=inputs.segments is not None,
        dropout_rate=0.0 if inputs.dropout is None else inputs.dropout.rate,
        generation=generation,
    )
    return sizes if sizes.fits else sizes.divided()


def operands_of(inputs: AttentionInputs, sizes: Sizes) -> Operands:
    """Return the operands of a call."""
    seed_BN = is_reversed_B = position_2RH = None
    if inputs.dropout is not None:
        seed_BN = jax.lax.bitcast_convert_type(inputs.dropout.seed_BN, jnp.int32)
        seed_BN = _padded(seed_BN, 1, 0, sizes.num_groups * sizes.group - sizes.num_heads)
    if (positions := inputs.positions) is not None:
        position_2RH = _position_2RH(positions, sizes)
        if positions.is_reversed_B is not None:
            is_reversed_B = positions.is_reversed_B.astype(jnp.int32)
    more_keys = sizes.padded_keys - sizes.num_keys
    return Operands(
        query_BTH=padded_rows(heads_joined(inputs.query_BNTH, sizes), sizes),
        key_BKH=_padded(heads_joined(inputs.key_BNKH, sizes), 1, 0, more_keys),
        value_BKH=_padded(heads_joined(inputs.value_BNKH, sizes), 1, 0, more_keys),
        position_2RH=position_2RH,
        vectors_8H=_vectors_8H(inputs, sizes),
        rows_B8T=_rows_B8T(inputs, sizes),
        keys_B8K=_keys_B8K(inputs, more_keys),
        is_reversed_B=is_reversed_B,
        seed_BN=seed_BN,
    )


def heads_joined(x_BNTH: jnp.ndarray, sizes: Sizes) -> jnp.ndarray:
    """Return heads side by side, [..., T, N x H]; zeros fill the last group."""
    x_BTNH = jnp.swapaxes(x_BNTH, -3, -2)
    joined = x_BTNH.reshape(*x_BTNH.shape[:-2], sizes.num_heads * sizes.head_width)
    return _padded(joined, joined.ndim - 1, 0, sizes.num_groups * sizes.width - joined.shape[-1])


def heads_apart_BNTH(joined_BTH: jnp.ndarray, sizes: Sizes) -> jnp.ndarray:
    """Return heads on an axis of their own: the inverse of `heads_joined`."""
    apart = joined_BTH[..., : sizes.num_heads * sizes.head_width]
    return jnp.swapaxes(apart.reshape(*apart.shape[:-1], sizes.num_heads, sizes.head_width), 1, 2)


def padded_rows(x_BT: jnp.ndarray, sizes: Sizes) -> jnp.ndarray:
    """Return rows where content rows fill their tiles. The last tile of query rows may reach past the end."""
    missing = sizes.padded_content - sizes.num_content
    if not missing:
        return x_BT
    content_BL, query_BP = x_BT[:, : sizes.num_content], x_BT[:, sizes.num_content :]
    return jnp.concatenate([_padded(content_BL, 1, 0, missing), query_BP], axis=1)


def real_rows(x_BT: jnp.ndarray, sizes: Sizes) -> jnp.ndarray:
    """Return rows without those that `padded_rows` has added."""
    if sizes.padded_content == sizes.num_content:
        return x_BT
    return jnp.concatenate([x_BT[:, : sizes.num_content], x_BT[:, sizes.padded_content :]], axis=1)


def _position_2RH(positions: Positions, sizes: Sizes) -> jnp.ndarray:
    sine_NRH, cosine_NRH = positions.key_2NRH
    directions = [cosine_NRH + sine_NRH] + ([cosine_NRH - sine_NRH] if sizes.num_directions == 2 else [])
    joined_2RH = heads_joined(jnp.stack(directions), sizes)
    # Places are padded at their end, which moves all distances by as much.
    before, after = sizes.padded_places - sizes.num_places, sizes.padded_keys - sizes.num_keys
    return _padded(joined_2RH, 1, before, after)


def _vectors_8H(inputs: AttentionInputs, sizes: Sizes) -> jnp.ndarray:
    rows = {}
    if inputs.biases_3NH is not None:
        rows = dict(zip((R_W, R_R, R_S), inputs.biases_3NH, strict=True))
    if inputs.segments is not None:
        # Softmax ignores what all keys of a row share: only the difference of the two segment scores counts.
        rows[OTHER_SEGMENT] = inputs.segments.key_2NH[1] - inputs.segments.key_2NH[0]
    zeros_NH = jnp.zeros((sizes.num_heads, sizes.head_width))
    vectors_8NH = jnp.stack([rows.get(row, zeros_NH).astype(jnp.float32) for row in range(SUBLANES)])
    return heads_joined(vectors_8NH[:, :, None], sizes)[:, 0]


def _rows_B8T(inputs: AttentionInputs, sizes: Sizes) -> jnp.ndarray:
    (ranks, span, _), rows = inputs.visibility, {}
    if ranks is not None:
        rows[ROW_RANK] = ranks.row_BT
    if span is not None:
        rows[ROW_FIRST], rows[ROW_LAST] = span.first_BT, span.last_BT
    if inputs.segments is not None:
        rows[ROW_SEGMENT] = inputs.segments.row_BT
    if inputs.positions is not None:
        rows[ROW_POSITION] = jnp.pad(inputs.positions.query_BP, ((0, 0), (sizes.num_content, 0)))
    if inputs.dropout is not None:
        rows[ROW_NUMBER] = _of_all(inputs, inputs.dropout.numbered(*_lengths(inputs))[0])
    integers_B8T = _stacked_B8T(rows, inputs.query_BNTH.shape[0], inputs.query_BNTH.shape[2])
    integers_B8T = jnp.swapaxes(padded_rows(jnp.swapaxes(integers_B8T, 1, 2), sizes), 1, 2)
    return _padded(integers_B8T, 2, 0, sizes.padded_rows - integers_B8T.shape[2])


def _keys_B8K(inputs: AttentionInputs, more_keys: int) -> jnp.ndarray:
    (ranks, span, _), keys = inputs.visibility, {}
    if ranks is not None:
        keys[KEY_RANK] = ranks.key_BK
    if span is not None:
        keys[KEY_POSITION] = span.key_BK
    if inputs.segments is not None:
        keys[KEY_SEGMENT] = inputs.segments.key_BK
    if inputs.dropout is not None:
        keys[KEY_NUMBER] = _of_all(inputs, inputs.dropout.numbered(*_lengths(inputs))[1])
    integers_B8K = _stacked_B8T(keys, len(inputs.key_BNKH), inputs.key_BNKH.shape[2])
    return jnp.pad(integers_B8K, ((0, 0), (0, 0), (0, more_keys)), constant_values=NEVER)


def _lengths(inputs: AttentionInputs) -> tuple[int, int]:
    return inputs.query_BNTH.shape[2], inputs.key_BNKH.shape[2]


def _of_all(inputs: AttentionInputs, x_T: jnp.ndarray) -> jnp.ndarray:
    return jnp.broadcast_to(x_T[None], (len(inputs.query_BNTH), len(x_T)))


def _stacked_B8T(rows: dict[int, jnp.ndarray], batch: int, length: int) -> jnp.ndarray:
    zeros_BT = jnp.zeros((batch, length), jnp.int32)
    return jnp.stack([rows.get(row, zeros_BT) for row in range(SUBLANES)], axis=1)


def _padded(x: jnp.ndarray, axis: int, before: int, after: int) -> jnp.ndarray:
    if not before and not after:
        return x
    return jnp.pad(x, [(before, after) if i == axis else (0, 0) for i in range(x.ndim)])

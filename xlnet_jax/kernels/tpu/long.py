"""Compute attention for windows that do not fit the chip, with the kernels of short windows on blocks of rows and keys.

A block of rows is computed with one block of keys after the other. The outputs o of two blocks of keys, with the maxima
m and sums s of their softmax, are joined as (Milakov and Gimelshein 2018, section 3; Rabe and Staats 2021)

    m = max(m1, m2)     s = s1 exp(m1 - m) + s2 exp(m2 - m)     o = (s1 exp(m1 - m) o1 + s2 exp(m2 - m) o2) / s

The backward kernel uses the joined m, s and o, so the gradients of blocks are simply summed.

The rows of a block are at consecutive positions, so with a block of keys they need only a part of the position keys.
Query rows are at any positions: each block of positions computes the tiles of query rows that have a row there, which
are few if targets are in ascending order. A tile skips a block of keys if no row of the tile sees one of its keys.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from xlnet_jax.kernels.arguments import MASKED, pad
from xlnet_jax.kernels.tpu import kernels
from xlnet_jax.kernels.tpu.kernels import Gradients, Saved
from xlnet_jax.kernels.tpu.operands import NEVER, Operands
from xlnet_jax.kernels.tpu.tiles import LANES, ROWS, KeyField, RowField, Sizes

LEAST = jnp.iinfo(jnp.int32).min


class Rows(NamedTuple):
    """A block of content rows, or the query rows at a block of positions."""

    sizes: Sizes  # of the kernel calls for these rows
    number: jnp.ndarray  # of the block of positions
    query_BTH: jnp.ndarray
    integers_B8T: jnp.ndarray  # `Operands.rows_B8T`, padded to whole tiles
    is_here_BT: jnp.ndarray  # bool; False = padding, or a query row in another block

    def in_tiles_BQT(self, x_BT: jnp.ndarray, other: int) -> jnp.ndarray:
        """Divide numbers of rows into tiles; `other` takes the place of rows that are not here."""
        x_BT = jnp.where(self.is_here_BT, x_BT, other)
        x_BT = pad(x_BT, 1, -x_BT.shape[1] % ROWS, value=other)
        return x_BT.reshape(len(x_BT), -1, ROWS)

    def in_busy_tiles_BT(self, busy_BQ: jnp.ndarray) -> jnp.ndarray:
        """Return True for the rows here whose tile is busy."""
        return self.is_here_BT & jnp.repeat(busy_BQ, ROWS, axis=1)[:, : self.is_here_BT.shape[1]]


class Joined(NamedTuple):
    """Output and softmax statistics of some rows over the blocks of keys so far, in float32."""

    read_BTH: jnp.ndarray
    maximum_BNT: jnp.ndarray
    sum_BNT: jnp.ndarray


def forward(sizes: Sizes, operands: Operands, interpret: Any) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the output and the softmax statistics, like the forward kernel of short windows."""
    parts = []
    if sizes.num_content:

        def attend_content(_: None, number: jnp.ndarray) -> tuple[None, Joined]:
            rows = _content_rows(sizes, operands, number)
            return None, _attend(sizes, rows, operands, _empty(sizes, rows), interpret)

        _, blocks = jax.lax.scan(attend_content, None, jnp.arange(sizes.padded_content // sizes.row_block))
        parts.append(Joined(_concatenate(blocks.read_BTH, 1), *(_concatenate(x, 2) for x in blocks[1:])))
    if sizes.num_targets:

        def attend_query(joined: Joined, number: jnp.ndarray) -> tuple[Joined, None]:
            rows = _query_rows(sizes, operands, number)
            return _attend(sizes, rows, operands, joined, interpret), None

        start = _empty(sizes, _query_rows(sizes, operands, jnp.int32(0)))
        joined, _ = jax.lax.scan(attend_query, start, jnp.arange(sizes.padded_places // sizes.row_block))
        parts.append(joined)
    read_BTH = jnp.concatenate([part.read_BTH for part in parts], axis=1).astype(operands.query_BTH.dtype)
    softmax_BST = jnp.concatenate([_softmax_BST(sizes, part) for part in parts], axis=2)
    return read_BTH, pad(softmax_BST, 2, sizes.padded_rows - softmax_BST.shape[2])


def backward(sizes: Sizes, operands: Operands, saved: Saved, interpret: Any) -> Gradients:
    """Return the gradients of queries, keys, values, position keys and vectors, like the backward kernel of short
    windows. Sums over blocks are in float32."""

    def zeros(x: jnp.ndarray | None) -> jnp.ndarray | None:
        return None if x is None else jnp.zeros(x.shape, jnp.float32)

    # Keys, values, position keys and vectors; rows are summed separately.
    sums = Gradients(None, *(zeros(x) for x in (operands.key_BKH, operands.value_BKH, *operands[3:5])))
    queries = []
    if sizes.num_content:

        def content(sums: Gradients, number: jnp.ndarray) -> tuple[Gradients, jnp.ndarray]:
            rows = _content_rows(sizes, operands, number)
            start, length = number * sizes.row_block, sizes.row_block
            here = Saved(
                _slice(saved.read_BTH, 1, start, length),
                _slice(saved.softmax_BST, 2, start, length),
                _slice(saved.grad_BTH, 1, start, length),
            )
            sums = sums._replace(query_BTH=jnp.zeros(rows.query_BTH.shape, jnp.float32))
            sums = _differentiate(sizes, rows, operands, here, sums, interpret)
            return sums._replace(query_BTH=None), sums.query_BTH.astype(rows.query_BTH.dtype)

        sums, blocks = jax.lax.scan(content, sums, jnp.arange(sizes.padded_content // sizes.row_block))
        queries.append(_concatenate(blocks, 1))
    if sizes.num_targets:

        def query(sums: Gradients, number: jnp.ndarray) -> tuple[Gradients, None]:
            rows = _query_rows(sizes, operands, number)
            first = sizes.padded_content
            here = Saved(saved.read_BTH[:, first:], saved.softmax_BST[:, :, first:], saved.grad_BTH[:, first:])
            return _differentiate(sizes, rows, operands, here, sums, interpret), None

        sums = sums._replace(query_BTH=jnp.zeros(operands.query_BTH[:, sizes.padded_content :].shape, jnp.float32))
        sums, _ = jax.lax.scan(query, sums, jnp.arange(sizes.padded_places // sizes.row_block))
        queries.append(sums.query_BTH.astype(operands.query_BTH.dtype))
    return Gradients(
        jnp.concatenate(queries, axis=1),
        sums.key_BKH.astype(operands.key_BKH.dtype),
        sums.value_BKH.astype(operands.value_BKH.dtype),
        sums.position_2RH,
        sums.vectors_8H,
    )


# ---- rows ------------------------------------------------------------------------------------------------------------


def _part(sizes: Sizes, num_content: int, num_targets: int) -> Sizes:
    """Return the sizes of a kernel call for these rows at a block of positions and a block of keys."""
    return replace(
        sizes,
        num_content=num_content,
        num_targets=num_targets,
        num_places=sizes.row_block,
        num_keys=sizes.key_block,
        row_block=LANES,
        key_block=LANES,
        position_blocks=sizes.padded_places // sizes.row_block,
    )


def _content_rows(sizes: Sizes, operands: Operands, number: jnp.ndarray) -> Rows:
    start, length = number * sizes.row_block, sizes.row_block
    is_real_T = jnp.arange(length) + start < sizes.num_content
    return Rows(
        _part(sizes, length, 0),
        number,
        _slice(operands.query_BTH, 1, start, length),
        _slice(operands.rows_B8T, 2, start, length),
        jnp.broadcast_to(is_real_T[None], (len(operands.query_BTH), length)),
    )


def _query_rows(sizes: Sizes, operands: Operands, number: jnp.ndarray) -> Rows:
    integers_B8T = operands.rows_B8T[:, :, sizes.padded_content :]
    place_BT = integers_B8T[:, RowField.POSITION] - number * sizes.row_block
    is_target_T = jnp.arange(place_BT.shape[1]) < sizes.num_targets
    is_here_BT = (place_BT >= 0) & (place_BT < sizes.row_block) & is_target_T[None]
    # Rows in other blocks get any place in this block: their results are not used.
    integers_B8T = integers_B8T.at[:, RowField.POSITION].set(jnp.clip(place_BT, 0, sizes.row_block - 1))
    return Rows(
        _part(sizes, 0, sizes.num_targets),
        number,
        operands.query_BTH[:, sizes.padded_content :],
        integers_B8T,
        is_here_BT[:, : sizes.num_targets],
    )


# ---- keys ------------------------------------------------------------------------------------------------------------


def _operands(sizes: Sizes, rows: Rows, operands: Operands, key_block: jnp.ndarray, busy_BQ: jnp.ndarray) -> Operands:
    """Return the operands of a call for the rows of busy tiles and a block of keys."""
    start = key_block * sizes.key_block
    position_2RH = operands.position_2RH
    if position_2RH is not None:
        length = rows.sizes.padded_distances
        position_2RH = _slice(position_2RH, 1, _first_distance(sizes, rows, key_block), length)
    return operands._replace(
        query_BTH=rows.query_BTH,
        key_BKH=_slice(operands.key_BKH, 1, start, sizes.key_block),
        value_BKH=_slice(operands.value_BKH, 1, start, sizes.key_block),
        position_2RH=position_2RH,
        rows_B8T=rows.integers_B8T,
        keys_B8K=_slice(operands.keys_B8K, 2, start, sizes.key_block),
        busy_BQ=busy_BQ.astype(jnp.int32),
    )


def _first_distance(sizes: Sizes, rows: Rows, key_block: jnp.ndarray) -> jnp.ndarray:
    return sizes.padded_places - (rows.number + 1) * sizes.row_block + key_block * sizes.key_block


def _is_seen_BQJ(sizes: Sizes, rows: Rows, operands: Operands) -> jnp.ndarray:
    """Return bool [B, tiles, blocks of keys]: False = no row of the tile sees a key of the block, True = one may."""
    batch = len(operands.keys_B8K)
    key_B81JK = operands.keys_B8K.reshape(batch, -1, 1, sizes.padded_keys // sizes.key_block, sizes.key_block)
    row_B8T = rows.integers_B8T[:, :, : rows.is_here_BT.shape[1]]
    is_key_B1JK = key_B81JK[:, KeyField.NUMBER] != NEVER

    def most_BQ1(field: int) -> jnp.ndarray:
        return rows.in_tiles_BQT(row_B8T[:, field], LEAST).max(2, keepdims=True)

    is_seen_BQJ = rows.in_tiles_BQT(rows.is_here_BT, False).any(2, keepdims=True) & is_key_B1JK.any(3)
    if sizes.has_ranks:
        is_seen_BQJ &= most_BQ1(RowField.RANK) >= key_B81JK[:, KeyField.RANK].min(3)
    if sizes.has_span:
        position_B1JK = key_B81JK[:, KeyField.POSITION]
        is_seen_BQJ &= most_BQ1(RowField.LAST) >= position_B1JK.min(3)
        first_BQ1 = rows.in_tiles_BQT(row_B8T[:, RowField.FIRST], NEVER).min(2, keepdims=True)
        is_seen_BQJ &= first_BQ1 <= jnp.where(is_key_B1JK, position_B1JK, LEAST).max(3)
    return is_seen_BQJ


def _sees_nothing_BQ1(rows: Rows, maximum_BNT: jnp.ndarray) -> jnp.ndarray:
    """Return True for the tiles with a row that has seen no key. Its softmax is uniform over all keys, so no block may
    be skipped."""
    return rows.in_tiles_BQT((maximum_BNT <= MASKED / 2).any(1), False).any(2, keepdims=True)


# ---- forward ---------------------------------------------------------------------------------------------------------


def _empty(sizes: Sizes, rows: Rows) -> Joined:
    batch, length, _ = rows.query_BTH.shape
    statistic_BNT = jnp.zeros((batch, sizes.num_groups * sizes.heads_in_group, length))
    return Joined(jnp.zeros(rows.query_BTH.shape, jnp.float32), statistic_BNT - jnp.inf, statistic_BNT)


def _attend(sizes: Sizes, rows: Rows, operands: Operands, start: Joined, interpret: Any) -> Joined:
    """Return the output of the rows over all blocks of keys. Rows that are not here keep the values of `start`."""
    is_seen_BQJ = _is_seen_BQJ(sizes, rows, operands)

    def step(joined: Joined, block: jnp.ndarray, wanted_BQJ: jnp.ndarray) -> Joined:
        busy_BQ = wanted_BQJ[:, :, block]

        def attend() -> Joined:
            here = _operands(sizes, rows, operands, block, busy_BQ)
            read_BTH, softmax_BST = kernels.forward(rows.sizes, here, interpret)
            statistics_BNT = _statistics_BNT(sizes, softmax_BST, read_BTH.shape[1])
            return _join(sizes, rows.in_busy_tiles_BT(busy_BQ), joined, read_BTH, *statistics_BNT)

        return jax.lax.cond(busy_BQ.any(), attend, lambda: joined)

    def sweep(state: tuple[jnp.ndarray, jnp.ndarray, Joined]) -> tuple[jnp.ndarray, jnp.ndarray, Joined]:
        is_first, _, joined = state
        wanted_BQJ = jnp.where(is_first, is_seen_BQJ, ~is_seen_BQJ & _sees_nothing_BQ1(rows, joined.maximum_BNT))
        blocks = is_seen_BQJ.shape[2]
        joined = jax.lax.fori_loop(0, blocks, lambda block, joined: step(joined, block, wanted_BQJ), joined)
        return jnp.zeros_like(is_first), is_first & _sees_nothing_BQ1(rows, joined.maximum_BNT).any(), joined

    # If rows have seen no key, a second sweep covers what the first one skipped.
    return jax.lax.while_loop(lambda state: state[1], sweep, (jnp.array(True), jnp.array(True), start))[2]


def _join(
    sizes: Sizes,
    is_busy_BT: jnp.ndarray,
    joined: Joined,
    read_BTH: jnp.ndarray,
    maximum_BNT: jnp.ndarray,
    sum_BNT: jnp.ndarray,
) -> Joined:
    """Join the results of another block of keys to those of the busy rows."""
    maximum = jnp.maximum(joined.maximum_BNT, maximum_BNT)
    before_BNT = joined.sum_BNT * jnp.exp2(joined.maximum_BNT - maximum)
    here_BNT = sum_BNT * jnp.exp2(maximum_BNT - maximum)
    total_BNT = before_BNT + here_BNT
    read = joined.read_BTH * _by_lane_BTH(sizes, before_BNT / total_BNT)
    read += read_BTH.astype(jnp.float32) * _by_lane_BTH(sizes, here_BNT / total_BNT)
    is_busy_B1T = is_busy_BT[:, None]
    return Joined(
        jnp.where(is_busy_BT[:, :, None], read, joined.read_BTH),
        jnp.where(is_busy_B1T, maximum, joined.maximum_BNT),
        jnp.where(is_busy_B1T, total_BNT, joined.sum_BNT),
    )


def _statistics_BNT(sizes: Sizes, softmax_BST: jnp.ndarray, length: int) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the maxima and sums of the computed heads."""
    batch, heads = len(softmax_BST), sizes.heads_in_group
    by_group = softmax_BST.reshape(batch, sizes.num_groups, sizes.softmax_rows, -1)[:, :, : 2 * heads, :length]
    both = by_group.reshape(batch, sizes.num_groups * heads, 2, length)
    return both[:, :, 0], both[:, :, 1]


def _softmax_BST(sizes: Sizes, joined: Joined) -> jnp.ndarray:
    """Return maxima and sums in the layout of the kernels: the inverse of `_statistics_BNT`."""
    both = jnp.stack([joined.maximum_BNT, joined.sum_BNT], axis=2)
    by_group = both.reshape(len(both), sizes.num_groups, 2 * sizes.heads_in_group, -1)
    padded = pad(by_group, 2, sizes.softmax_rows - by_group.shape[2])
    return padded.reshape(len(both), -1, by_group.shape[-1])


def _by_lane_BTH(sizes: Sizes, x_BNT: jnp.ndarray) -> jnp.ndarray:
    """Repeat each head's number at all of its lanes."""
    x_BTGN = jnp.moveaxis(x_BNT, 1, 2).reshape(len(x_BNT), -1, sizes.num_groups, sizes.heads_in_group)
    x_BTGN = pad(x_BTGN, 3, sizes.group - sizes.heads_in_group)
    return jnp.repeat(x_BTGN.reshape(*x_BTGN.shape[:2], -1), sizes.head_width, axis=2)


# ---- backward --------------------------------------------------------------------------------------------------------


def _differentiate(
    sizes: Sizes, rows: Rows, operands: Operands, saved: Saved, sums: Gradients, interpret: Any
) -> Gradients:
    """Return the sums plus the gradients of these rows with all blocks of keys."""
    length = rows.query_BTH.shape[1]
    maximum_BNT, _ = _statistics_BNT(sizes, saved.softmax_BST, length)
    wanted_BQJ = _is_seen_BQJ(sizes, rows, operands) | _sees_nothing_BQ1(rows, maximum_BNT)
    # Rows in other blocks have no gradient, and weights of 0 for any score.
    is_here_BT = pad(rows.is_here_BT, 1, saved.softmax_BST.shape[2] - rows.is_here_BT.shape[1])
    saved = Saved(
        saved.read_BTH,
        jnp.where(is_here_BT[:, None], saved.softmax_BST, -MASKED),
        jnp.where(rows.is_here_BT[:, :, None], saved.grad_BTH, 0),
    )

    def step(sums: Gradients, block: jnp.ndarray) -> tuple[Gradients, None]:
        busy_BQ = wanted_BQJ[:, :, block]
        here = _operands(sizes, rows, operands, block, busy_BQ)

        def differentiate() -> Gradients:
            return kernels.backward(rows.sizes, here, saved, interpret)

        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(differentiate))
        found = jax.lax.cond(busy_BQ.any(), differentiate, lambda: nothing)
        first = block * sizes.key_block
        position_2RH = sums.position_2RH
        if position_2RH is not None:
            position_2RH = _add_at(position_2RH, found.position_2RH, _first_distance(sizes, rows, block))
        return Gradients(
            # The kernel writes only busy tiles.
            sums.query_BTH + jnp.where(rows.in_busy_tiles_BT(busy_BQ)[:, :, None], found.query_BTH, 0),
            _add_at(sums.key_BKH, found.key_BKH, first),
            _add_at(sums.value_BKH, found.value_BKH, first),
            position_2RH,
            sums.vectors_8H + found.vectors_8H,
        ), None

    return jax.lax.scan(step, sums, jnp.arange(sizes.padded_keys // sizes.key_block))[0]


def _add_at(sum_BKH: jnp.ndarray, x_BKH: jnp.ndarray, start: jnp.ndarray) -> jnp.ndarray:
    there_BKH = _slice(sum_BKH, 1, start, x_BKH.shape[1])
    return jax.lax.dynamic_update_slice_in_dim(sum_BKH, there_BKH + x_BKH, start, axis=1)


def _slice(x: jnp.ndarray, axis: int, start: jnp.ndarray, length: int) -> jnp.ndarray:
    return jax.lax.dynamic_slice_in_dim(x, start, length, axis=axis)


def _concatenate(blocks: jnp.ndarray, axis: int) -> jnp.ndarray:
    """Join blocks, stacked on the first axis, along another axis."""
    moved = jnp.moveaxis(blocks, 0, axis)
    return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])

"""Convert the arguments of an attention call to operands of the TPU kernels (joined heads, padded lengths, integers)
and define their blocks on the chip.

The grid is (group of heads, example, block of positions, block of keys, tile of rows), the last axis fastest. A window
that fits the chip is one block: the keys and values of a head stay there for all rows of an example, and position keys
for the whole batch. The rows of a block are at consecutive positions, so with a block of keys they need only a part of
the position keys. Query rows are at any positions, and belong to a block as their positions do.
"""

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.arguments import AttentionInputs, pad, round_up
from xlnet_jax.kernels.products import join_heads_BTE
from xlnet_jax.kernels.tpu.tiles import LANES, ROWS, SUBLANES, KeyField, RowField, TpuGeneration, TpuSizes, VectorRow

NEVER = jnp.iinfo(jnp.int32).max
"""Rank, position and number of padded keys, which no row sees."""


class TpuOperands(NamedTuple):
    """Inputs of the kernels: arrays outside, references to their blocks inside. None = no such term. Or the gradients
    of the first five: those of a long window, in the kernel, are [B, H, K] for keys and values.

    H contains all heads side by side.
    """

    query_BTH: Any
    key_BKH: Any
    value_BKH: Any
    position_2HR: Any  # forwards, then backwards if examples may be read backwards
    vectors_8H: Any  # float32, rows VectorRow.R_W to VectorRow.OTHER_SEGMENT
    rows_B8T: Any = None  # int32, rows RowField.RANK to RowField.NUMBER
    keys_B8K: Any = None  # int32, rows KeyField.RANK to KeyField.NUMBER
    is_reversed_B: Any = None  # int32
    seed_BN: Any = None  # int32
    busy_BS: Any = None  # int32, 1 = compute this step of the grid (`busy_BS`); None = all
    # Of the backward kernel only: results of the forward kernel, and the gradient of the output.
    read_BTH: Any = None
    softmax_BST: Any = None
    grad_BTH: Any = None


def sizes_of(inputs: AttentionInputs, generation: TpuGeneration) -> TpuSizes:
    """Return the sizes of a call. Without query rows, all rows are content rows. A window too long for the chip is
    padded to whole blocks."""
    _, num_heads, num_rows, head_width = inputs.query_BNTH.shape
    relations, has_positions = inputs.relations, inputs.position_key_2NRH is not None
    sizes = TpuSizes(
        num_heads=num_heads,
        head_width=head_width,
        num_content=num_rows - relations.num_targets,
        num_targets=relations.num_targets,
        num_places=inputs.num_places,
        num_keys=inputs.key_BNKH.shape[2],
        num_directions=0 if not has_positions else 1 if relations.is_reversed_B is None else 2,
        has_ranks=relations.row_rank_BT is not None,
        has_span=relations.row_first_BT is not None,
        has_segments=inputs.segment_key_2NH is not None,
        dropout_rate=0.0 if inputs.dropout is None else inputs.dropout.rate,
        generation=generation,
        rotates_pairs=inputs.query_BNTH.dtype == jnp.bfloat16 and not generation.gathers_lanes,
    )
    if sizes.fits:
        return sizes
    return replace(
        sizes,
        row_block=_even_block(sizes.num_places, generation.row_block),
        key_block=_even_block(sizes.num_keys, generation.key_block),
    )


def _even_block(length: int, longest: int) -> int:
    """Return the size of blocks, a multiple of 128, that divide a length most evenly into the fewest blocks."""
    return round_up(-(-length // -(-length // longest)), LANES)


def operands_of(inputs: AttentionInputs, sizes: TpuSizes) -> TpuOperands:
    """Return the operands of a call."""
    seed_BN = is_reversed_B = None
    if inputs.dropout is not None:
        seed_BN = jax.lax.bitcast_convert_type(inputs.dropout.seed_BN, jnp.int32)
        seed_BN = pad(seed_BN, 1, sizes.num_groups * sizes.group - sizes.num_heads)
    if sizes.num_directions == 2:
        is_reversed_B = inputs.relations.is_reversed_B.astype(jnp.int32)
    more_keys = sizes.padded_keys - sizes.num_keys
    rows_B8T, keys_B8K = _rows_B8T(inputs, sizes), _keys_B8K(inputs, more_keys)
    return TpuOperands(
        query_BTH=pad_rows(join_heads(inputs.query_BNTH, sizes), sizes),
        key_BKH=pad(join_heads(inputs.key_BNKH, sizes), 1, more_keys),
        value_BKH=pad(join_heads(inputs.value_BNKH, sizes), 1, more_keys),
        position_2HR=_position_2HR(inputs, sizes),
        vectors_8H=_vectors_8H(inputs, sizes),
        rows_B8T=rows_B8T,
        keys_B8K=keys_B8K,
        is_reversed_B=is_reversed_B,
        seed_BN=seed_BN,
        busy_BS=None if sizes.fits else busy_BS(sizes, rows_B8T, keys_B8K),
    )


def join_heads(x_BNTH: jnp.ndarray, sizes: TpuSizes) -> jnp.ndarray:
    """Join heads side by side, [..., T, N x H]; the last group is padded with zeros."""
    joined_BTE = join_heads_BTE(x_BNTH)
    return pad(joined_BTE, -1, sizes.num_groups * sizes.width - joined_BTE.shape[-1])


def split_heads_BNTH(joined_BTH: jnp.ndarray, sizes: TpuSizes) -> jnp.ndarray:
    """Move heads to their own axis: the inverse of `join_heads`."""
    apart = joined_BTH[..., : sizes.num_heads * sizes.head_width]
    return jnp.swapaxes(apart.reshape(*apart.shape[:-1], sizes.num_heads, sizes.head_width), 1, 2)


def pad_rows(x_BT: jnp.ndarray, sizes: TpuSizes) -> jnp.ndarray:
    """Pad content rows to whole tiles. The last tile of query rows may extend past the end."""
    missing = sizes.padded_content - sizes.num_content
    if not missing:
        return x_BT
    content_BL, query_BP = x_BT[:, : sizes.num_content], x_BT[:, sizes.num_content :]
    return jnp.concatenate([pad(content_BL, 1, missing), query_BP], axis=1)


def unpad_rows(x_BT: jnp.ndarray, sizes: TpuSizes) -> jnp.ndarray:
    """Remove the rows that `pad_rows` added."""
    if sizes.padded_content == sizes.num_content:
        return x_BT
    return jnp.concatenate([x_BT[:, : sizes.num_content], x_BT[:, sizes.padded_content :]], axis=1)


def _position_2HR(inputs: AttentionInputs, sizes: TpuSizes) -> jnp.ndarray | None:
    if inputs.position_key_2NRH is None:
        return None
    sine_NRH, cosine_NRH = inputs.position_key_2NRH
    directions = [cosine_NRH + sine_NRH] + ([cosine_NRH - sine_NRH] if sizes.num_directions == 2 else [])
    joined_2RH = join_heads(jnp.stack(directions), sizes)
    # Padding places at their end shifts all distances by as many columns.
    before, after = sizes.padded_places - sizes.num_places, sizes.padded_keys - sizes.num_keys
    return jnp.swapaxes(pad(joined_2RH, 1, after, before), 1, 2)


def _vectors_8H(inputs: AttentionInputs, sizes: TpuSizes) -> jnp.ndarray:
    rows = {}
    if inputs.biases_3NH is not None:
        rows = dict(zip((VectorRow.R_W, VectorRow.R_R, VectorRow.R_S), inputs.biases_3NH, strict=True))
    if inputs.segment_key_2NH is not None:
        # Softmax ignores shifts of a whole row, so only the difference of the two segment scores matters.
        rows[VectorRow.OTHER_SEGMENT] = inputs.segment_key_2NH[1] - inputs.segment_key_2NH[0]
    zeros_NH = jnp.zeros((sizes.num_heads, sizes.head_width))
    vectors_8NH = jnp.stack([rows.get(row, zeros_NH).astype(jnp.float32) for row in range(SUBLANES)])
    return join_heads(vectors_8NH[:, :, None], sizes)[:, 0]


def _rows_B8T(inputs: AttentionInputs, sizes: TpuSizes) -> jnp.ndarray:
    relations = inputs.relations
    rows = {
        RowField.RANK: relations.row_rank_BT,
        RowField.FIRST: relations.row_first_BT,
        RowField.LAST: relations.row_last_BT,
        RowField.SEGMENT: relations.row_segment_BT,
    }
    if relations.query_position_BP is not None:
        rows[RowField.POSITION] = pad(relations.query_position_BP, 1, 0, before=sizes.num_content)
    if inputs.dropout is not None:
        rows[RowField.NUMBER], _ = inputs.dropout_numbers()
    integers_B8T = _stack_B8T(rows, len(inputs.query_BNTH), inputs.query_BNTH.shape[2])
    integers_B8T = jnp.swapaxes(pad_rows(jnp.swapaxes(integers_B8T, 1, 2), sizes), 1, 2)
    return pad(integers_B8T, 2, sizes.padded_rows - integers_B8T.shape[2])


def _keys_B8K(inputs: AttentionInputs, more_keys: int) -> jnp.ndarray:
    relations = inputs.relations
    keys = {
        KeyField.RANK: relations.key_rank_BK,
        KeyField.POSITION: relations.key_position_BK,
        KeyField.SEGMENT: relations.key_segment_BK,
    }
    if inputs.dropout is not None:
        _, keys[KeyField.NUMBER] = inputs.dropout_numbers()
    integers_B8K = _stack_B8T(keys, len(inputs.key_BNKH), inputs.key_BNKH.shape[2])
    return pad(integers_B8K, 2, more_keys, value=NEVER)


def _stack_B8T(rows: dict[int, jnp.ndarray | None], batch: int, length: int) -> jnp.ndarray:
    """Stack the integers of rows or keys; missing ones are zeros."""
    zeros_BT = jnp.zeros((batch, length), jnp.int32)
    given = [rows.get(row) for row in range(SUBLANES)]
    return jnp.stack([zeros_BT if row_BT is None else row_BT for row_BT in given], axis=1)


# ---- blocks of long windows ------------------------------------------------------------------------------------------


def busy_BS(sizes: TpuSizes, rows_B8T: jnp.ndarray, keys_B8K: jnp.ndarray) -> jnp.ndarray:
    """Return int32 [B, steps]: 0 = a tile need not be computed with a block of keys, 1 = it must.

    `Place.is_busy` (grid.py) reads it. A row that sees no key has a uniform softmax over all keys, so its tile needs
    all blocks.
    """
    batch, number_T = len(rows_B8T), jnp.arange(sizes.padded_rows)
    is_content_T = number_T < sizes.padded_content
    is_real_T = jnp.where(
        is_content_T, number_T < sizes.num_content, number_T < sizes.padded_content + sizes.num_targets
    )
    tiles = (batch, sizes.tiles, ROWS)
    is_seen_BTK = jnp.broadcast_to(
        keys_B8K[:, None, KeyField.NUMBER] != NEVER, (batch, sizes.padded_rows, sizes.padded_keys)
    )
    row_B8T1, key_B81K = rows_B8T[..., None], keys_B8K[:, :, None]
    if sizes.has_ranks:
        is_seen_BTK &= key_B81K[:, KeyField.RANK] <= row_B8T1[:, RowField.RANK]
    if sizes.has_span:
        position_B1K = key_B81K[:, KeyField.POSITION]
        is_seen_BTK &= (row_B8T1[:, RowField.FIRST] <= position_B1K) & (position_B1K <= row_B8T1[:, RowField.LAST])
    is_seen_BTJ = is_seen_BTK.reshape(batch, -1, sizes.key_blocks, sizes.key_block).any(3)
    is_seen_BTJ = (is_seen_BTJ | ~is_seen_BTJ.any(2, keepdims=True)) & is_real_T[None, :, None]
    busy_BQJ = is_seen_BTJ.reshape(*tiles, -1).any(2)
    content_BS = busy_BQJ[:, : sizes.content_tiles].reshape(batch, -1)
    block_BT = rows_B8T[:, RowField.POSITION] // sizes.row_block
    is_here_BTR = (block_BT[..., None] == jnp.arange(sizes.row_blocks)[None, None]) & is_real_T[None, :, None]
    is_here_BQR = is_here_BTR.reshape(*tiles, -1).any(2)[:, sizes.content_tiles :]
    query_BS = (is_here_BQR[..., None] & busy_BQJ[:, sizes.content_tiles :, None]).reshape(batch, -1)
    return jnp.concatenate([content_BS, query_BS], axis=1).astype(jnp.int32)


def tile_number(sizes: TpuSizes, row_block: Any, tile: Any) -> Any:
    """Return the number of a tile in the window, for its number in a block of positions."""
    if sizes.fits:
        return tile
    here = sizes.of_block.content_tiles
    return jnp.where(tile < here, row_block * here + tile, sizes.content_tiles + tile - here)


def tile_of_step(sizes: TpuSizes, row_block: Any, key_block: Any, tile: Any, *, is_output: bool) -> Any:
    """Return the number in the window of the tile that a step reads or writes. An output may be at one block only in
    successive steps, and is written when the last block of keys is done; until then it stays at a tile that it writes
    next or has written."""
    if not is_output or sizes.fits:
        return tile_number(sizes, row_block, tile)
    here = sizes.of_block.content_tiles
    is_last = key_block == sizes.key_blocks - 1
    content = row_block * here + jnp.where(is_last, jnp.clip(tile, 0, max(here - 1, 0)), 0)
    is_query = is_last & (row_block == sizes.row_blocks - 1) & (tile >= here)
    return jnp.where(is_query, tile_number(sizes, row_block, tile), content)


# ---- blocks ----------------------------------------------------------------------------------------------------------


def row_blocks(sizes: TpuSizes, *, is_output: bool = False) -> pl.BlockSpec:
    """Return the blocks of an array [B, T, N x H]."""
    number = functools.partial(tile_of_step, sizes, is_output=is_output)
    return pl.BlockSpec(
        (1, ROWS, sizes.width),
        lambda group, example, rows, keys, tile: (example, number(rows, keys, tile), group),
    )


def key_blocks(sizes: TpuSizes) -> pl.BlockSpec:
    """Return the blocks of an array [B, K, N x H]."""
    return pl.BlockSpec(
        (1, sizes.of_block.padded_keys, sizes.width), lambda group, example, rows, keys, tile: (example, keys, group)
    )


def position_blocks(sizes: TpuSizes) -> pl.BlockSpec:
    """Return the blocks of an array [directions, N x H, R]. Those of a short window change only with the group, so one
    buffer is enough."""
    directions, here, width = sizes.num_directions, sizes.of_block.padded_distances, sizes.width
    if sizes.fits:
        shape = (directions, width, here)
        return pl.BlockSpec(shape, lambda group, example, rows, keys, tile: (0, group, 0), pipeline_mode=pl.Buffered(1))
    return pl.BlockSpec(
        (pl.Element(directions), pl.Element(width), pl.Element(here)),
        lambda group, example, rows, keys, tile: (0, group * width, first_distance(sizes, rows, keys)),
    )


def first_distance(sizes: TpuSizes, row_block: Any, key_block: Any) -> Any:
    """Return the first of the distances between a block of positions and a block of keys."""
    first = sizes.padded_places - (row_block + 1) * sizes.row_block + key_block * sizes.key_block
    return pl.multiple_of(first, LANES)


def vector_blocks(sizes: TpuSizes) -> pl.BlockSpec:
    """Return the blocks of an array [8, N x H]."""
    return pl.BlockSpec((SUBLANES, sizes.width), lambda group, example, rows, keys, tile: (0, group))


def softmax_blocks(sizes: TpuSizes, *, is_output: bool = False) -> pl.BlockSpec:
    """Return the blocks of the softmax statistics."""
    number = functools.partial(tile_of_step, sizes, is_output=is_output)
    return pl.BlockSpec(
        (1, sizes.softmax_rows, ROWS),
        lambda group, example, rows, keys, tile: (example, group, number(rows, keys, tile)),
    )


def operand_blocks(sizes: TpuSizes, operands: TpuOperands) -> TpuOperands:
    """Return the blocks of all inputs."""
    scalars = pl.BlockSpec(memory_space=pltpu.SMEM)
    blocks = TpuOperands(
        query_BTH=row_blocks(sizes),
        key_BKH=key_blocks(sizes),
        value_BKH=key_blocks(sizes),
        position_2HR=position_blocks(sizes),
        vectors_8H=vector_blocks(sizes),
        rows_B8T=pl.BlockSpec(
            (1, SUBLANES, ROWS),
            lambda group, example, rows, keys, tile: (example, 0, tile_number(sizes, rows, tile)),
        ),
        keys_B8K=pl.BlockSpec(
            (1, SUBLANES, sizes.of_block.padded_keys), lambda group, example, rows, keys, tile: (example, 0, keys)
        ),
        is_reversed_B=scalars,
        seed_BN=scalars,
        busy_BS=scalars,
        read_BTH=row_blocks(sizes),
        softmax_BST=softmax_blocks(sizes),
        grad_BTH=row_blocks(sizes),
    )
    given = zip(operands, blocks, strict=True)
    return TpuOperands(*(None if operand is None else block for operand, block in given))


def estimate_cost(sizes: TpuSizes, operands: TpuOperands, others: Any, products: int) -> pl.CostEstimate:
    """Return the FLOPs of a kernel and the bytes that it reads and writes, for the compiler's schedule and for plans.

    others: other inputs and outputs, arrays or shapes; products: number of matrix products of rows and keys.
    """
    batch, elements = len(operands.query_BTH), sizes.busy_tiles * ROWS * sizes.padded_keys
    return pl.CostEstimate(
        flops=2 * products * batch * sizes.num_groups * sizes.group * elements * sizes.width,
        bytes_accessed=sum(a.size * a.dtype.itemsize for a in jax.tree.leaves((operands, others))),
        transcendentals=batch * sizes.num_heads * elements,
    )

"""Define three kernels that share the scores of a tile of rows and keys, masks and dropout.

The forward kernel has one program for each tile of rows, which loops over the tiles of keys with an online softmax
(Dao, "FlashAttention-2", 2023, algorithm 1).

The backward kernels (algorithm 2 there) have a program for each tile of rows and one for each tile of keys. One program
writes each number, so the order of sums does not change from run to run. With p the probabilities, recomputed from the
scores, and m the dropout mask scaled by 1 / (1 - rate):

    d value = (m p)^T d output
    d score = p (m (d output value^T) - mean),   mean = sum over features of output x d output

The programs of rows compute the gradients of queries, position scores by distance and segment scores; the programs of
keys compute those of keys and values.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from xlnet_jax.kernels.arguments import MASKED, like
from xlnet_jax.kernels.dropout import hash_words, row_seed, threshold
from xlnet_jax.kernels.gpu.operands import KEYS, ROWS, GpuOperands, GpuSizes, Vectors, block, blocks, compiler_params

# ---- scores ----------------------------------------------------------------------------------------------------------


class ScoreTile(NamedTuple):
    """Tile of scores, and what is loaded for its scores besides the factors of their product. None = no such term."""

    rows: Any  # slice of all rows, as `pl.ds`
    keys: Any
    of_rows: Vectors  # with the seeds of the rows in `row_number_BT`
    other_T: Any
    of_keys: Vectors
    by_distance_TK: Any

    @property
    def is_other_TK(self) -> jnp.ndarray:
        """True for keys in another segment than the row."""
        return self.of_rows.row_segment_BT[:, None] != self.of_keys.key_segment_BK[None]


def load_rows(refs: GpuOperands, vectors: Vectors, rows: Any) -> tuple[Vectors, Any]:
    """Load `ScoreTile.of_rows` and `ScoreTile.other_T`. A program of rows does this once, before its loop."""
    loaded = _load(vectors, "row", rows)
    if vectors.seed_BN is not None:
        seed = vectors.seed_BN[...]
        loaded = loaded._replace(row_number_BT=row_seed(seed, loaded.row_number_BT), seed_BN=seed)
    return loaded, None if refs.other_BNT is None else refs.other_BNT[rows]


def load_keys(vectors: Vectors, keys: Any) -> Vectors:
    """Load `ScoreTile.of_keys`. A program of keys does this once, before its loop."""
    return _load(vectors, "key", keys)


def _load(vectors: Vectors, side: str, part: Any) -> Vectors:
    named = vectors._asdict().items()
    return Vectors(**{name: ref[part] for name, ref in named if ref is not None and name.startswith(side)})


def load_tile(
    sizes: GpuSizes, refs: GpuOperands, rows: Any, keys: Any, loaded_rows: tuple[Vectors, Any], of_keys: Vectors
) -> ScoreTile:
    """Load the position scores of a tile, and return them with what is loaded of its rows and keys."""
    of_rows, other_T = loaded_rows
    by_distance = refs.by_distance_BNTR
    by_distance_TK = None if by_distance is None else by_distance[distance_index(sizes, of_rows, rows, keys)]
    return ScoreTile(rows, keys, of_rows, other_T, of_keys, by_distance_TK)


def scores_TK(sizes: GpuSizes, tile: ScoreTile, query_TH: jnp.ndarray, key_KH: jnp.ndarray) -> jnp.ndarray:
    """Return the masked scores of a tile in float32."""
    of_rows, of_keys = tile.of_rows, tile.of_keys
    score_TK = plgpu.dot(query_TH, key_KH, trans_b=True)
    if tile.by_distance_TK is not None:
        score_TK += tile.by_distance_TK.astype(jnp.float32)
    if tile.other_T is not None:
        score_TK += jnp.where(tile.is_other_TK, tile.other_T[:, None], 0.0)
    column_1K = _numbers(tile.keys)[None]
    is_visible_TK = is_real_1K = column_1K < sizes.num_keys
    if of_rows.row_rank_BT is not None:
        is_visible_TK &= of_keys.key_rank_BK[None] <= of_rows.row_rank_BT[:, None]
    if of_rows.row_first_BT is not None:
        position_1K = of_keys.key_position_BK[None]
        is_visible_TK &= position_1K >= of_rows.row_first_BT[:, None]
        is_visible_TK &= position_1K <= of_rows.row_last_BT[:, None]
    # Next to MASKED a float32 score vanishes, so this equals a sum: gradients do not stop at hidden keys. A row that
    # sees no key has a uniform softmax over the real keys, not over padding.
    return jnp.where(is_visible_TK, score_TK, jnp.where(is_real_1K, MASKED, 2 * MASKED))


def distance_index(sizes: GpuSizes, of_rows: Vectors, rows: Any, keys: Any) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the indices of a tile's scores by distance: each row has its own offset."""
    row_TK, start_T1 = _starts(sizes, of_rows, rows)
    return row_TK, start_T1 + _numbers(keys)[None]


def other_distance_index(
    sizes: GpuSizes, of_rows: Vectors, rows: Any, distances: Any
) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the indices of the distances at which a row has no keys. distances: slice of all of these."""
    row_TK, start_T1 = _starts(sizes, of_rows, rows)
    number_1K = _numbers(distances)[None]
    return row_TK, number_1K + jnp.where(number_1K < start_T1, 0, sizes.padded_keys)


def _starts(sizes: GpuSizes, of_rows: Vectors, rows: Any) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the numbers of the rows of a tile, and the column of the first key of each."""
    row_TK = jnp.broadcast_to(_numbers(rows)[:, None], (ROWS, KEYS))
    return row_TK, (sizes.num_places - of_rows.row_position_BT)[:, None]


def drop_TK(sizes: GpuSizes, tile: ScoreTile, *several_TK: jnp.ndarray) -> list[jnp.ndarray]:
    """Set the elements that the dropout mask drops to zero (`dropout.attention_mask_BNTK`)."""
    if (seed := tile.of_rows.seed_BN) is None:
        return list(several_TK)
    word_TK = hash_words(tile.of_rows.row_number_BT[:, None], _numbers(tile.keys)[None])
    half_TK = (word_TK >> ((seed & jnp.uint32(1)) * jnp.uint32(16))) & jnp.uint32(0xFFFF)
    is_kept_TK = half_TK.astype(jnp.int32) >= threshold(sizes.dropout_rate)
    return [jnp.where(is_kept_TK, x_TK, 0.0) for x_TK in several_TK]


def exp(x: jnp.ndarray) -> jnp.ndarray:
    """Return e^x. Triton computes powers of two in fewer instructions."""
    return jnp.exp2(x * math.log2(math.e))


def _numbers(part: Any) -> jnp.ndarray:
    return part.start + jax.lax.iota(jnp.int32, part.size)


# ---- forward ---------------------------------------------------------------------------------------------------------


def forward(
    sizes: GpuSizes, operands: GpuOperands, vectors: Vectors, interpret: bool
) -> tuple[jnp.ndarray, jnp.ndarray, jnp.ndarray]:
    """Return the output, and for each row its highest score and the sum of exp(score - highest), float32 [B, N, T].

    These two are separate: in a row that sees no key, the logarithm of the sum would vanish next to the highest score.
    """
    query = operands.query_BNTH
    statistic = jax.ShapeDtypeStruct(query.shape[:3], jnp.float32)
    shapes = (jax.ShapeDtypeStruct(query.shape, operands.value_BNKH.dtype), statistic, statistic)
    return pl.pallas_call(
        functools.partial(_forward, sizes),
        grid=(sizes.row_tiles, query.shape[1], query.shape[0]),
        in_specs=[blocks(operands), blocks(vectors)],
        out_specs=tuple(block(shape, lead=2) for shape in shapes),
        out_shape=shapes,
        compiler_params=compiler_params(operands),
        interpret=interpret,
        name="fused_attention_forward",
    )(operands, vectors)


def _forward(
    sizes: GpuSizes, refs: GpuOperands, vectors: Vectors, read_BNTH: Any, maximum_BNT: Any, sum_BNT: Any
) -> None:
    rows = pl.ds(pl.program_id(0) * ROWS, ROWS)
    query_TH, loaded_rows = refs.query_BNTH[rows], load_rows(refs, vectors, rows)

    def add_keys(number: Any, so_far: tuple[jnp.ndarray, ...]) -> tuple[jnp.ndarray, ...]:
        read_TH, maximum_T, sum_T = so_far
        keys = pl.ds(number * KEYS, KEYS)
        tile = load_tile(sizes, refs, rows, keys, loaded_rows, load_keys(vectors, keys))
        score_TK = scores_TK(sizes, tile, query_TH, refs.key_BNKH[keys])
        higher_T = jnp.maximum(maximum_T, score_TK.max(1))
        weights_TK = exp(score_TK - higher_T[:, None])
        shrink_T = exp(maximum_T - higher_T)
        value_KH = refs.value_BNKH[keys]
        (dropped,) = drop_TK(sizes, tile, weights_TK)
        read_TH = read_TH * shrink_T[:, None] + plgpu.dot(dropped.astype(value_KH.dtype), value_KH)
        return read_TH, higher_T, sum_T * shrink_T + weights_TK.sum(1)

    nothing = jnp.zeros(query_TH.shape, jnp.float32), jnp.full(ROWS, -jnp.inf), jnp.zeros(ROWS, jnp.float32)
    read_TH, maximum_T, sum_T = jax.lax.fori_loop(0, sizes.key_tiles, add_keys, nothing)
    read_BNTH[rows] = (read_TH / (sum_T * sizes.keep)[:, None]).astype(read_BNTH.dtype)
    maximum_BNT[rows] = maximum_T
    sum_BNT[rows] = sum_T


# ---- backward --------------------------------------------------------------------------------------------------------


class Residuals(NamedTuple):
    """Other inputs of the backward kernels, padded: arrays outside, references inside."""

    grad_BNTH: Any
    mean_BNT: Any  # float32
    maximum_BNT: Any  # float32
    sum_BNT: Any  # float32


def backward(
    sizes: GpuSizes, operands: GpuOperands, vectors: Vectors, saved: Residuals, interpret: bool
) -> GpuOperands:
    """Return the gradients of the operands."""
    batch, heads = operands.query_BNTH.shape[:2]

    def call(kernel: Any, tiles: int, name: str, shapes: Any) -> Any:
        return pl.pallas_call(
            functools.partial(kernel, sizes),
            grid=(tiles, heads, batch),
            in_specs=[blocks(operands), blocks(vectors), blocks(saved)],
            out_specs=blocks(shapes),
            out_shape=shapes,
            compiler_params=compiler_params(operands),
            interpret=interpret,
            name=name,
        )(operands, vectors, saved)

    shapes = GpuOperands(*map(like, operands))
    of_rows = shapes._replace(key_BNKH=None, value_BNKH=None)
    of_keys = shapes._replace(query_BNTH=None, by_distance_BNTR=None, other_BNT=None)
    by_rows = call(_of_rows, sizes.row_tiles, "fused_attention_backward", of_rows)
    by_keys = call(_of_keys, sizes.key_tiles, "fused_attention_backward_keys", of_keys)
    return by_rows._replace(key_BNKH=by_keys.key_BNKH, value_BNKH=by_keys.value_BNKH)


def _of_rows(sizes: GpuSizes, refs: GpuOperands, vectors: Vectors, saved: Residuals, *outputs: Any) -> None:
    grads, rows = GpuOperands(*outputs), pl.ds(pl.program_id(0) * ROWS, ROWS)
    query_TH, loaded_rows = refs.query_BNTH[rows], load_rows(refs, vectors, rows)
    saved_of_rows = Residuals(*(ref[rows] for ref in saved))

    def add_keys(number: Any, so_far: tuple[jnp.ndarray, ...]) -> tuple[jnp.ndarray, ...]:
        query_grad_TH, other_T = so_far
        keys = pl.ds(number * KEYS, KEYS)
        tile = load_tile(sizes, refs, rows, keys, loaded_rows, load_keys(vectors, keys))
        key_KH, value_KH = refs.key_BNKH[keys], refs.value_BNKH[keys]
        _, grad_TK = _probabilities_and_gradients(sizes, saved_of_rows, tile, query_TH, key_KH, value_KH)
        query_grad_TH += plgpu.dot(grad_TK.astype(key_KH.dtype), key_KH)
        if grads.by_distance_BNTR is not None:
            index = distance_index(sizes, tile.of_rows, rows, keys)
            grads.by_distance_BNTR[index] = grad_TK.astype(grads.by_distance_BNTR.dtype)
        if grads.other_BNT is not None:
            other_T += jnp.where(tile.is_other_TK, grad_TK, 0.0).sum(1)
        return query_grad_TH, other_T

    def clear_distances(number: Any, nothing: None) -> None:
        """Write zeros at the distances before and after those of the keys."""
        index = other_distance_index(sizes, loaded_rows[0], rows, pl.ds(number * KEYS, KEYS))
        grads.by_distance_BNTR[index] = jnp.zeros((ROWS, KEYS), grads.by_distance_BNTR.dtype)

    nothing = jnp.zeros(query_TH.shape, jnp.float32), jnp.zeros(ROWS, jnp.float32)
    query_grad_TH, other_T = jax.lax.fori_loop(0, sizes.key_tiles, add_keys, nothing)
    grads.query_BNTH[rows] = query_grad_TH.astype(grads.query_BNTH.dtype)
    if grads.other_BNT is not None:
        grads.other_BNT[rows] = other_T
    if grads.by_distance_BNTR is not None:
        jax.lax.fori_loop(0, sizes.distance_tiles, clear_distances, None)


def _of_keys(sizes: GpuSizes, refs: GpuOperands, vectors: Vectors, saved: Residuals, *outputs: Any) -> None:
    grads, keys = GpuOperands(*outputs), pl.ds(pl.program_id(0) * KEYS, KEYS)
    key_KH, value_KH, of_keys = refs.key_BNKH[keys], refs.value_BNKH[keys], load_keys(vectors, keys)

    def add_rows(number: Any, so_far: tuple[jnp.ndarray, ...]) -> tuple[jnp.ndarray, ...]:
        key_grad_KH, value_grad_KH = so_far
        rows = pl.ds(number * ROWS, ROWS)
        tile = load_tile(sizes, refs, rows, keys, load_rows(refs, vectors, rows), of_keys)
        query_TH, saved_of_rows = refs.query_BNTH[rows], Residuals(*(ref[rows] for ref in saved))
        dropped_TK, grad_TK = _probabilities_and_gradients(sizes, saved_of_rows, tile, query_TH, key_KH, value_KH)
        out_TH = saved_of_rows.grad_BNTH
        value_grad_KH += plgpu.dot(dropped_TK.astype(out_TH.dtype), out_TH, trans_a=True)
        key_grad_KH += plgpu.dot(grad_TK.astype(query_TH.dtype), query_TH, trans_a=True)
        return key_grad_KH, value_grad_KH

    nothing = jnp.zeros(key_KH.shape, jnp.float32), jnp.zeros(key_KH.shape, jnp.float32)
    key_grad_KH, value_grad_KH = jax.lax.fori_loop(0, sizes.row_tiles, add_rows, nothing)
    grads.key_BNKH[keys] = key_grad_KH.astype(grads.key_BNKH.dtype)
    grads.value_BNKH[keys] = value_grad_KH.astype(grads.value_BNKH.dtype)


def _probabilities_and_gradients(
    sizes: GpuSizes,
    saved: Residuals,
    tile: ScoreTile,
    query_TH: jnp.ndarray,
    key_KH: jnp.ndarray,
    value_KH: jnp.ndarray,
) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the probabilities of a tile after dropout, and the gradients of its scores. saved: of the tile's rows."""
    score_TK = scores_TK(sizes, tile, query_TH, key_KH)
    # p / keep, so that nothing else is divided by `keep`: it scales rows instead of elements.
    scale_T1 = (1.0 / (saved.sum_BNT * sizes.keep))[:, None]
    scaled_TK = exp(score_TK - saved.maximum_BNT[:, None]) * scale_T1
    wanted_TK = plgpu.dot(saved.grad_BNTH, value_KH, trans_b=True)
    dropped_TK, wanted_TK = drop_TK(sizes, tile, scaled_TK, wanted_TK)
    return dropped_TK, scaled_TK * (wanted_TK - (saved.mean_BNT * sizes.keep)[:, None])

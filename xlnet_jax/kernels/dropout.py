"""Compute dropout masks with a counter hash: an element's bits are a hash of a seed, its row and its column.

The mask does not depend on the implementation, the sharding or the micro-batches: an example's seed depends on its
place in the global batch. The hash is lowbias32 (Chris Wellons, "Prospecting for Hash Functions", 2018;
nullprogram.com/blog/2018/07/31). Each element uses 16 bits, so the rate is rounded to 1 / 65,536.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# Odd, so that multiplication by them is a bijection of 32-bit numbers.
ROW_STRIDE, COLUMN_STRIDE, EXAMPLE_STRIDE, PAIR_STRIDE = 0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F


class AttentionDropout(NamedTuple):
    """Dropout of attention probabilities: the rate, and a seed for each example and head.

    Heads 2i and 2i + 1 have the same seed except for its lowest bit, so they share the words of `hash_words`: the even
    head uses the lower 16 bits of a word, the odd head the upper 16.
    """

    rate: float
    seed_BN: jnp.ndarray  # uint32; lowest bit = lowest bit of the head's number
    row_T: jnp.ndarray | None = None  # int32, numbers of the rows in the whole call, if only some are given

    def number_rows(self, num_rows: int) -> jnp.ndarray:
        """Return the numbers of the rows, int32 [T]: by default in order from 0."""
        return jnp.arange(num_rows) if self.row_T is None else self.row_T


def lowbias32(x: jnp.ndarray, *, by_shifts: bool = False) -> jnp.ndarray:
    """Return lowbias32 of uint32 numbers: a bijection in which each input bit changes about half of the output bits.

    by_shifts: multiply by shifts and sums, for chips without a multiplier of integers
    """
    x = x ^ (x >> 16)
    if by_shifts:
        x_5 = x + (x << 2)
        x = x_5 + (x_5 << 3) + (x_5 << 8) - (x_5 << 12) - (x << 15) - (x_5 << 18) + (x << 31)
    else:
        x = x * jnp.uint32(0x7FEB352D)
    x = x ^ (x >> 15)
    if by_shifts:
        x_31 = (x << 5) - x
        x = x - (x_31 << 1) + (x << 3) + (x_31 << 6) + (x_31 << 8) - (x_31 << 15) + (x_31 << 18) - (x_31 << 26)
    else:
        x = x * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def row_seed(seed: jnp.ndarray, row: jnp.ndarray, *, by_shifts: bool = False) -> jnp.ndarray:
    """Return the uint32 seed of a row; the lowest bit of `seed` is ignored. Shapes broadcast."""
    return lowbias32((seed | jnp.uint32(1)) + row.astype(jnp.uint32) * jnp.uint32(ROW_STRIDE), by_shifts=by_shifts)


def column_seed(column: jnp.ndarray) -> jnp.ndarray:
    """Return what a column adds to the seed of a row, uint32."""
    return column.astype(jnp.uint32) * jnp.uint32(COLUMN_STRIDE)


def hash_words(row_seed: jnp.ndarray, column: jnp.ndarray) -> jnp.ndarray:
    """Return a uint32 word of random bits for each element, from its row's seed and its column. Shapes broadcast."""
    return lowbias32(row_seed + column_seed(column))


def threshold(rate: float) -> int:
    """Return the smallest 16-bit number that keeps its element."""
    return round(rate * 2**16)


def hidden_mask_BTD(
    key: jax.Array,
    example_B: jnp.ndarray,
    rate: float,
    num_rows: int,
    width: int,
    row_T: jnp.ndarray | None = None,
) -> jnp.ndarray:
    """Return the dropout mask of hidden states, bool: True where an element is kept.

    key: of the site, layer and step; example_B: int32, place of each example in the global batch; row_T: int32, number
    of each row (None = in order from 0). Each element uses a whole word: with half words, devices that hold parts of an
    axis would have to exchange data.
    """
    row_T, column_D = jnp.arange(num_rows) if row_T is None else row_T, jnp.arange(width)
    row_seed_BT = row_seed(example_seed_B(key, example_B)[:, None], row_T[None])
    word_BTD = hash_words(row_seed_BT[..., None], column_D[None, None])
    return word_BTD >> 16 >= threshold(rate)


def attention_seed_BN(key: jax.Array, example_B: jnp.ndarray, num_heads: int) -> jnp.ndarray:
    """Return the seeds of `AttentionDropout`.

    key: of the layer and step; example_B: int32, place of each example in the global batch.
    """
    head_N = jnp.arange(num_heads, dtype=jnp.uint32)
    pair_seed_BN = lowbias32(example_seed_B(key, example_B)[:, None] + (head_N >> 1)[None] * jnp.uint32(PAIR_STRIDE))
    return (pair_seed_BN & ~jnp.uint32(1)) | (head_N & 1)[None]


def example_seed_B(key: jax.Array, example_B: jnp.ndarray) -> jnp.ndarray:
    """Return a uint32 seed for each example."""
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    return lowbias32(lowbias32(first + example_B.astype(jnp.uint32) * jnp.uint32(EXAMPLE_STRIDE)) ^ second)


@jax.named_scope("attention_dropout")
def attention_mask_BNTK(dropout: AttentionDropout, num_rows: int, num_keys: int) -> jnp.ndarray:
    """Return the dropout mask of attention probabilities, bool: True where an element is kept.

    Two heads that share words each compute the hash. XLA then fuses it into the code that reads the mask; shared words
    would be written to memory first.
    """
    row_T, column_K = dropout.number_rows(num_rows), jnp.arange(num_keys)
    row_seed_BNT = row_seed(dropout.seed_BN[:, :, None], row_T[None, None])
    word_BNTK = hash_words(row_seed_BNT[..., None], column_K[None, None, None])
    shift_BN = (dropout.seed_BN & 1) * 16
    half_BNTK = (word_BNTK >> shift_BN[:, :, None, None]) & jnp.uint32(0xFFFF)
    return half_BNTK >= threshold(dropout.rate)

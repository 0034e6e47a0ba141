"""Dropout masks by a counter hash: an element's bits follow from a seed and its row and column.

Every implementation makes the same mask, whatever it holds at once, and so does every sharding and every division into
micro-batches: the seed of an example follows from its place in the global batch. The hash is lowbias32 (Chris Wellons,
"Prospecting for Hash Functions", 2018; nullprogram.com/blog/2018/07/31). Each element takes 16 bits, so the rate is
rounded to a 65,536th.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# Odd, so that a product with them is a bijection of the 32-bit numbers.
ROW_STRIDE, COLUMN_STRIDE, EXAMPLE_STRIDE, PAIR_STRIDE = 0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F


class AttentionDropout(NamedTuple):
    """Dropout of attention probabilities: the rate, and a seed for each example and head.

    Two heads, 2i and 2i + 1, share a seed but for its lowest bit, and so share the words of `hash_words`: the even one
    reads the lower 16 bits of a word, the odd one the upper 16.
    """

    rate: float
    seed_BN: jnp.ndarray  # uint32; the lowest bit is that of the head's number
    row_T: jnp.ndarray | None = None  # int32, numbers of the rows in the whole call, where these are some of them

    def number_rows(self, num_rows: int) -> jnp.ndarray:
        """Return the numbers of the rows, int32 [T]: in order from 0 where they are not given."""
        return jnp.arange(num_rows) if self.row_T is None else self.row_T


def lowbias32(x: jnp.ndarray) -> jnp.ndarray:
    """Return lowbias32 of uint32 numbers: a bijection in which each input bit changes about half of the output bits."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def row_seed(seed: jnp.ndarray, row: jnp.ndarray) -> jnp.ndarray:
    """Return the uint32 seed of a row; the lowest bit of `seed` is not read. Shapes broadcast."""
    return lowbias32((seed | jnp.uint32(1)) + row.astype(jnp.uint32) * jnp.uint32(ROW_STRIDE))


def hash_words(row_seed: jnp.ndarray, column: jnp.ndarray) -> jnp.ndarray:
    """Return a uint32 word of random bits for each element: its row's seed, and its column. Shapes broadcast."""
    return lowbias32(row_seed + column.astype(jnp.uint32) * jnp.uint32(COLUMN_STRIDE))


def threshold(rate: float) -> int:
    """Return the number that 16 random bits must reach for their element to be kept."""
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
    of each row (None = in order from 0). Each element has a word of its own: to put halves of words side by side,
    devices that hold parts of an axis would exchange them.
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

    Each head hashes the words that it shares with its neighbour by itself: XLA fuses the hash into what reads the mask,
    and words that two heads read would be written to memory first.
    """
    row_T, column_K = dropout.number_rows(num_rows), jnp.arange(num_keys)
    row_seed_BNT = row_seed(dropout.seed_BN[:, :, None], row_T[None, None])
    word_BNTK = hash_words(row_seed_BNT[..., None], column_K[None, None, None])
    shift_BN = (dropout.seed_BN & 1) * 16
    half_BNTK = (word_BNTK >> shift_BN[:, :, None, None]) & jnp.uint32(0xFFFF)
    return half_BNTK >= threshold(dropout.rate)

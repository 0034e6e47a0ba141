"""Compute the relative shift inside a tile, and its transpose.

A product with the position keys has a column for each distance; the score of row t and key j needs the column of their
distance (Transformer-XL, appendix B). From one row to the next this is a rotation, and a TPU rotates registers of 128
lanes:

    scores[t, j] = by_distance[t, j + 128 (1 + skip_t) - turn_t]        0 <= turn_t < 128

`turn` rotates the lanes of a register, each row by its own amount; lanes that leave a register enter the next. `skip`
selects registers. Content rows are in order, so `turn` is the row's number in the tile and `skip` is 0. Query rows are
at any positions.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.tpu.tiles import LANES, SUBLANES

Rotate: TypeAlias = Callable[[list[jnp.ndarray]], list[jnp.ndarray]]
"""Function that rotates every row of some registers [T, 128] by its own number of lanes, modulo 128."""


class Shift(NamedTuple):
    """Shift of the rows of a strip, [T, 1] or the same in all lanes."""

    turn_T: jnp.ndarray  # int32, below 128
    skip_T: jnp.ndarray | None  # int32; None = 0 everywhere
    right: Rotate  # by `turn_T`
    left: Rotate  # the inverse


def shift_TK(by_distance_TR: jnp.ndarray, shift: Shift, num_keys: int) -> jnp.ndarray:
    """Convert scores by distance to scores by key."""
    blocks, wanted = _blocks(by_distance_TR), num_keys // LANES + 1
    if shift.skip_T is not None:
        for bit in reversed(range((len(blocks) - wanted).bit_length())):
            count = min(len(blocks), wanted + 2**bit - 1)
            skips_T = (shift.skip_T >> bit) & 1 == 1
            blocks = [
                jnp.where(skips_T, blocks[i + 2**bit], blocks[i]) if i + 2**bit < len(blocks) else blocks[i]
                for i in range(count)
            ]
    rotated = shift.right(blocks[:wanted])
    stays_T = _lanes(rotated[0]) >= shift.turn_T
    return jnp.concatenate([jnp.where(stays_T, right, left) for left, right in pairwise(rotated)], axis=1)


def unshift_TR(grad_TK: jnp.ndarray, shift: Shift, num_distances: int) -> jnp.ndarray:
    """Convert a gradient by key to a gradient by distance: the transpose of `shift_TK`."""
    joined, count = _blocks(grad_TK), num_distances // LANES
    zero = jnp.zeros_like(joined[0])
    stays_T = _lanes(zero) >= shift.turn_T
    rotated = [jnp.where(stays_T, right, left) for right, left in pairwise([zero, *joined, zero])]
    blocks = shift.left(rotated)
    if shift.skip_T is not None:
        for bit in range((count - len(blocks)).bit_length()):
            skips_T = (shift.skip_T >> bit) & 1 == 1
            here = [*blocks, *[zero] * min(2**bit, count - len(blocks))]
            there = [*[zero] * 2**bit, *blocks]
            blocks = [jnp.where(skips_T, far, near) for far, near in zip(there, here, strict=False)]
    return jnp.concatenate(blocks, axis=1)


def rotate_by_gather(blocks: list[jnp.ndarray], *, amount_T: jnp.ndarray) -> list[jnp.ndarray]:
    """Rotate to the right with one permutation of each register (`Rotate`)."""
    source = (_lanes(blocks[0]) - amount_T) & (LANES - 1)
    return [jnp.take_along_axis(block, source, axis=1, mode="promise_in_bounds") for block in blocks]


def rotate_in_order(blocks: list[jnp.ndarray], *, first: Any) -> list[jnp.ndarray]:
    """Rotate the first row by `first` lanes to the right, and each row by one lane more than the row before."""
    return [pltpu.roll(block, first, 1, stride=1, stride_axis=0) for block in blocks]


def rotate_in_order_by_steps(blocks: list[jnp.ndarray], *, first: Any, change: int) -> list[jnp.ndarray]:
    """Rotate the first row by `first` lanes to the right, and each row by one lane more (`change` 1) or less (-1) than
    the row before, for TPUs that permute all rows of a register alike."""
    row_T1, by_register = jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, 1), 0), []
    more_T1, less = (row_T1, 0) if change > 0 else (SUBLANES - 1 - row_T1, SUBLANES - 1)
    for start in range(0, blocks[0].shape[0], SUBLANES):
        registers = [block[start : start + SUBLANES] for block in blocks]
        alike = [pltpu.roll(register, first + change * start - less, 1) for register in registers]
        by_register.append(rotate_by_steps(alike, amount_T=more_T1, below=SUBLANES))
    return [jnp.concatenate(parts, axis=0) for parts in zip(*by_register, strict=True)]


def rotate_by_steps(blocks: list[jnp.ndarray], *, amount_T: jnp.ndarray, below: int = LANES) -> list[jnp.ndarray]:
    """Rotate to the right by successive powers of two, for TPUs that permute all rows of a register alike (`Rotate`).

    below: upper bound of `amount_T`, a power of two
    """
    for bit in range(below.bit_length() - 1):
        # All registers are rotated before any is selected: the compiler overlaps neighbors only.
        rotated = [pltpu.roll(block, 2**bit, 1) for block in blocks]
        is_set_T = (amount_T >> bit) & 1 == 1
        blocks = [jnp.where(is_set_T, there, here) for there, here in zip(rotated, blocks, strict=True)]
    return blocks


def in_pairs(rotate: Rotate) -> Rotate:
    """Return a function that rotates two registers at a time, rounded to bfloat16 in the halves of one."""

    def rotate_pairs(blocks: list[jnp.ndarray]) -> list[jnp.ndarray]:
        bits, upper = [pltpu.bitcast(block, jnp.int32) + 2**15 for block in blocks], -(2**16)
        pairs = zip(bits[::2], [*bits[1::2], bits[-1]], strict=False)
        rotated = rotate([(first & upper) | jax.lax.shift_right_logical(second, 16) for first, second in pairs])
        halves = [half for pair in rotated for half in (pair & upper, pair << 16)]
        return [pltpu.bitcast(half, jnp.float32) for half in halves[: len(blocks)]]

    return rotate_pairs


def _blocks(x: jnp.ndarray) -> list[jnp.ndarray]:
    return [x[:, start : start + LANES] for start in range(0, x.shape[1], LANES)]


def _lanes(block_T: jnp.ndarray) -> jnp.ndarray:
    return jax.lax.broadcasted_iota(jnp.int32, block_T.shape, 1)

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
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from xlnet_jax.kernels.tpu.tiles import LANES

Rotate: TypeAlias = Callable[[jnp.ndarray, jnp.ndarray], jnp.ndarray]
"""Function of ([T, 128], int32 [T, 1]) that rotates every row to the right by its own number of lanes, modulo 128."""


class Shift(NamedTuple):
    """Shift of each row of a tile."""

    turn_T1: jnp.ndarray  # int32, below 128
    skip_T1: jnp.ndarray | None  # int32; None = 0 everywhere
    rotate: Rotate

    def strip(self, start: int, stop: int) -> "Shift":
        """Return the shift of rows `start` to `stop`."""
        skip_T1 = None if self.skip_T1 is None else self.skip_T1[start:stop]
        return Shift(self.turn_T1[start:stop], skip_T1, self.rotate)


def shift_TK(by_distance_TR: jnp.ndarray, shift: Shift, num_keys: int) -> jnp.ndarray:
    """Convert scores by distance to scores by key."""
    rotated = [shift.rotate(block, shift.turn_T1) for block in _blocks(by_distance_TR)]
    stays_T = _lanes(rotated[0]) >= shift.turn_T1
    joined = [jnp.where(stays_T, right, left) for left, right in pairwise(rotated)]
    wanted = num_keys // LANES
    if shift.skip_T1 is not None:
        for bit in reversed(range((len(joined) - wanted).bit_length())):
            count = min(len(joined), wanted + 2**bit - 1)
            skips_T1 = (shift.skip_T1 >> bit) & 1 == 1
            joined = [
                jnp.where(skips_T1, joined[i + 2**bit], joined[i]) if i + 2**bit < len(joined) else joined[i]
                for i in range(count)
            ]
    return jnp.concatenate(joined[:wanted], axis=1)


def unshift_TR(grad_TK: jnp.ndarray, shift: Shift, num_distances: int) -> jnp.ndarray:
    """Convert a gradient by key to a gradient by distance: the transpose of `shift_TK`."""
    joined = _blocks(grad_TK)
    zero, count = jnp.zeros_like(joined[0]), num_distances // LANES - 1
    if shift.skip_T1 is not None:
        for bit in range((count - len(joined)).bit_length()):
            skips_T1 = (shift.skip_T1 >> bit) & 1 == 1
            here = [*joined, *[zero] * min(2**bit, count - len(joined))]
            there = [*[zero] * 2**bit, *joined]
            joined = [jnp.where(skips_T1, far, near) for far, near in zip(there, here, strict=False)]
    stays_T = _lanes(zero) >= shift.turn_T1
    rotated = [jnp.where(stays_T, right, left) for right, left in pairwise([zero, *joined, zero])]
    return jnp.concatenate([shift.rotate(block, LANES - shift.turn_T1) for block in rotated], axis=1)


def rotate_by_gather(block_T: jnp.ndarray, amount_T1: jnp.ndarray) -> jnp.ndarray:
    """Rotate with one permutation of each register (`Rotate`)."""
    source = (_lanes(block_T) - amount_T1) & (LANES - 1)
    return jnp.take_along_axis(block_T, source, axis=1, mode="promise_in_bounds")


def rotate_by_steps(block_T: jnp.ndarray, amount_T1: jnp.ndarray) -> jnp.ndarray:
    """Rotate by successive powers of two, for TPUs that permute all rows of a register alike (`Rotate`)."""
    for bit in range(LANES.bit_length() - 1):
        block_T = jnp.where((amount_T1 >> bit) & 1 == 1, pltpu.roll(block_T, 2**bit, 1), block_T)
    return block_T


def _blocks(x: jnp.ndarray) -> list[jnp.ndarray]:
    return [x[:, start : start + LANES] for start in range(0, x.shape[1], LANES)]


def _lanes(block_T: jnp.ndarray) -> jnp.ndarray:
    return jax.lax.broadcasted_iota(jnp.int32, block_T.shape, 1)

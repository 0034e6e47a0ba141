"""Choose the block that a row reads: a pure function of the row's slot, computed in constant time.

Slots number the block visits of a run: slot = visit * batch_size + row. Without weights, each epoch shuffles all blocks
together. With weights, slots are assigned to the sources evenly, within a few slots of the requested shares. The k-th
slot of a source reads the k-th block of that source's own shuffled epochs, so each block is read once before any is
read again. A source with fewer blocks than its share of a batch repeats blocks within the batch.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from data_pipelines.stateless import Purpose, choice, smallest_first, uniforms

SHARE_UNIT = 2**24  # shares are multiples of 1 / SHARE_UNIT; slots must stay below 2**63 / SHARE_UNIT
LISTED_BLOCKS = 4096  # orders of up to this many blocks are listed
ROUNDS = 8  # of the Feistel network; with 2 or 3 rounds the order is visibly not random


@dataclass(frozen=True)
class Mixture:
    """Blocks of several sources, numbered one source after the other.

    weights: the sources' shares of the slots, all positive; empty = every block is equally likely. Sources without
    blocks are skipped.
    """

    source_blocks: tuple[int, ...]
    weights: tuple[float, ...]
    seed: int

    def own_blocks(self, slots: np.ndarray) -> np.ndarray:
        """Return the block that each slot reads. slots: int [n]. Returns int64 [n]."""
        pool, place = self._deal(slots)
        blocks = np.empty_like(place)
        for i in np.unique(pool):
            first, size, _ = self._pools[:, i].tolist()
            mine = pool == i
            epoch, place_in_epoch = np.divmod(place[mine], size)
            blocks[mine] = first + shuffle(epoch, place_in_epoch, size, self.seed, int(i))
        return blocks

    def epochs(self, slots: np.ndarray) -> np.ndarray:
        """Return how often the source of each slot, or all text without weights, was read before: int64 [n]."""
        pool, place = self._deal(slots)
        return place // self._pools[1][pool]

    def partners(self, blocks: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Return another block of the same source for each block, or the block itself if the source has only one.

        blocks: int [n]; uniform: [n], in [0, 1). Returns int64 [n].
        """
        ends = np.cumsum(self.source_blocks)
        source = np.searchsorted(ends, blocks, side="right")
        size = np.array(self.source_blocks)[source]
        first = ends[source] - size
        return first + (blocks - first + 1 + choice(uniform, np.maximum(size - 1, 1))) % size

    @cached_property
    def _pools(self) -> np.ndarray:
        """First block, number of blocks and share of the slots of each pool, int64 [3, pools]. Each pool is shuffled
        by itself."""
        size = np.array(self.source_blocks)
        first = np.cumsum(size) - size
        if not self.weights:
            return np.array([[0], [size.sum()], [SHARE_UNIT]])
        share = np.maximum(1, np.rint(np.array(self.weights) * SHARE_UNIT)).astype(np.int64)
        return np.array([first, size, share])[:, size > 0]

    def _deal(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (pool, number of earlier slots of that pool) for each slot. Each pool in turn takes its share of the
        remaining slots."""
        shares = self._pools[2]
        left = shares.sum()
        pool = np.full(len(slots), -1)
        place = np.zeros_like(slots)
        rest = slots
        for i, share in enumerate(shares):
            before = rest * share // left
            takes = (pool < 0) & ((rest + 1) * share // left > before)
            pool[takes], place[takes] = i, before[takes]
            rest, left = rest - before, left - share
        return pool, place


def shuffle(epochs: np.ndarray, places: np.ndarray, size: int, seed: int, pool: int) -> np.ndarray:
    """Return the block (0 ... size - 1) at each place of an epoch's order. epochs, places: int [n]. Returns int64 [n].

    Each epoch has its own random order. Short orders are listed, by sorting random numbers. Longer orders are computed
    by a Feistel network on the two digits of the place in base ceil(sqrt(size)). Its round functions are tables of
    random digits. Results above the last block go through the network again (cycle walking; Black and Rogaway, "Ciphers
    with arbitrary finite domains", 2002).
    """
    epoch, which = np.unique(epochs, return_inverse=True)
    if size <= LISTED_BLOCKS:
        return smallest_first(uniforms(seed, Purpose.EPOCH, pool, epoch, size))[which, places]
    side = math.isqrt(size - 1) + 1
    tables = choice(uniforms(seed, Purpose.EPOCH, pool, epoch, ROUNDS * side), side).ravel()
    found = places.astype(np.int64)
    outside = np.arange(len(found))  # numbers that are not blocks yet
    while len(outside):
        left, right = np.divmod(found[outside], side)
        table = which[outside] * (ROUNDS * side)
        for _ in range(ROUNDS):
            left, right = right, (left + tables[table + right]) % side
            table += side
        found[outside] = left * side + right
        outside = outside[found[outside] >= size]
    return found

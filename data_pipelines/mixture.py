"""Choose the block that a row reads: a pure function of the row's slot, computed in constant time.

Slots count the block visits of a run: slot = visit * batch_size + row. Without weights all blocks are shuffled
together, anew in each epoch. With weights the slots are dealt to the sources evenly, within a few slots of the
requested shares. A source's k-th slot reads the k-th block of that source's own shuffled epochs, so each of its blocks
is read once before any is read again. A source with fewer blocks than its share of a batch repeats blocks inside it.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from data_pipelines.stateless import Purpose, choice, smallest_first, uniforms

SHARE_UNIT = 2**24  # shares are whole multiples of 1 / SHARE_UNIT, and slots stay below 2**63 / SHARE_UNIT
LISTED_BLOCKS = 4096  # blocks of a source up to which orders are listed
ROUNDS = 8  # of the Feistel network; with 2 or 3 rounds the order is visibly not a shuffle


@dataclass(frozen=True)
class Mixture:
    """Blocks of several sources, numbered one source after the other.

    `weights` are the sources' shares of the slots, all positive; empty = every block is as likely. A source without
    blocks is left out.
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

    def partners(self, blocks: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Return for each block another block of its source, or itself if the source has one block.

        blocks: int [n]; uniform: [n], in [0, 1). Returns int64 [n].
        """
        ends = np.cumsum(self.source_blocks)
        source = np.searchsorted(ends, blocks, side="right")
        size = np.array(self.source_blocks)[source]
        first = ends[source] - size
        return first + (blocks - first + 1 + choice(uniform, np.maximum(size - 1, 1))) % size

    @cached_property
    def _pools(self) -> np.ndarray:
        """First block, number of blocks and share of the slots of each pool: int64 [3, pools]. Pools are shuffled
        separately."""
        size = np.array(self.source_blocks)
        first = np.cumsum(size) - size
        if not self.weights:
            return np.array([[0], [size.sum()], [SHARE_UNIT]])
        share = np.maximum(1, np.rint(np.array(self.weights) * SHARE_UNIT)).astype(np.int64)
        return np.array([first, size, share])[:, size > 0]

    def _deal(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (pool, slots that this pool had before) of each slot. Each pool in turn takes its share of the slots
        that are left."""
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
    """Return the block, of 0 ... size - 1, at each place of each epoch. epochs, places: int [n]. Returns int64 [n].

    An epoch reads the blocks in a random order of its own. Short orders are listed, by sorting random numbers. Longer
    ones are computed by a Feistel network on the two digits of the place in base ceil(sqrt(size)); its round functions
    are tables of random digits. A number above the last block goes through the network again (cycle walking; Black and
    Rogaway, "Ciphers with arbitrary finite domains", 2002).
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

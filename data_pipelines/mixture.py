"""Which block a row reads: a pure function of its slot, computed in constant time.

Slots count the readings of a run: slot = visit * batch_size + row. Without weights all blocks are shuffled together,
and again in each epoch. With weights the slots are dealt to the sources evenly, never further than a few slots from the
shares that were asked for; a source's k-th slot is the k-th block of its own shuffled epochs, so that it is read once
before any of it is read again. A source that has fewer blocks than its part of a batch repeats them inside the batch.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from data_pipelines.stateless import choice
from xlnet_jax.storage.quiet_tensorflow import tensorflow

SHARE_UNIT = 2**24  # shares are whole multiples of 1 / SHARE_UNIT, and slots stay below 2**63 / SHARE_UNIT
INDEX_SHUFFLE_SEED = 498247692  # what TensorFlow puts before the two numbers of a seed


@dataclass(frozen=True)
class Mixture:
    """The blocks of several sources, one behind the other. `weights`: the sources' shares of the slots, positive;
    empty = all blocks alike. A source without blocks is left out."""

    source_blocks: tuple[int, ...]
    weights: tuple[float, ...]
    seed: int

    def own_blocks(self, slots: np.ndarray) -> np.ndarray:
        """int64 [n]: the blocks that these slots read."""
        pool, place = self._deal(slots)
        first, size, _ = self._pools[:, pool]
        epoch, place = np.divmod(place, size)
        return first + _shuffled(place, size, self.seed, epoch * self._pools.shape[1] + pool)

    def partners(self, blocks: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """int64 [n]: for each block another one of its source, where it has another. uniform: [n]."""
        ends = np.cumsum(self.source_blocks)
        source = np.searchsorted(ends, blocks, side="right")
        size = np.array(self.source_blocks)[source]
        first = ends[source] - size
        return first + (blocks - first + 1 + choice(uniform, np.maximum(size - 1, 1))) % size

    @cached_property
    def _pools(self) -> np.ndarray:
        """int64 [3, pools], of what is shuffled by itself: first block, number of blocks, share of the slots."""
        size = np.array(self.source_blocks)
        first = np.cumsum(size) - size
        if not self.weights:
            return np.array([[0], [size.sum()], [SHARE_UNIT]])
        share = np.maximum(1, np.rint(np.array(self.weights) * SHARE_UNIT)).astype(np.int64)
        return np.array([first, size, share])[:, size > 0]

    def _deal(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(pool, how many slots it had before) of each slot: each pool in turn takes its share of what is left."""
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


def _shuffled(places: np.ndarray, sizes: np.ndarray, seed: int, key: np.ndarray) -> np.ndarray:
    """int64 [n]: where the shuffle (seed, key) of 0 ... size - 1 puts each place; never an array of all blocks."""
    # `tf.random.experimental.index_shuffle` of many seeds: the public function pads a matrix of them on the wrong side.
    seeds = np.stack([np.full_like(key, INDEX_SHUFFLE_SEED), np.full_like(key, seed), key], axis=1)
    shuffle = tensorflow().raw_ops.RandomIndexShuffle
    return shuffle(index=places, seed=seeds, max_index=sizes - 1, rounds=4).numpy()

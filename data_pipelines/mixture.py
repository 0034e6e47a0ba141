"""Choose the block that a row reads: a pure function of the row's slot, computed in constant time.

Slots count the block visits of a run: slot = visit * batch_size + row. Without weights all blocks are shuffled
together, anew in each epoch. With weights the slots are dealt to the sources evenly, within a few slots of the
requested shares. A source's k-th slot reads the k-th block of that source's own shuffled epochs, so each of its blocks
is read once before any is read again. A source with fewer blocks than its share of a batch repeats blocks inside it.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from data_pipelines.stateless import choice
from xlnet_jax.storage.quiet_tensorflow import tensorflow

SHARE_UNIT = 2**24  # shares are whole multiples of 1 / SHARE_UNIT, and slots stay below 2**63 / SHARE_UNIT
INDEX_SHUFFLE_SEED = 498247692  # TensorFlow's index_shuffle puts this number before the two of a seed


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
        first, size, _ = self._pools[:, pool]
        epoch, place = np.divmod(place, size)
        return first + _shuffled(place, size, self.seed, epoch * self._pools.shape[1] + pool)

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


def _shuffled(places: np.ndarray, sizes: np.ndarray, seed: int, key: np.ndarray) -> np.ndarray:
    """Return the image of each place under the shuffle (seed, key) of 0 ... size - 1, without listing all blocks."""
    # The raw op, as tf.random.experimental.index_shuffle pads a matrix of seeds on the wrong side.
    seeds = np.stack([np.full_like(key, INDEX_SHUFFLE_SEED), np.full_like(key, seed), key], axis=1)
    shuffle = tensorflow().raw_ops.RandomIndexShuffle
    return shuffle(index=places, seed=seeds, max_index=sizes - 1, rounds=4).numpy()

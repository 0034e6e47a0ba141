"""Batches of examples: batch t is a pure function of (features, settings, seed, t).

An epoch is a shuffle of all items. To save padding, items of a batch are of about equal length: the shuffle is cut into
pools of many batches, each pool is sorted by length, and the batches of the epoch are shuffled again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from xlnet_jax.dims import Batch
from xlnet_jax.tasks.config import TaskDataConfig
from xlnet_jax.tasks.features import NO_ITEM, Features, bucket_lengths, collate

POOL = 50  # number of batches in a pool


@dataclass(frozen=True)
class TrainingBatches:
    """Training batches of all epochs. features_of returns the features of an epoch, always equally many."""

    features_of: Callable[[int], Features]
    data: TaskDataConfig
    seed: int

    @cached_property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch, whose last one may be partly padding."""
        return -(-len(self.features_of(0)) // self.data.batch_size)

    @property
    def longest(self) -> Batch:
        """Row of the longest batch of the first epoch."""
        _, row = next(batch_by_length(self.features_of(0), self.data, np.arange(1)))
        return row

    def iterate(self, start: int, stop: int, rows: np.ndarray) -> Iterator[Batch]:
        """Yield the batches start, …, stop - 1; rows: the rows of the global batch that this process builds."""
        of_epoch = lru_cache(1)(self._epoch)
        for step in range(start, stop):
            epoch, place = divmod(step, self.steps_per_epoch)
            features, items = of_epoch(epoch)
            yield _collated(features, items[place], rows, self.data)

    def _epoch(self, epoch: int) -> tuple[Features, np.ndarray]:
        """Return the features of an epoch, and their items as [steps, B]."""
        features, rng = self.features_of(epoch), np.random.default_rng([self.seed, epoch])
        order, lengths = rng.permutation(len(features)), features.lengths
        pool = POOL * self.data.batch_size
        pools = [order[i : i + pool] for i in range(0, len(order), pool)]
        by_length = np.concatenate([p[np.argsort(-lengths[p], kind="stable")] for p in pools])
        return features, rng.permutation(_cut(by_length, self.data.batch_size))


def batch_by_length(features: Features, data: TaskDataConfig, rows: np.ndarray) -> Iterator[tuple[np.ndarray, Batch]]:
    """Yield all items once: their numbers [B], NO_ITEM for padding, and their batch.

    The longest come first, so that too little memory shows at once.
    """
    for items in _cut(np.argsort(-features.lengths, kind="stable"), data.batch_size):
        yield items, _collated(features, items, rows, data)


def _collated(features: Features, items: np.ndarray, rows: np.ndarray, data: TaskDataConfig) -> Batch:
    # The longest of the global batch: all processes must agree on the length.
    longest = features.lengths[items[items != NO_ITEM]].max()
    length = next(n for n in bucket_lengths(data) if n >= longest)
    return collate(features, items[rows], length, data.padding_side)


def _cut(items: np.ndarray, size: int) -> np.ndarray:
    """Return items as [batches, size], padded at the end with NO_ITEM."""
    return np.pad(items, (0, -len(items) % size), constant_values=NO_ITEM).reshape(-1, size)

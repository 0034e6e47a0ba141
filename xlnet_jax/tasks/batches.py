"""Batches of examples: batch t is a pure function of (features, settings, seed, t).

An epoch is a shuffle of all items; batches are of about equal length, so that little is padding: the shuffle is cut
into pools of many batches, each sorted by length, and the batches of the epoch are shuffled again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from xlnet_jax.dims import Batch
from xlnet_jax.tasks.config import TaskDataConfig
from xlnet_jax.tasks.features import NO_ITEM, Features, bucket_lengths, collate

POOL = 50  # batches that are sorted by length together


@dataclass(frozen=True)
class TrainingBatches:
    """features_of: those of an epoch, always as many. `rows`, below: those of the global batch that this process
    builds."""

    features_of: Callable[[int], Features]
    data: TaskDataConfig
    seed: int

    @cached_property
    def steps_per_epoch(self) -> int:
        """The last batch that is cut from an epoch may be partly padding."""
        return -(-len(self.features_of(0)) // self.data.batch_size)

    def iterate(self, start: int, stop: int, rows: np.ndarray) -> Iterator[Batch]:
        """The batches of updates start, start + 1, …"""
        of_epoch = lru_cache(1)(self._epoch)
        for step in range(start, stop):
            epoch, place = divmod(step, self.steps_per_epoch)
            features, items = of_epoch(epoch)
            yield _collated(features, items[place], rows, self.data)

    def _epoch(self, epoch: int) -> tuple[Features, np.ndarray]:
        """Features, and their items as [steps, B]."""
        features, rng = self.features_of(epoch), np.random.default_rng([self.seed, epoch])
        order, lengths = rng.permutation(len(features)), features.lengths
        pool = POOL * self.data.batch_size
        pools = [order[i : i + pool] for i in range(0, len(order), pool)]
        by_length = np.concatenate([p[np.argsort(-lengths[p], kind="stable")] for p in pools])
        return features, rng.permutation(_cut(by_length, self.data.batch_size))


def in_order_of_length(
    features: Features, data: TaskDataConfig, rows: np.ndarray
) -> Iterator[tuple[np.ndarray, Batch]]:
    """All items once, the longest first, so that what needs too much memory does so at once: their numbers [B], NO_ITEM
    for padding, and the batch."""
    for items in _cut(np.argsort(-features.lengths, kind="stable"), data.batch_size):
        yield items, _collated(features, items, rows, data)


def _collated(features: Features, items: np.ndarray, rows: np.ndarray, data: TaskDataConfig) -> Batch:
    # Of the whole batch: all processes must agree.
    longest = features.lengths[items[items != NO_ITEM]].max()
    length = next(n for n in bucket_lengths(data) if n >= longest)
    return collate(features, items[rows], length, data.padding_side)


def _cut(items: np.ndarray, size: int) -> np.ndarray:
    """[batches, size], the end filled up with NO_ITEM."""
    return np.pad(items, (0, -len(items) % size), constant_values=NO_ITEM).reshape(-1, size)

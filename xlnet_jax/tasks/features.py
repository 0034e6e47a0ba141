"""Features of examples, and batches of a few shapes from texts of different lengths.

Batch t is a pure function of (features, settings, seed, t). Each epoch shuffles all items, or draws as many by their
weights, and cuts them into pools of many batches. Each pool is sorted by length, so that batches have little padding.
Then the batches of the epoch are shuffled again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from data_pipelines.tokenizer import CLS, PAD, SEP
from xlnet_jax.dims import CLS_SEGMENT, Batch
from xlnet_jax.tasks.config import TaskDataConfig

Outputs = dict[str, np.ndarray]
FILL = {"input_ids": PAD, "excluded": 1}  # padding values; 0 for all other arrays
NO_ITEM = -1


@dataclass(frozen=True)
class Features:
    """Network inputs before padding. Each item is one row of a batch, with C texts of different lengths (C > 1 in
    multiple choice and in groups of documents)."""

    tokens: Mapping[str, Sequence[np.ndarray]]
    """input_ids, segment_ids and others of the task: int32 [tokens] for each of the items * C texts"""
    values: Mapping[str, np.ndarray]
    """[items, …]: labels or numbers; target_weights, if they are not all 1.0"""
    examples: np.ndarray
    """int64 [items]: the example that each item belongs to"""
    positions: Mapping[str, np.ndarray] = field(default_factory=dict)
    """int32 [items, …]: positions of tokens in an item, which shift when padding is on the left"""
    texts_per_item: int = 1
    cut: int = 0
    """number of texts that lost tokens"""

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of tokens of the longest text of each item, int64 [items]."""
        of_texts = np.fromiter(map(len, self.tokens["input_ids"]), np.int64)
        return of_texts.reshape(-1, self.texts_per_item).max(axis=1)


class EncodedExamples(NamedTuple):
    """Examples to evaluate or predict, and their features."""

    examples: Sequence[Any]
    features: Features


def bucket_lengths(data: TaskDataConfig) -> tuple[int, ...]:
    """Return the lengths that batches are padded to, ascending. The last is the maximum length of a text: seq_len, or
    several windows of seq_len."""
    buckets = data.buckets or (-(-data.seq_len // part) for part in (8, 4, 2))
    windows = data.max_windows if data.long_texts == "memory" else 1
    whole = (data.seq_len * n for n in range(1, windows + 1))
    return tuple(sorted({*(b for b in buckets if b < data.seq_len), *whole}))


def collate(
    features: Features, items: Sequence[int] | np.ndarray, length: int, side: Literal["left", "right"]
) -> Batch:
    """Pad items to `length` tokens. NO_ITEM becomes a row of padding with weight 0.

    Returns tokens as [B, L], or [B, C, L] if items have several texts, with attention_mask (1 = real token); values and
    positions as [B, …]; and target_weights, float32 [B] or [B, W].
    """
    chosen = np.asarray(items)
    real = chosen != NO_ITEM
    texts = features.texts_per_item
    present = np.where(real, chosen, 0)
    rows = present[:, None] * texts + np.arange(texts)
    batch: Batch = {}
    lengths = np.array([[len(features.tokens["input_ids"][r]) for r in item] for item in rows])
    lengths *= real[:, None]
    places = np.arange(length)
    first = length - lengths if side == "left" else np.zeros_like(lengths)
    mask = (places >= first[..., None]) & (places < (first + lengths)[..., None])
    for name, arrays in features.tokens.items():
        padded = np.full((*rows.shape, length), FILL.get(name, 0), arrays[0].dtype)
        flat = [arrays[r] for item in rows[real] for r in item]
        padded[mask] = np.concatenate(flat) if flat else padded[mask]
        batch[name] = padded if texts > 1 else padded[:, 0]
    batch["attention_mask"] = (mask if texts > 1 else mask[:, 0]).astype(np.int32)
    for name, array in features.values.items():
        batch[name] = array[present]
    for name, array in features.positions.items():
        moved = array[present] + _column(first[:, 0], array.ndim)
        batch[name] = (moved * _column(real, array.ndim)).astype(np.int32)
    weights = np.asarray(batch.get("target_weights", np.ones(len(rows))), np.float32)
    batch["target_weights"] = weights * _column(real, weights.ndim)
    return batch


def weigh_labels(features: Features) -> np.ndarray:
    """Return the weight of each label: number of labels / (number of classes * labels of its class), as "balanced" of
    scikit-learn; float32 in the shape of values["labels"], 0 for words without one."""
    labels = features.values["labels"]
    is_label = features.values.get("target_weights", np.ones(labels.shape)) > 0
    counts = np.bincount(labels[is_label])
    of_class = is_label.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
    return (of_class[labels] * is_label).astype(np.float32)


def restore_order(parts: Sequence[tuple[np.ndarray, dict[str, Any]]], count: int) -> Outputs:
    """Return the outputs of batches as [count, …] in the order of the items. parts: (items, outputs) of each batch,
    with the items of `batch_by_length`."""
    outputs: Outputs = {}
    for items, of_batch in parts:
        real = items != NO_ITEM
        for name, array in of_batch.items():
            values = np.asarray(array)
            outputs.setdefault(name, np.empty((count, *values.shape[1:]), values.dtype))[items[real]] = values[real]
    return outputs


def _column(of_row: np.ndarray, ndim: int) -> np.ndarray:
    return of_row.reshape(-1, *[1] * (ndim - 1))


POOL = 50  # number of batches in a pool


@dataclass(frozen=True)
class TrainingBatches:
    """Training batches of all epochs. features_of returns the features of an epoch; their number never changes."""

    features_of: Callable[[int], Features]
    data: TaskDataConfig
    seed: int
    sampled: bool = False
    """draw items with replacement, in proportion to the mean weight of their labels (`weigh_labels`)"""

    @cached_property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch. The last one may be partly padding."""
        return -(-len(self.features_of(0)) // self.data.batch_size)

    @property
    def longest(self) -> Batch:
        """One row of the longest batch of the first epoch."""
        _, row = next(batch_by_length(self.features_of(0), self.data, np.arange(1)))
        return row

    def iterate(self, start: int, stop: int, rows: np.ndarray) -> Iterator[Batch]:
        """Yield the batches start, …, stop - 1. rows: the rows of the global batch that this process builds."""
        of_epoch = lru_cache(1)(self._epoch)
        for step in range(start, stop):
            epoch, place = divmod(step, self.steps_per_epoch)
            features, items = of_epoch(epoch)
            yield _collated(features, items[place], rows, self.data)

    def _epoch(self, epoch: int) -> tuple[Features, np.ndarray]:
        """Return the features of an epoch, and the items of its batches, [steps, B]."""
        features, rng = self.features_of(epoch), np.random.default_rng([self.seed, epoch])
        order, lengths = rng.permutation(len(features)), features.lengths
        if self.sampled:
            weights = weigh_labels(features).reshape(len(features), -1).astype(np.float64)
            share = weights.sum(1) / np.maximum((weights > 0).sum(1), 1)
            order = rng.choice(len(features), len(features), p=share / share.sum())
        pool = POOL * self.data.batch_size
        pools = [order[i : i + pool] for i in range(0, len(order), pool)]
        by_length = np.concatenate([p[np.argsort(-lengths[p], kind="stable")] for p in pools])
        return features, rng.permutation(_cut(by_length, self.data.batch_size))


def batch_by_length(features: Features, data: TaskDataConfig, rows: np.ndarray) -> Iterator[tuple[np.ndarray, Batch]]:
    """Yield all items once, as (item numbers [B] with NO_ITEM for padding, batch).

    The longest come first, so that an out-of-memory error comes at once.
    """
    for items in _cut(np.argsort(-features.lengths, kind="stable"), data.batch_size):
        yield items, _collated(features, items, rows, data)


def _collated(features: Features, items: np.ndarray, rows: np.ndarray, data: TaskDataConfig) -> Batch:
    # The longest item of the global batch, because all processes must use the same length.
    longest = features.lengths[items[items != NO_ITEM]].max()
    length = next(n for n in bucket_lengths(data) if n >= longest)
    return collate(features, items[rows], length, data.padding_side)


def _cut(items: np.ndarray, size: int) -> np.ndarray:
    """Return items as [batches, size], padded at the end with NO_ITEM."""
    return np.pad(items, (0, -len(items) % size), constant_values=NO_ITEM).reshape(-1, size)


def encode_text(*texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (input_ids, segment_ids), int32 [tokens], of one or two texts: A <sep> B <sep> <cls>."""
    ids = np.concatenate([*(np.append(text, SEP) for text in texts), [CLS]])
    segments = np.repeat([*range(len(texts)), CLS_SEGMENT], [*(len(text) + 1 for text in texts), 1])
    return ids.astype(np.int32), segments.astype(np.int32)


def tokens_of(texts: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, Sequence[np.ndarray]]:
    """Return the tokens of texts that `encode_text` encoded, by name."""
    return {"input_ids": [ids for ids, _ in texts], "segment_ids": [segments for _, segments in texts]}


def shorten(lengths: list[int], limit: int) -> list[int]:
    """Return lengths of one or two texts that sum to at most `limit`. The longer text is cut first; of equal ones, the
    second."""
    if sum(lengths) <= limit:
        return lengths
    if len(lengths) == 1:
        return [limit]
    second = min(lengths[1], max(limit - lengths[0], limit // 2))
    return [limit - second, second]


def head_and_tail(ids: np.ndarray, limit: int) -> np.ndarray:
    """Return at most `limit` tokens of a text: a quarter from its beginning, the rest from its end (Sun et al. 2019,
    section 5.3.1)."""
    if len(ids) <= limit:
        return ids
    head = round(limit * 0.25)
    return np.concatenate([ids[:head], ids[len(ids) - (limit - head) :]])

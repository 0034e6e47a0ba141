"""Features of examples, and batches of a few shapes from texts of different lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from data_pipelines.tokenizer import PAD
from xlnet_jax.dims import Batch
from xlnet_jax.tasks.config import TaskDataConfig

Outputs = dict[str, np.ndarray]
FILL = {"input_ids": PAD, "excluded": 1}  # of padding; all else is 0
NO_ITEM = -1


@dataclass(frozen=True)
class Features:
    """Features that the network reads, before padding: each item is one row of a batch, with C texts of different
    lengths (C > 1 in multiple choice and in groups of documents)."""

    tokens: Mapping[str, Sequence[np.ndarray]]
    """arrays along the tokens, int32 [tokens] for each of items * C texts: input_ids, segment_ids, a task's own"""
    values: Mapping[str, np.ndarray]
    """[items, …]: labels, numbers; target_weights, where they are not 1.0"""
    examples: np.ndarray
    """int64 [items]: which example it belongs to"""
    positions: Mapping[str, np.ndarray] = field(default_factory=dict)
    """int32 [items, …]: places among the tokens of an item, which move where padding is on the left"""
    texts_per_item: int = 1

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of tokens of the longest text of each item, int64 [items]."""
        of_texts = np.fromiter(map(len, self.tokens["input_ids"]), np.int64)
        return of_texts.reshape(-1, self.texts_per_item).max(axis=1)


def bucket_lengths(data: TaskDataConfig) -> tuple[int, ...]:
    """Return the lengths that batches are padded to, ascending. The last is the longest that a text can have: seq_len,
    or several windows of seq_len that are read in turn."""
    buckets = data.buckets or (-(-data.seq_len // part) for part in (8, 4, 2))
    windows = data.max_windows if data.long_texts == "memory" else 1
    whole = (data.seq_len * n for n in range(1, windows + 1))
    return tuple(sorted({*(b for b in buckets if b < data.seq_len), *whole}))


def collate(
    features: Features, items: Sequence[int] | np.ndarray, length: int, side: Literal["left", "right"]
) -> Batch:
    """Pad items to `length` tokens; NO_ITEM is a row of padding, of weight 0.

    Returns tokens as [B, L] or, for several texts an item, [B, C, L], with attention_mask (1 = real token); values and
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


def restore_order(parts: Sequence[tuple[np.ndarray, dict[str, Any]]], count: int) -> Outputs:
    """Return the outputs of batches, each with its items (`batch_by_length`), as [count, …] in their order."""
    outputs: Outputs = {}
    for items, of_batch in parts:
        real = items != NO_ITEM
        for name, array in of_batch.items():
            values = np.asarray(array)
            outputs.setdefault(name, np.empty((count, *values.shape[1:]), values.dtype))[items[real]] = values[real]
    return outputs


def _column(of_row: np.ndarray, ndim: int) -> np.ndarray:
    return of_row.reshape(-1, *[1] * (ndim - 1))

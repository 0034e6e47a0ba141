"""Rows of many lengths in batches of few shapes, as a program is compiled for each shape."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

SHORTEST = 16
FEW_TOKENS = 128  # a smaller batch takes no less time
T = TypeVar("T")


def padded_length(length: int) -> int:
    """Return the length that a row is padded to: the next power of two, at least SHORTEST."""
    return max(SHORTEST, power_of_two(length))


def batches_by_length(
    lengths: Sequence[int], batch_tokens: int, longest: int = 2**31
) -> Iterator[tuple[list[int], int, int]]:
    """Yield (indices of rows, number of rows in the batch, padded length), the shortest rows first.

    Each row is in one batch, with rows of the same padded length. batch_tokens: most tokens in a batch, padding
    included; a batch has at least one row. longest: largest padded length; no row is longer.
    """
    by_length: dict[int, list[int]] = {}
    for i in np.argsort(np.asarray(lengths), kind="stable").tolist():
        by_length.setdefault(min(padded_length(lengths[i]), longest), []).append(i)
    for length, rows in by_length.items():
        # Where the rows do not fill a batch, round their number up to a power of two: few shapes here too.
        fitting = max(power_of_two(len(rows)), FEW_TOKENS // length)
        size = max(1, min(batch_tokens // length, fitting))
        for begin in range(0, len(rows), size):
            yield rows[begin : begin + size], size, length


def padded(
    rows: Sequence[np.ndarray], num_rows: int, length: int, fill: int, dtype: type[np.number] = np.int32
) -> np.ndarray:
    """Return [num_rows, length]: the rows, padded on the right with `fill`; missing rows are all `fill`."""
    array = np.full((num_rows, length), fill, dtype)
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array


def chunks(items: Iterable[T], size: int, size_of: Callable[[T], int] = lambda item: 1) -> Iterator[list[T]]:
    """Yield lists of items, each ended by the item that brings its total size to `size` or above."""
    chunk: list[T] = []
    total = 0
    for item in items:
        chunk.append(item)
        total += size_of(item)
        if total >= size:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()

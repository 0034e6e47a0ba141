"""Rows of many lengths in batches of few shapes: a program is compiled for each."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

SHORTEST = 16
T = TypeVar("T")


def padded_length(length: int) -> int:
    """What rows of this length are padded to: the next power of two, from SHORTEST on."""
    return max(SHORTEST, _power_of_two(length))


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[tuple[list[int], int, int]]:
    """(indices of rows, number of rows in the batch, padded length), each row once, those of one padded length
    together, the shortest first. batch_tokens: padded tokens of a batch, but it has at least one row."""
    by_length: dict[int, list[int]] = {}
    for i in np.argsort(np.asarray(lengths), kind="stable").tolist():
        by_length.setdefault(padded_length(lengths[i]), []).append(i)
    for length, rows in by_length.items():
        size = max(1, batch_tokens // length)
        # A few texts fill no batch: powers of two again, so that their number makes few shapes too.
        size = min(size, _power_of_two(len(rows)))
        for begin in range(0, len(rows), size):
            yield rows[begin : begin + size], size, length


def padded(rows: Sequence[np.ndarray], num_rows: int, length: int, fill: int) -> np.ndarray:
    """int32 [num_rows, length]: the rows, padded on the right; the rows that are missing are `fill` too."""
    array = np.full((num_rows, length), fill, np.int32)
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last one shorter: what is in memory at once."""
    chunk: list[T] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()

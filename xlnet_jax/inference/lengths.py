"""Rows of many lengths in batches of few shapes: a program is compiled for each."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

SHORTEST = 16
FEW_TOKENS = 128  # less than this takes as long
T = TypeVar("T")


def padded_length(length: int) -> int:
    """What rows of this length are padded to: the next power of two, from SHORTEST on."""
    return max(SHORTEST, power_of_two(length))


def batches_by_length(
    lengths: Sequence[int], batch_tokens: int, longest: int = 2**31
) -> Iterator[tuple[list[int], int, int]]:
    """(indices of rows, number of rows in the batch, padded length), each row once, those of one padded length
    together, the shortest first. batch_tokens: padded tokens of a batch, but it has at least one row. longest: no
    length is above this, padded or not."""
    by_length: dict[int, list[int]] = {}
    for i in np.argsort(np.asarray(lengths), kind="stable").tolist():
        by_length.setdefault(min(padded_length(lengths[i]), longest), []).append(i)
    for length, rows in by_length.items():
        # A few texts fill no batch: powers of two again, so that their number makes few shapes too.
        fitting = max(power_of_two(len(rows)), FEW_TOKENS // length)
        size = max(1, min(batch_tokens // length, fitting))
        for begin in range(0, len(rows), size):
            yield rows[begin : begin + size], size, length


def padded(
    rows: Sequence[np.ndarray], num_rows: int, length: int, fill: int, dtype: type[np.number] = np.int32
) -> np.ndarray:
    """[num_rows, length]: the rows, padded on the right; the rows that are missing are `fill` too."""
    array = np.full((num_rows, length), fill, dtype)
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array


def chunks(items: Iterable[T], size: int, size_of: Callable[[T], int] = lambda item: 1) -> Iterator[list[T]]:
    """Lists of items that come to `size`, or a little more: what is in memory at once."""
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
    """The lowest that is not below n."""
    return 1 << (n - 1).bit_length()

"""Draw random numbers as a pure function of (seed, purpose, step, row), with no generator state to save or restore.

Philox is a counter-based generator: its output at a counter does not depend on earlier output. A row uses the counters
[row * counters_per_row, (row + 1) * counters_per_row), so drawing a range of rows alone gives the same numbers as
drawing the global batch. Only `random_raw` is used, as NumPy guarantees its bits across versions and machines.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

WORDS_PER_COUNTER = 4  # a Philox4x64 counter yields four 64-bit words


class Purpose(IntEnum):
    """Independent streams of random numbers. Never renumber them: add new ones at the end."""

    VISIT = 1
    CUTS = 2
    TARGETS_REUSED = 3
    TARGETS_NEW = 4
    ORDER_REUSED = 5
    ORDER_NEW = 6
    TOKENIZER_SAMPLE = 7
    NEGATIVES = 8
    CANDIDATES = 9
    SCORING_ORDER = 10
    REPLACEMENTS = 11
    SAMPLES = 12
    PREFIX = 13
    EPOCH = 14
    GROUP_SIZE = 15
    DIFFUSION = 16
    FIELD_ORDER = 17
    LENGTHS = 18


def uniforms(seed: int, purpose: Purpose, step: int, rows: Sequence[int] | np.ndarray, width: int) -> np.ndarray:
    """Draw float64 [len(rows), width], uniform in [0, 1). One call of the generator draws a run of consecutive rows."""
    rows = np.asarray(rows)
    counters_per_row = -(-width // WORDS_PER_COUNTER)
    key = np.array([seed % 2**64, purpose], np.uint64)

    def words(run: np.ndarray) -> np.ndarray:
        counter = np.array([run[0] * counters_per_row, 0, step, 0], np.uint64)
        return np.random.Philox(key=key, counter=counter).random_raw(len(run) * counters_per_row * WORDS_PER_COUNTER)

    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    uniform = (np.concatenate([words(run) for run in runs]) >> np.uint64(11)) * 2.0**-53
    return uniform.reshape(len(rows), -1)[:, :width]


def choice(uniform: np.ndarray, size: np.ndarray | int) -> np.ndarray:
    """Map uniform floats in [0, 1) to int64 in [0, size). A size of 0 gives 0."""
    return (uniform * size).astype(np.int64)


def smallest_first(uniform: np.ndarray, count: int | None = None) -> np.ndarray:
    """Return the indices of each row's numbers in ascending order, or of its `count` smallest numbers in any order.

    uniform: [B, n], in [-1, 1). Returns int64 [B, n] or [B, count]. Each index is packed into the low bits of its
    number before sorting, which is several times faster than argsort. Numbers that agree in their first 62 - log2 n
    bits are ordered by index, so ties do not depend on the machine's sorting algorithm.
    """
    bits = max(1, int(uniform.shape[1] - 1).bit_length())
    keys = np.floor(np.ldexp(uniform, min(53, 62 - bits))).astype(np.int64) << bits
    keys |= np.arange(uniform.shape[1])
    if count is None:
        keys.sort(axis=1)
    elif 0 < count < uniform.shape[1]:
        keys.partition(count - 1, axis=1)
    return keys[:, :count] & (1 << bits) - 1

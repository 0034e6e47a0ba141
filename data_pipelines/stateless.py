"""Random numbers as a pure function of (seed, purpose, step, row): nothing to save, nothing to restore.

Philox is a counter-based generator: its output at a counter depends on nothing before it. A row owns the counters
[row * width, (row + 1) * width), so any range of rows can be drawn alone and equals the same rows of the global batch.
Only `random_raw` is used: NumPy guarantees its bits across versions and machines.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

WORDS_PER_COUNTER = 4  # a Philox4x64 counter yields four 64-bit words


class Purpose(IntEnum):
    """Independent streams; a new one is added at the end, so that the others keep their numbers."""

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


def uniforms(seed: int, purpose: Purpose, step: int, rows: Sequence[int] | np.ndarray, width: int) -> np.ndarray:
    """float64 [len(rows), width], uniform in [0, 1). Rows that follow each other are drawn at once."""
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
    """int64 in [0, size) from uniforms in [0, 1); size 0 gives 0."""
    return (uniform * size).astype(np.int64)


def smallest_first(uniform: np.ndarray, count: int | None = None) -> np.ndarray:
    """int64: the indices of each row's numbers in ascending order, equal ones (in 62 - log2 n bits) by index; or, given
    a count, those of its `count` smallest, in any order. uniform: [B, n], in [-1, 1).

    Sorting numbers that carry their index is several times quicker than argsort, and has no ties to be broken by the
    machine's choice of algorithm.
    """
    bits = max(1, int(uniform.shape[1] - 1).bit_length())
    keys = np.floor(np.ldexp(uniform, min(53, 62 - bits))).astype(np.int64) << bits
    keys |= np.arange(uniform.shape[1])
    if count is None:
        keys.sort(axis=1)
    elif 0 < count < uniform.shape[1]:
        keys.partition(count - 1, axis=1)
    return keys[:, :count] & (1 << bits) - 1

"""Pack whole records into windows: several short ones in a window, and long ones cut or continued in the next windows.

In a window a record is <s>, its symbols and <eod>; <pad> fills the rest. A block is `windows_per_block` windows and one
more <pad>, so a corpus of records is read like any other. The records of a part stay together: a worker lays out one
part at a time.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Literal

import numpy as np

from data_pipelines.corpus import Start
from data_pipelines.prepare.encoding import EncodedSource
from data_pipelines.tokenizer import BOS, EOD, PAD
from xlnet_jax.errors import InputError

OPEN = 64  # windows that still take records, at most
STRETCH = np.dtype(
    [(name, np.int64) for name in ("part", "begin", "end", "at")] + [("begins", np.bool_), ("ends", np.bool_)]
)
"""Symbols of a record: part, first symbol, end (after the last), place of the first one in the blocks of the part, and
whether <s> stands before them and <eod> after them"""

Long = Literal["refuse", "cut", "continue"]
"""What to do with a record that is longer than a window: raise InputError, leave out its end (or its beginning, if the
last symbol is held out), or continue it in the next windows"""


@dataclass(frozen=True)
class RecordWindows:
    """How records become windows."""

    seq_len: int
    windows_per_block: int = 1
    long: Long = "refuse"

    @property
    def block_len(self) -> int:
        """Number of tokens in a block."""
        return self.windows_per_block * self.seq_len + 1

    def place(
        self, source: EncodedSource, kept: np.ndarray, dropped_end: int = 0, keeps_end: bool = False
    ) -> np.ndarray:
        """Return the symbols of the kept records with their places, `STRETCH`, sorted by part.

        kept: bool [records]. dropped_end: number of symbols to leave out at the end of each record; records without
        others are left out. keeps_end: a cut leaves out the beginning of a record instead of its end. Raises InputError
        for the first record that is too long, as `long` says.
        """
        pieces = source.pieces[kept]
        begin, end = pieces[:, 1], pieces[:, 2] - 1 - dropped_end  # without <eod>
        has_symbols = end > begin
        numbers, pieces = np.flatnonzero(kept)[has_symbols], pieces[has_symbols]
        begin, end = begin[has_symbols], end[has_symbols]
        if self.long == "refuse" and len(too_long := np.flatnonzero(end - begin + 2 > self.seq_len)):
            raise InputError(
                f"text {source.text.argument}: record {numbers[too_long[0]] + 1:,} has {(end - begin)[too_long[0]]:,} "
                f"symbols, and a window of `data.seq_len` {self.seq_len} has room for {self.seq_len - 2:,} besides "
                f"<s> and <eod> ({len(too_long):,} of {len(end):,} records are longer): raise it, or give `long` cut "
                "or continue"
            )
        parts = np.unique(pieces[:, 0], return_index=True)[1].tolist()
        found = [np.zeros(0, STRETCH)]
        for low, high in zip(parts, [*parts[1:], len(pieces)], strict=True):
            found.append(self._place_part(int(pieces[low, 0]), begin[low:high], end[low:high], keeps_end))
        return np.concatenate(found)

    def _place_part(self, part: int, begin: np.ndarray, end: np.ndarray, keeps_end: bool) -> np.ndarray:
        """Place each record in the fullest open window that has room for it, or in a new one."""
        size, rows = self.seq_len, list[tuple[int, int, int, int, bool, bool]]()
        windows: list[tuple[int, int]] = []  # (room, number) of the open windows, the fullest first
        count = 0
        for first, last in zip(begin.tolist(), end.tolist(), strict=True):
            needed = last - first + 2
            if needed <= size:
                index = bisect.bisect_left(windows, (needed, -1))
                if index == len(windows):
                    windows.append((size, count))
                    count += 1
                room, number = windows.pop(index)
                rows.append((part, first, last, number * size + size - room + 1, True, True))
                bisect.insort(windows, (room - needed, number))
                if len(windows) > OPEN:
                    del windows[0]
                continue
            if self.long == "cut":
                if keeps_end:
                    rows.append((part, last - size + 2, last, count * size + 1, True, True))
                else:
                    rows.append((part, first, first + size - 1, count * size + 1, True, False))
                count += 1
                continue
            # Continue, in windows of one block if they have room, because memory does not go beyond a block.
            per_block = self.windows_per_block
            if (left := -count % per_block) * size < needed <= per_block * size:
                for _ in range(left):
                    bisect.insort(windows, (size, count))
                    count += 1
            begins, ends = True, False
            while not ends:
                room = (per_block - count % per_block) * size
                needed = begins + last - first + 1
                ends = needed <= room
                stop = last if ends else first + room - begins
                rows.append((part, first, stop, count * size + begins, begins, ends))
                count += -(-min(needed, room) // size)
                first, begins = stop, False
            bisect.insort(windows, (-needed % size, count - 1))
            del windows[:-OPEN]
        placed = np.array(rows, STRETCH)
        placed["at"] += placed["at"] // (self.windows_per_block * size)  # each block ends with one more <pad>
        return placed


def count_blocks(stretches: np.ndarray, block_len: int) -> np.ndarray:
    """Return (part, number of blocks) for each part with stretches, int64 [parts, 2]."""
    parts, first = np.unique(stretches["part"], return_index=True)
    ends = stretches["at"] + stretches["end"] - stretches["begin"] + stretches["ends"]
    last = np.maximum.reduceat(ends, first) if len(first) else ends
    return np.column_stack([parts, -(-last // block_len)])


def lay_out(tokens: np.ndarray, stretches: np.ndarray, block_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (tokens, int32 [S], and starts, uint8 [S]) of the blocks of a part. tokens: of the encoded part.
    stretches: of the part."""
    blocks = int(count_blocks(stretches, block_len)[0, 1])
    placed = np.full(blocks * block_len, PAD, np.int32)
    starts = np.full(blocks * block_len, Start.DOCUMENT, np.uint8)
    lengths = stretches["end"] - stretches["begin"]
    inside = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    at = np.repeat(stretches["at"], lengths) + inside
    placed[at] = tokens[np.repeat(stretches["begin"], lengths) + inside]
    starts[at] = Start.NOTHING
    placed[stretches["at"][stretches["begins"]] - 1] = BOS
    last = (stretches["at"] + lengths)[stretches["ends"]]
    placed[last], starts[last] = EOD, Start.NOTHING
    return placed, starts

"""Documents of a window, for batches in which none sees another (data.pack).

Blocks hold running text, so a window packs the end of one document, short ones whole, and the beginning of another, in
the order in which the row reads them. A document ends with its <eod>; <sep> and <cls> at the end of a window belong to
the last one.
"""

from dataclasses import dataclass

import numpy as np

from data_pipelines.windows import text_len
from xlnet_jax.settings.config import DataConfig


@dataclass(frozen=True)
class Documents:
    """Documents of a batch of windows, by the positions of their first tokens."""

    start: np.ndarray  # int32 [B, L], first token of each token's document; below 0 where it stands before the window
    next_start: np.ndarray  # int32 [B], for the token after the text of the window

    def lowest(self, rank: np.ndarray) -> np.ndarray:
        """Return bool [B, L]: True where no token of the document, in the window, has a lower rank. rank: int32
        [B, L]."""
        begins = self.start == np.arange(rank.shape[1])
        begins[:, 0] = True
        flat = np.flatnonzero(begins)
        lowest = np.minimum.reduceat(rank.ravel(), flat)
        return rank == np.repeat(lowest, np.diff(flat, append=rank.size)).reshape(rank.shape)


def first_tokens(begins: np.ndarray) -> np.ndarray:
    """Return int32 [B, S]: index of the first token of each token's document, in blocks in reading order.

    begins: bool [B, S], True where a document begins; the first token of a block counts as one.
    """
    index = np.arange(begins.shape[1], dtype=np.int32)
    return np.maximum.accumulate(np.where(begins, index, 0), axis=1, dtype=np.int32)


def documents_of(first: np.ndarray, begin: int, data: DataConfig) -> Documents:
    """Return the documents of windows that begin at an index of their blocks. first: as `first_tokens` gives it."""
    text = data.reuse_len + text_len(data)
    start = first[:, begin : begin + text + 1] - begin
    specials = np.repeat(start[:, [text - 1]], data.seq_len - text, axis=1)
    return Documents(np.concatenate([start[:, :text], specials], axis=1), start[:, text])

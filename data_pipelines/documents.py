"""Documents of a window, for batches in which none sees another (data.pack).

Blocks hold running text, so a window packs the end of one document, short ones whole, and the beginning of another, in
the order in which the row reads them. A document ends with its <eod>; <sep> and <cls> at the end of a window belong to
the last one.
"""

import numpy as np

from data_pipelines.windows import text_len
from xlnet_jax.dims import Batch
from xlnet_jax.settings.config import DataConfig


def first_tokens(begins: np.ndarray) -> np.ndarray:
    """Return int32 [B, S]: index of the first token of each token's document, in blocks in reading order.

    begins: bool [B, S], True where a document begins; the first token of a block counts as one.
    """
    index = np.arange(begins.shape[1], dtype=np.int32)
    return np.maximum.accumulate(np.where(begins, index, 0), axis=1, dtype=np.int32)


def documents_of(first: np.ndarray, begin: int, data: DataConfig) -> Batch:
    """Return the documents of windows that begin at an index of their blocks. first: as `first_tokens` gives it.

    document_start: int32 [B, L], position of the first token of each token's document; below 0 where it is before the
    window. next_document_start: int32 [B], for the token after the text of the window.
    """
    text = data.reuse_len + text_len(data)
    start = first[:, begin : begin + text + 1] - begin
    specials = np.repeat(start[:, [text - 1]], data.seq_len - text, axis=1)
    starts = np.concatenate([start[:, :text], specials], axis=1)
    return {"document_start": starts, "next_document_start": start[:, text]}


def lowest_of_document(document_start: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Return bool [B, L]: True where no token of the document, in the window, has a lower rank. document_start, rank:
    int32 [B, L]."""
    begins = document_start == np.arange(rank.shape[1])
    begins[:, 0] = True
    flat = np.flatnonzero(begins)
    lowest = np.minimum.reduceat(rank.ravel(), flat)
    return rank == np.repeat(lowest, np.diff(flat, append=rank.size)).reshape(rank.shape)

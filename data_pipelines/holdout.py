"""Which text is held out for validation where it has no text of its own: a rule that a token's place alone decides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from data_pipelines.token_stream import TokenBatch

Rule = Callable[[TokenBatch], np.ndarray]  # bool [T], True = validation


def by_document(threshold: float) -> Rule:
    """Documents whose hash is below the threshold, about that share of them."""
    return lambda batch: _hash(batch.document) < threshold


def last_blocks(blocks: int, fraction: float, block_len: int) -> Rule:
    """The end of a text of so many blocks: about the fraction, whole blocks, at least one on either side."""
    held_out = min(max(1, round(fraction * blocks)), blocks - 1)
    first = (blocks - held_out) * block_len
    return lambda batch: batch.begin + np.arange(len(batch.tokens)) >= first


class LowestDocuments:
    """The documents lowest by hash, as few as together hold `needed` tokens: what to hold out of a small text."""

    def __init__(self, needed: int):
        self._needed = needed
        self._document = np.zeros(0, np.int64)
        self._tokens = np.zeros(0, np.int64)

    def add(self, batch: TokenBatch) -> None:
        document, tokens = np.unique(batch.document, return_counts=True)
        # A document can go on from the batch before. One that was dropped never comes back: those before it suffice.
        document, place = np.unique(np.concatenate([self._document, document]), return_inverse=True)
        tokens = np.bincount(place, np.concatenate([self._tokens, tokens])).astype(np.int64)
        order = np.argsort(_hash(document))
        few = order[: np.searchsorted(np.cumsum(tokens[order]), self._needed) + 1]
        self._document, self._tokens = document[few], tokens[few]

    @property
    def tokens(self) -> int:
        """Tokens in them."""
        return int(self._tokens.sum())

    @property
    def threshold(self) -> float:
        """What `by_document` holds them out by."""
        return float(np.nextafter(_hash(self._document).max(), 1))


def _hash(index: np.ndarray) -> np.ndarray:
    """float64 in [0, 1) for int64 of any shape: the output function of splitmix64 (Steele, Lea, Flood 2014)."""
    x = (index.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53

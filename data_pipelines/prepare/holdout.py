"""Choose the held-out text of a source, by a rule that depends only on a token's position in the source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Place:
    """Position of an encoded part in its source, and the lengths of its documents."""

    file: str
    first_document: int
    first_token: int
    document_tokens: np.ndarray  # int64 [documents], length of each

    @property
    def tokens(self) -> int:
        return int(self.document_tokens.sum())


@dataclass(frozen=True)
class ByDocument:
    """Hold out the documents whose hash is below the threshold, about that share of them; 0 = none, 1 = all."""

    threshold: float

    def count(self, place: Place) -> int:
        """Count the held-out tokens of the part."""
        return int(place.document_tokens[self._documents(place)].sum())

    def mask(self, place: Place) -> np.ndarray:
        """Return which tokens of the part are held out, bool [E]."""
        return np.repeat(self._documents(place), place.document_tokens)

    def _documents(self, place: Place) -> np.ndarray:
        return hash_of(place.first_document, len(place.document_tokens)) < self.threshold


@dataclass(frozen=True)
class LastTokens:
    """Hold out the end of a text, from a token on."""

    first: int

    def count(self, place: Place) -> int:
        return int(np.clip(place.first_token + place.tokens - self.first, 0, place.tokens))

    def mask(self, place: Place) -> np.ndarray:
        return np.arange(place.tokens) >= place.tokens - self.count(place)


Rule = ByDocument | LastTokens
NONE, ALL = ByDocument(0.0), ByDocument(1.0)


def choose(places: Iterable[Place], total: int, fraction: float, block_len: int) -> Rule:
    """Choose the rule for a text of `total` tokens, at least two blocks.

    Hold out about `fraction` of the documents if they are at least a block and at most half of the text; else as few
    documents as make a block; else the last blocks.
    """
    fair = range(block_len, total // 2 + 1)  # acceptable numbers of held-out tokens
    by_share, lowest = ByDocument(fraction), _LowestDocuments(block_len)
    held_out = 0
    for place in places:
        held_out += by_share.count(place)
        lowest.add(place)
    if held_out in fair:
        return by_share
    if lowest.tokens in fair:
        return ByDocument(lowest.threshold)
    blocks = total // block_len
    return LastTokens((blocks - min(max(1, round(fraction * blocks)), blocks - 1)) * block_len)


class _LowestDocuments:
    """The documents with the lowest hashes, as few as together hold `needed` tokens: held out of a small text."""

    def __init__(self, needed: int):
        self._needed = needed
        self._document = np.zeros(0, np.int64)
        self._tokens = np.zeros(0, np.int64)

    def add(self, place: Place) -> None:
        document = np.concatenate([self._document, place.first_document + np.arange(len(place.document_tokens))])
        # A document may continue from the part before. A dropped one never returns: lower hashes suffice already.
        document, index = np.unique(document, return_inverse=True)
        tokens = np.bincount(index, np.concatenate([self._tokens, place.document_tokens])).astype(np.int64)
        order = np.argsort(_hash(document))
        few = order[: np.searchsorted(np.cumsum(tokens[order]), self._needed) + 1]
        self._document, self._tokens = document[few], tokens[few]

    @property
    def tokens(self) -> int:
        return int(self._tokens.sum())

    @property
    def threshold(self) -> float:
        return float(np.nextafter(_hash(self._document).max(), 1))


def hash_of(first: int, count: int) -> np.ndarray:
    """Return the hashes of `count` documents from number `first` on: float64 [count] in [0, 1)."""
    return _hash(first + np.arange(count))


def _hash(index: np.ndarray) -> np.ndarray:
    """Return the output function of splitmix64 (Steele, Lea, Flood 2014) of int64 of any shape, scaled to [0, 1)."""
    x = (index.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53

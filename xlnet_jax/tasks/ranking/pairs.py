"""Pairs of a document and a query as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_pipelines.stateless import choice
from xlnet_jax.tasks.encoding import encode_text


@dataclass(frozen=True)
class Passages:
    """Documents cut into pieces."""

    pieces: list[np.ndarray]
    """tokens, int32 [E], those of a document one after the other"""
    first: np.ndarray
    """int64 [documents]: its first piece"""
    count: np.ndarray
    """int64 [documents]"""

    @classmethod
    def cut(cls, tokens: Sequence[np.ndarray], length: int, most: int) -> Passages:
        """Cut each document into at most `most` pieces of `length` tokens; with one piece a document stays whole."""
        cuts = [
            [ids] if most == 1 else [ids[i : i + length] for i in range(0, max(len(ids), 1), length)][:most]
            for ids in tokens
        ]
        count = np.array([len(cut) for cut in cuts], np.int64)
        return cls([piece for cut in cuts for piece in cut], np.cumsum(count) - count, count)

    def any_of(self, documents: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Return one piece of each document, chosen by uniforms in [0, 1)."""
        return self.first[documents] + choice(uniform, self.count[documents])

    def all_of(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (pieces, the place in `documents` that each comes from), int64 [pieces]."""
        origin = np.repeat(np.arange(len(documents)), self.count[documents])
        before = np.cumsum(self.count[documents]) - self.count[documents]
        return self.first[documents][origin] + np.arange(len(origin)) - before[origin], origin


@dataclass(frozen=True)
class PairTokens(Sequence[np.ndarray]):
    """Tokens of document <sep> query <sep> <cls>, joined when a batch asks for them: the texts of all pairs would be
    many times the collection."""

    documents: Sequence[np.ndarray]
    queries: Sequence[np.ndarray]
    pairs: np.ndarray
    """int64 [texts, 2]: of which document and which query"""
    limit: int
    """tokens of a text at the most, special ones included"""
    part: int
    """of what `encode_text` returns: 0 = input_ids, 1 = segment_ids"""

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, text: Any) -> Any:
        document, query = self.pairs[text]
        return encode_text(self.documents[document], self.queries[query], self.limit)[self.part]

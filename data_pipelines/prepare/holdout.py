"""Choose the held-out documents of a text by their content: equal documents are on the same side, wherever they are.

A document has a hash, the sum of the hashes of its lines, so it does not depend on where parts cut it. Lines that
differ only in case, accents, spaces or punctuation have the same hash: normalisation may make their tokens equal.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_NO_LETTER = re.compile(r"[\W_]+")
_NO_ASCII_LETTER = bytes(code for code in range(128) if not chr(code).isalnum())


def line_hashes(lines: Sequence[str]) -> np.ndarray:
    """Return a hash of the letters and digits of each line, uint64 [lines]; of a line without any, of the line."""
    digests = (hashlib.blake2b(_letters(line) or line.encode(), digest_size=8).digest() for line in lines)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def _letters(line: str) -> bytes:
    if line.isascii():
        return line.lower().encode().translate(None, _NO_ASCII_LETTER)
    return _NO_LETTER.sub("", unicodedata.normalize("NFKD", line).lower()).encode()


@dataclass(frozen=True)
class ByDocument:
    """Hold out the documents whose hash is in the lowest share of all hashes (0 = none, 1 = all), and those of `also`,
    but none of `never`."""

    share: float
    also: tuple[int, ...] = ()
    never: tuple[int, ...] = ()

    def holds_out(self, hashes: np.ndarray) -> np.ndarray:
        """Return which documents are held out, bool [documents]. hashes: uint64 [documents]."""
        chosen = (hashes >> np.uint64(11)) * 2.0**-53 < self.share
        if self.also:
            chosen |= np.isin(hashes, np.array(self.also, np.uint64))
        if self.never:
            chosen &= ~np.isin(hashes, np.array(self.never, np.uint64))
        return chosen


@dataclass(frozen=True)
class LastTokens:
    """Hold out the end of a text, from a token on."""

    first: int


Rule = ByDocument | LastTokens
NONE, ALL = ByDocument(0.0), ByDocument(1.0)


@dataclass(frozen=True)
class Documents:
    """Whole documents of a source, in order, without empty ones."""

    hashes: np.ndarray  # uint64 [documents]
    tokens: np.ndarray  # int64 [documents]

    @property
    def total(self) -> int:
        return int(self.tokens.sum())

    def different(self) -> Documents:
        """Return each different document once, by ascending hash, with the tokens of all that are equal to it."""
        hashes, index = np.unique(self.hashes, return_inverse=True)
        tokens = np.zeros(len(hashes), np.int64)
        np.add.at(tokens, index, self.tokens)
        return Documents(hashes, tokens)


def choose(texts: Sequence[Documents], fraction: float, block_len: int) -> list[Rule]:
    """Choose the rule for each source of a text; each has at least two blocks.

    Hold out about `fraction` of the documents. A source that gives less than a block that way also gives the documents
    with the next hashes; one that gives much more than its share keeps the documents that are too long. One rule serves
    all sources, so that equal documents are on the same side. Hold out the last blocks of a source where no whole
    documents fit.
    """
    rule = ByDocument(fraction)
    for text in texts:
        if not _is_fair(text, rule, block_len):
            rule = _adapt(rule, text, block_len)
    rules: list[Rule] = []
    for text in texts:
        blocks = text.total // block_len
        kept = blocks - min(max(1, round(fraction * blocks)), blocks - 1)
        rules.append(rule if _is_fair(text, rule, block_len) else LastTokens(kept * block_len))
    return rules


def _is_fair(text: Documents, rule: ByDocument, block_len: int) -> bool:
    held_out = int(text.tokens[rule.holds_out(text.hashes)].sum())
    return block_len <= held_out <= _most(text.total, rule.share, block_len)


def _most(total: int, fraction: float, block_len: int) -> int:
    """Return the largest number of tokens to hold out: half of what is not the asked share stays, and a block."""
    return min(total - block_len, round(total * (1 + fraction) / 2))


def _adapt(rule: ByDocument, text: Documents, block_len: int) -> ByDocument:
    """Return the rule with exceptions that suit this text: the fewest documents, by ascending hash."""
    also, never = set(rule.also), set(rule.never)
    room, held_out = _most(text.total, rule.share, block_len), 0
    different = text.different()
    chosen = rule.holds_out(different.hashes).tolist()
    for hash_, tokens, is_chosen in zip(different.hashes.tolist(), different.tokens.tolist(), chosen, strict=True):
        if held_out >= block_len and not is_chosen:
            continue
        if held_out + tokens <= room and hash_ not in never:
            held_out += tokens
            if not is_chosen:
                also.add(hash_)
        elif is_chosen and hash_ not in also:
            never.add(hash_)
    return ByDocument(rule.share, tuple(sorted(also)), tuple(sorted(never)))


def count_cut_copies(texts: Sequence[Documents], rules: Sequence[Rule]) -> int:
    """Count the documents with a held-out end by `LastTokens` that are equal to another document of the text."""
    every, times = np.unique(np.concatenate([text.hashes for text in texts]), return_counts=True)
    copied = 0
    for text, rule in zip(texts, rules, strict=True):
        if isinstance(rule, LastTokens):
            ends = text.hashes[np.cumsum(text.tokens) > rule.first]
            copied += int(np.count_nonzero(times[np.searchsorted(every, ends)] > 1))
    return copied

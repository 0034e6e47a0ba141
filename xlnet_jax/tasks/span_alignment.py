"""Which characters of a text its tokens stand for.

Tokens are those of the normalised text. The original lays the text of the tokens beside the text itself by their
longest common subsequence of characters (`convert_examples_to_features` of run_squad.py), in a band around the
diagonal; here all of it is searched, whole rows at once as bits of one number (Hyyrö 2004, "Bit-parallel LCS-length
computation revisited"), and of the longest ones that is taken which the original takes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from data_pipelines.tokenizer.symbols import SPACE

UNMATCHED = -1
BLOCK_ROWS = 4096  # of a long text so many are kept at a time; those of earlier blocks are computed twice
ENOUGH = 0.8  # of the text's characters must have a partner, as in the original


@dataclass(frozen=True)
class Alignment:
    """Of N characters of a text and the tokens that it was cut into."""

    starts: np.ndarray  # int64 [tokens]: its first character
    ends: np.ndarray  # int64 [tokens]: its last one
    _partner_N: np.ndarray  # int64: the place in the tokens' text; UNMATCHED where there is none
    _token_of_place: np.ndarray  # int64: which token it belongs to

    def tokens_of(self, start: int, end: int) -> tuple[int, int]:
        """First and last token of the characters from start to end, all included."""
        first = _nearest(self._partner_N, np.array([start]), None, is_start=True)
        last = _nearest(self._partner_N, np.array([end]), None, is_start=False)
        return int(self._token_of_place[first[0]]), int(self._token_of_place[last[0]])


class Aligner:
    """Aligns texts with tokens. normalized: what becomes of one character; it is called once for each."""

    def __init__(self, normalized: Callable[[str], str]):
        self._normalized = lru_cache(maxsize=None)(normalized)

    def align(self, text: str, pieces: Sequence[str]) -> Alignment | None:
        """pieces: the text of each token, ▁ for a space. None where text and tokens are too different."""
        tokens_text = "".join(pieces).replace(SPACE, " ")
        if not text or not tokens_text:
            return None
        partner_N = longest_common_subsequence(list(map(self._normalized, text)), tokens_text)
        matched = np.flatnonzero(partner_N != UNMATCHED)
        if len(matched) == 0 or len(matched) < ENOUGH * len(text):
            return None
        place_of = np.full(len(tokens_text), UNMATCHED)
        place_of[partner_N[matched]] = matched
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        last = np.cumsum(lengths) - 1
        return Alignment(
            _nearest(place_of, last - lengths + 1, len(text), is_start=True),
            _nearest(place_of, last, len(text), is_start=False),
            partner_N,
            np.repeat(np.arange(len(pieces)), lengths),
        )


def longest_common_subsequence(a_N: Sequence[str], b_M: Sequence[str]) -> np.ndarray:
    """int64 [N]: the place in b of each of a's elements, ascending, UNMATCHED for those that are left out. Of the
    longest subsequences, going from the end to the beginning, one that ends as early in a, then in b, as it can."""
    places: dict[str, int] = {}
    for j, b in enumerate(b_M):
        places[b] = places.get(b, 0) | 1 << j
    begins = range(0, len(a_N), BLOCK_ROWS)
    before = [0]  # the row above each block
    rows: list[int] = []
    for begin in begins:
        rows = _rows(a_N[begin : begin + BLOCK_ROWS], places, len(b_M), before[-1])
        before.append(rows[-1])
    partner_N = np.full(len(a_N), UNMATCHED)
    count, below = before[-1].bit_count(), (1 << len(b_M)) - 1
    for begin, above in zip(reversed(begins), reversed(before[:-1]), strict=True):
        rows = rows or _rows(a_N[begin : begin + BLOCK_ROWS], places, len(b_M), above)
        rows.insert(0, above)
        for i in range(len(rows) - 1, 0, -1):
            if count and (rows[i - 1] & below).bit_count() < count:
                j = (rows[i] & below).bit_length() - 1
                partner_N[begin + i - 1] = j
                count, below = count - 1, (1 << j) - 1
        rows = []
    return partner_N


def _rows(a_N: Sequence[str], places: Mapping[str, int], length: int, above: int) -> list[int]:
    """Row i has bit j where a[: i + 1] has one more character in common with b[: j + 1] than with b[:j]."""
    full = (1 << length) - 1
    rows = []
    equal = full ^ above
    for a in a_N:
        if hits := equal & places.get(a, 0):
            equal = ((equal + hits) | (equal - hits)) & full
            above = full ^ equal
        rows.append(above)
    return rows


def _nearest(partner: np.ndarray, places: np.ndarray, size: int | None, *, is_start: bool) -> np.ndarray:
    """The partners of these places; where there is none, the first (is_start) or the last of those that lie between the
    partners around it (`_convert_index` of run_squad.py). size: of the partners' text; None = there is nothing behind
    the last partner."""
    at = np.arange(len(partner))
    has = partner != UNMATCHED
    front = np.maximum.accumulate(np.where(has, at, -1))[places]
    rear = np.minimum.accumulate(np.where(has, at, len(partner))[::-1])[::-1][places]
    none_in_front, none_behind = front < 0, rear == len(partner)
    low, high = partner[np.maximum(front, 0)], partner[np.minimum(rear, len(partner) - 1)]
    low = np.where(none_in_front, -1, low)
    high = np.where(none_behind, low + 1 if size is None else size, high)
    if is_start:
        between = np.where(none_behind & (high == low + 1), low, low + 1)
    else:
        between = np.where(none_in_front & (high == 0), 0, high - 1)
    return np.where(has[places], partner[places], between)

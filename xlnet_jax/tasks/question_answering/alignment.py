"""Align the characters of a text with its tokens.

Tokens come from the normalized text. The original aligns their text with the original text by the longest common
subsequence of characters, in a band around the diagonal (`convert_examples_to_features` of run_squad.py). This module
finds the same subsequence, and computes each row of the table at once, as the bits of one integer (Hyyrö 2004,
"Bit-parallel LCS-length computation revisited").
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data_pipelines.tokenizer import SPACE

UNMATCHED = -1
ENOUGH = 0.8  # share of the text's characters that must have a partner, as in the original; white space may have none
BLOCK_ROWS = 4096  # rows of a long text in memory at a time; those of earlier blocks are computed twice
MOST_BAND = 2**14  # so that time grows as the text; the two then differ by at most so many characters anywhere


class Alignment(NamedTuple):
    """Alignment of a text with its tokens."""

    starts: np.ndarray  # int64 [tokens]: index of the first character
    ends: np.ndarray  # int64 [tokens]: index of the last character
    first_tokens: np.ndarray  # int64 [characters]: first token of an answer that starts at this character
    last_tokens: np.ndarray  # int64 [characters]: last token of an answer that ends at this character


def align(characters: Sequence[str], pieces: Sequence[str]) -> Alignment | None:
    """Align a non-empty text with its pieces (▁ for a space). Return None if they differ too much.

    characters: the characters of the text, each normalized by itself.
    """
    tokens_text = "".join(pieces).replace(SPACE, " ")
    partner = _partners(characters, tokens_text)
    matched = np.flatnonzero(partner != UNMATCHED)
    skipped = sum(characters[i].isspace() for i in np.flatnonzero(partner == UNMATCHED).tolist())
    if len(matched) == 0 or len(matched) < ENOUGH * (len(characters) - skipped):
        return None
    partner_of_place = np.full(len(tokens_text), UNMATCHED)
    partner_of_place[partner[matched]] = matched
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    last = np.cumsum(lengths) - 1
    token_of_place = np.repeat(np.arange(len(pieces)), lengths)
    return Alignment(
        _nearest(partner_of_place, len(characters), is_start=True)[last - lengths + 1],
        _nearest(partner_of_place, len(characters), is_start=False)[last],
        token_of_place[_nearest(partner, None, is_start=True)],
        token_of_place[_nearest(partner, None, is_start=False)],
    )


def _nearest(partner: np.ndarray, size: int | None, *, is_start: bool) -> np.ndarray:
    """Return the partner of each position. A position without one gets the first (is_start) or last position between
    its neighbors' partners (`_convert_index` of run_squad.py). size: length of the other text; None = it ends at the
    last partner."""
    places, has = np.arange(len(partner)), partner != UNMATCHED
    front = np.maximum.accumulate(np.where(has, places, UNMATCHED))
    rear = np.minimum.accumulate(np.where(has, places, len(partner))[::-1])[::-1]
    none_in_front, none_behind = front < 0, rear == len(partner)
    low = np.where(none_in_front, -1, partner[front])
    high = partner[np.minimum(rear, len(partner) - 1)]
    high = np.where(none_behind, low + 1 if size is None else size, high)
    if is_start:
        between = np.where(none_behind & (high == low + 1), low, low + 1)
    else:
        between = np.where(none_in_front & (high == 0), 0, high - 1)
    return np.where(has, partner, between)


def _partners(characters: Sequence[str], tokens_text: str) -> np.ndarray:
    length = len(characters)
    is_space = np.array([c.isspace() for c in characters])
    after_space = np.append(True, is_space[:-1])
    is_kept = ~(is_space & (after_space | (np.arange(length) > np.flatnonzero(~is_space).max(initial=-1))))
    kept = (" " if space else c for c, space, keep in zip(characters, is_space, is_kept, strict=True) if keep)
    if not is_space[0] and [" ", *kept] == list(tokens_text):
        return np.where(is_kept, np.cumsum(is_kept), UNMATCHED)  # most texts: they differ only in white space
    band = abs(length - len(tokens_text)) + 5
    widths = band, 2 * band, max(length, len(tokens_text))  # the original gives up after the second
    for width in sorted({min(width, MOST_BAND) for width in widths}):
        partner = longest_common_subsequence(characters, tokens_text, width)
        if np.count_nonzero(partner != UNMATCHED) > ENOUGH * length:
            break
    return partner


def longest_common_subsequence(a: Sequence[str], b: Sequence[str], band: int) -> np.ndarray:
    """Return int64 [len(a)]: the position in b of each element of a, ascending; UNMATCHED for those left out.

    The partner of position i is in [i - band, i + band). Of several longest subsequences, take the one that, going back
    from the end, ends earliest in a, then in b.
    """

    def first_column(begin: int) -> int:
        return min(max(begin - band, 0), len(b))

    begins = range(0, len(a), BLOCK_ROWS)
    firsts: list[int] = []  # the row before each block
    counts: list[int] = []  # bits of that row on the left of the block's columns
    rows, low, count = [0], 0, 0
    for begin in begins:
        passed = first_column(begin) - low
        count += (rows[-1] & (1 << passed) - 1).bit_count()
        low += passed
        firsts.append(rows[-1] >> passed)
        counts.append(count)
        rows = _rows_of_block(a, b, begin, low, band, firsts[-1])
    partner = np.full(len(a), UNMATCHED)
    count, end = count + rows[-1].bit_count(), len(b)  # of the subsequence that is left to find, in b[:end]
    for begin, first, left in zip(reversed(begins), reversed(firsts), reversed(counts), strict=True):
        low = first_column(begin)
        rows = [first, *(rows or _rows_of_block(a, b, begin, low, band, first))]
        below = (1 << end - low) - 1
        for i in range(len(rows) - 1, 0, -1):
            if count and left + (rows[i - 1] & below).bit_count() < count:
                place = (rows[i] & below).bit_length() - 1
                partner[begin + i - 1] = end = low + place
                count, below = count - 1, (1 << place) - 1
        rows = []
    return partner


def _rows_of_block(a: Sequence[str], b: Sequence[str], begin: int, low: int, band: int, row: int) -> list[int]:
    """Return the rows begin, begin + 1, … of the table, after `row`, in the columns of b that their bands reach, from
    `low` on. Outside of these, the rows do not differ from the row before the block, so memory and time do not depend
    on the length of b.

    Bit j of row i is set if a[: i + 1] shares one element more with b[: j + 1] than with b[:j]. The first bit is that
    of column `low`.
    """
    elements = a[begin : begin + BLOCK_ROWS]
    columns = b[low : max(begin + len(elements) - 1 + band, 0)]
    places: dict[str, int] = {}  # columns of each element, as bits
    for j, element in enumerate(columns):
        places[element] = places.get(element, 0) | 1 << j
    full, in_band = (1 << len(columns)) - 1, (1 << 2 * band) - 1
    equal = full ^ row
    rows = []
    for i, element in enumerate(elements, begin - band - low):
        near = in_band << i if i >= 0 else in_band >> -i
        if hits := equal & places.get(element, 0) & near:
            equal = ((equal + hits) | (equal - hits)) & full
            row = full ^ equal
        rows.append(row)
    return rows

"""Align the characters of a text with its tokens.

Tokens come from the normalized text. The original aligns their text with the original text by the longest common
subsequence of characters, in a band around the diagonal (`convert_examples_to_features` of run_squad.py). This module
finds the same subsequence, and computes each row of the table at once, as the bits of one integer (Hyyrö 2004,
"Bit-parallel LCS-length computation revisited").
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data_pipelines.tokenizer import SPACE

UNMATCHED = -1
ENOUGH = 0.8  # share of the text's characters that must have a partner, as in the original
BLOCK_ROWS = 4096  # rows of a long text in memory at a time; those of earlier blocks are computed twice


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
    if len(matched) == 0 or len(matched) < ENOUGH * len(characters):
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
    if characters[0] != " " and [" ", *characters] == list(tokens_text):
        return np.arange(length) + 1  # most texts; no other subsequence of all characters ends as early
    band = abs(length - len(tokens_text)) + 5
    for width in (band, 2 * band, max(length, len(tokens_text))):  # the original gives up after the second
        partner = longest_common_subsequence(characters, tokens_text, width)
        if np.count_nonzero(partner != UNMATCHED) > ENOUGH * length:
            break
    return partner


def longest_common_subsequence(a: Sequence[str], b: Sequence[str], band: int) -> np.ndarray:
    """Return int64 [len(a)]: the position in b of each element of a, ascending; UNMATCHED for those left out.

    The partner of position i is in [i - band, i + band). Of several longest subsequences, take the one that, going back
    from the end, ends earliest in a, then in b.
    """
    places: dict[str, int] = {}
    for j, character in enumerate(b):
        places[character] = places.get(character, 0) | 1 << j
    blocks = [range(begin, min(begin + BLOCK_ROWS, len(a))) for begin in range(0, len(a), BLOCK_ROWS)]
    above = [0]  # the row before each block
    rows: list[int] = []
    for block in blocks:
        rows = _rows(a, block, places, len(b), band, above[-1])
        above.append(rows[-1])
    partner = np.full(len(a), UNMATCHED)
    count, below = above[-1].bit_count(), (1 << len(b)) - 1
    for block, first in zip(reversed(blocks), reversed(above[:-1]), strict=True):
        rows = [first, *(rows or _rows(a, block, places, len(b), band, first))]
        for i in range(len(block), 0, -1):
            if count and (rows[i - 1] & below).bit_count() < count:
                j = (rows[i] & below).bit_length() - 1
                partner[block.start + i - 1] = j
                count, below = count - 1, (1 << j) - 1
        rows = []
    return partner


def _rows(a: Sequence[str], block: range, places: Mapping[str, int], length: int, band: int, row: int) -> list[int]:
    # Bit j of row i is set if a[: i + 1] shares one character more with b[: j + 1] than with b[:j].
    full, in_band = (1 << length) - 1, (1 << 2 * band) - 1
    equal = full ^ row
    rows = []
    for i in block:
        near = in_band << i - band if i >= band else in_band >> band - i
        if hits := equal & places.get(a[i], 0) & near:
            equal = ((equal + hits) | (equal - hits)) & full
            row = full ^ equal
        rows.append(row)
    return rows

"""Special pieces, and where words and sentences begin, from tables with one entry per piece of a vocabulary.

The tables are computed once per vocabulary. A text is then looked up as a whole array.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

SPECIAL_PIECES = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
"""Pieces of the ids 0 to 8 in every vocabulary"""
UNK, BOS, EOS, CLS, SEP, PAD, MASK, EOD, EOP = range(len(SPECIAL_PIECES))
SPACE = "\u2581"  # SentencePiece's ▁: a space before the piece

WORD_START_PUNCTUATION = frozenset('!"#$%&"()*+,-./:;?@[\\]^_`{|}~')  # _is_start_piece of data_utils.py
STOPS = frozenset(".!?…")
WIDE_STOPS = frozenset("。．！？｡")  # not followed by a space
CLOSERS = frozenset("\"'”’»)]）］」』】〉》｣")
# Scripts without spaces between words, as prefixes of the Unicode names of their letters.
UNSPACED_SCRIPTS = ("CJK ", "HIRAGANA ", "KATAKANA ", "HALFWIDTH KATAKANA ", "THAI ", "LAO ", "KHMER ", "MYANMAR ")
# Thai, Lao, Burmese and Khmer; Chinese and Japanese with their punctuation and full-width forms. Korean has spaces.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u3190-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff9f"
    "\U00020000-\U0003ffff]"
)
# Letters that continue a syllable: small kana, and vowels of Thai and Lao that are written after a consonant.
CONTINUING = re.compile(
    r"(HIRAGANA|KATAKANA|HALFWIDTH KATAKANA) LETTER SMALL |(THAI CHARACTER|LAO VOWEL SIGN) "
    r"(SARA A|SARA AA|SARA AM|A|AA|AM|LAKKHANGYAO)$"
)

# Characters used in place of bytes beyond ASCII.
CONTINUATION, PUNCTUATION, IDEOGRAPH, LETTER = "\u0301", "\u2014", "\u4e00", "\u00c9"


class Ending(IntEnum):
    """Last character of a piece, without closing quotes and brackets."""

    OPEN = 0
    STOP = 1
    WIDE_STOP = 2


class First(IntEnum):
    """What the first decisive character of a piece says about whether a sentence begins there."""

    NOTHING = 0  # quotes, dashes, ▁: the next piece decides
    NO_START = 1  # a lowercase letter, a stop, the end of a document
    START = 2  # any other letter or digit
    UNSPACED_START = 3  # a letter of a script without spaces


@dataclass(frozen=True)
class PieceTables:
    """Tables with one entry for each id of a vocabulary.

    As in the original, `is_word_start` is True for pieces that begin with ▁ or '<' and for single ASCII punctuation
    marks. Chinese, Japanese, Thai, Lao, Khmer and Burmese have no spaces between words, so they have few ▁. There, each
    piece that begins with a letter begins a word, except for letters that continue a syllable (ゃ, っ, ะ, า), and so
    does each wide punctuation mark.

    A byte of ASCII is treated as its character, with a space as ▁. Of other characters, only the first byte counts: in
    the range of Chinese and Japanese it begins a word, and in other scripts it is treated as a capital letter.
    """

    is_word_start: np.ndarray  # bool [V]
    has_space: np.ndarray  # bool [V], begins with ▁ or is an unknown word; their count is the number of words
    characters: np.ndarray  # int64 [V], length of the piece's text, with ▁ as a space; 1 for an unknown piece
    bytes: np.ndarray  # int64 [V], length in UTF-8
    is_closer: np.ndarray  # bool [V], only closing quotes and brackets, which belong to the previous sentence
    ending: np.ndarray  # int8 [V], Ending
    first: np.ndarray  # int8 [V], First

    @classmethod
    def of(
        cls,
        pieces: Sequence[str],
        byte_values: Sequence[int | None] | None = None,
        *,
        unknown_is_word: bool = False,
        has_case: bool = True,
    ) -> PieceTables:
        """Compute the tables of a vocabulary.

        byte_values: the byte of each piece; None = the piece is its text. unknown_is_word: <unk> counts as a word.
        has_case: the text has capitals, so no sentence begins with a lowercase letter.
        """
        values = byte_values or [None] * len(pieces)
        texts = [piece if byte is None else _text_of_byte(byte) for piece, byte in zip(pieces, values, strict=True)]
        unknown = np.array([p == SPECIAL_PIECES[UNK] for p in pieces])
        means_nothing = np.array([p in SPECIAL_PIECES for p in pieces]) & ~unknown
        lengths = [len(p) if b is None else b & 0xC0 != 0x80 for p, b in zip(pieces, values, strict=True)]
        sizes = [len(p.replace(SPACE, " ").encode()) if b is None else 1 for p, b in zip(pieces, values, strict=True)]
        return cls(
            is_word_start=np.array([_is_word_start(p) for p in texts]),
            has_space=np.array([p.startswith(SPACE) for p in texts]) | (unknown & unknown_is_word),
            characters=np.where(means_nothing, 0, np.where(unknown, 1, lengths)),
            bytes=np.where(means_nothing, 0, np.where(unknown, 1, sizes)),
            is_closer=np.array([p == "<eop>" or all(c in CLOSERS for c in p) for p in texts]),
            ending=np.array([_ending(p) for p in texts], np.int8),
            first=np.array([_first(p, has_case) for p in texts], np.int8),
        )

    def sentence_starts(self, ids: np.ndarray) -> np.ndarray:
        """Return where sentences begin inside a text: ids, int [E] -> bool [E].

        A sentence begins after a stop and its closing quotes or brackets, unless the next word, after any opening
        quotes, begins with a lowercase letter and the text has capitals. A new word (▁) must begin there, except after
        a wide stop and before scripts without spaces. Abbreviations before a name (Mr. Bennet) count as sentence ends.
        """
        stop = np.flatnonzero(self.ending[ids] != Ending.OPEN)
        begin = _next(np.flatnonzero(~self.is_closer[ids]), stop + 1)
        tells = _next(np.flatnonzero(self.first[ids] != First.NOTHING), begin)
        stop, begin, first = stop[: len(tells)], begin[: len(tells)], self.first[ids[tells]]

        wide = self.ending[ids[stop]] == Ending.WIDE_STOP
        new_word = self.has_space[ids[begin]] | (first == First.UNSPACED_START) | wide
        starts = np.zeros(len(ids), bool)
        starts[begin[(first >= First.START) & new_word]] = True
        return starts


def _next(places: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Return the first of `places` at or after each of `begin`, both ascending. Those past the last place are
    dropped."""
    found = np.searchsorted(places, begin)
    return places[found[found < len(places)]]


def _text_of_byte(byte: int) -> str:
    """Return the character of an ASCII byte; for other bytes, a character of the kind that the byte begins or
    continues."""
    if byte < 0x80:
        return chr(byte).replace(" ", SPACE)
    if byte < 0xC0:
        return CONTINUATION
    if byte == 0xE2:  # U+2000 to U+2FFF
        return PUNCTUATION
    return IDEOGRAPH if 0xE3 <= byte <= 0xE9 else LETTER  # U+3000 to U+9FFF


def _is_word_start(piece: str) -> bool:
    if piece.startswith((SPACE, "<")) or piece in WORD_START_PUNCTUATION:
        return True
    wide_mark = (
        len(piece) == 1 and unicodedata.category(piece)[0] == "P" and unicodedata.east_asian_width(piece) in "WF"
    )
    return wide_mark or (piece != "" and _is_unspaced_letter(piece[0]))


def _is_unspaced_letter(char: str) -> bool:
    name = unicodedata.name(char, "")
    return unicodedata.category(char) == "Lo" and name.startswith(UNSPACED_SCRIPTS) and not CONTINUING.match(name)


def _ending(piece: str) -> Ending:
    last = piece.rstrip("".join(CLOSERS))[-1:]
    if last in WIDE_STOPS:
        return Ending.WIDE_STOP
    return Ending.STOP if last in STOPS else Ending.OPEN


def _first(piece: str, has_case: bool) -> First:
    if piece == "<unk>":
        return First.START
    if piece == "<eod>":
        return First.NO_START
    if piece == "<eop>":
        return First.NOTHING
    for char in piece:
        if char in STOPS or char in WIDE_STOPS or (has_case and char.islower()):
            return First.NO_START
        if _is_unspaced_letter(char):
            return First.UNSPACED_START
        if char.isalnum():
            return First.START
    return First.NOTHING

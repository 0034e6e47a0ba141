"""What the pieces of a vocabulary mean: where words begin, and where sentences begin.

Everything is decided once per piece; a text is then looked up and compared as a whole.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from data_pipelines.tokenizer.symbols import SPACE, SPECIAL_PIECES, UNK

WORD_START_PUNCTUATION = frozenset('!"#$%&"()*+,-./:;?@[\\]^_`{|}~')  # _is_start_piece of data_utils.py
STOPS = frozenset(".!?…")
WIDE_STOPS = frozenset("。．！？｡")  # no space follows them
CLOSERS = frozenset("\"'”’»)]）］」』】〉》｣")
# Beginnings of the Unicode names of letters of the scripts that put no spaces between words.
UNSPACED_SCRIPTS = ("CJK ", "HIRAGANA ", "KATAKANA ", "HALFWIDTH KATAKANA ", "THAI ", "LAO ", "KHMER ", "MYANMAR ")
# Letters to Unicode, but they go on with a syllable: small kana, and vowels of Thai and Lao written behind a consonant.
CONTINUING = re.compile(
    r"(HIRAGANA|KATAKANA|HALFWIDTH KATAKANA) LETTER SMALL |(THAI CHARACTER|LAO VOWEL SIGN) "
    r"(SARA A|SARA AA|SARA AM|A|AA|AM|LAKKHANGYAO)$"
)

GOES_ON, PUNCTUATION, IDEOGRAPH, LETTER = "\u0301", "\u2014", "\u4e00", "\u00c9"  # stand for bytes beyond ASCII


class Ending(IntEnum):
    """How a piece ends, closing quotes and brackets left out."""

    OPEN = 0
    STOP = 1
    WIDE_STOP = 2


class First(IntEnum):
    """The first thing in a piece that tells whether a sentence begins there."""

    NOTHING = 0  # quotes, dashes, ▁: what follows tells
    NO_START = 1  # a lowercase letter, a stop, the end of a document
    START = 2  # any other letter or digit
    UNSPACED_START = 3  # a letter of a script without spaces


@dataclass(frozen=True)
class PieceTables:
    """One entry for each id of a vocabulary.

    `is_word_start`: as in the original, pieces that begin with ▁ or '<' and single ASCII punctuation marks. Scripts
    without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese) have hardly a ▁, so there each piece that begins with
    a letter begins a word, but for letters that only go on with a syllable (ゃ, っ, ะ, า), and so does each wide
    punctuation mark.

    Bytes of ASCII are its characters, a space is ▁. Of other characters the first byte tells what it can: it begins a
    word in the range of Chinese and Japanese; a letter of another script is taken for a capital.
    """

    is_word_start: np.ndarray  # bool [V]
    has_space: np.ndarray  # bool [V], begins with ▁, or is an unknown word: as many as a text has words
    characters: np.ndarray  # int64 [V], of text that it stands for: ▁ is a space, an unknown piece is one
    bytes: np.ndarray  # int64 [V], the same in UTF-8
    is_closer: np.ndarray  # bool [V], closing quotes and brackets only: what came before still ends there
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
        """byte_values: the byte that a piece stands for; None = it stands for its text. has_case: a lowercase letter
        says that no sentence begins with it."""
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
        """Where sentences begin inside a text: ids int [T] -> bool [T].

        A sentence begins behind a stop and its closing quotes or brackets where the next word, opening quotes left out,
        does not begin with a lowercase letter, where text has capitals. A new word must begin there (▁), except behind
        a wide stop and before scripts without spaces. Abbreviations before a name (Mr. Bennet) look the same and count.
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
    """The first of `places` at or behind each of `begin`, all ascending. The last ones may have none: they are cut."""
    found = np.searchsorted(places, begin)
    return places[found[found < len(places)]]


def _text_of_byte(byte: int) -> str:
    """A character that means the same, or of bytes beyond ASCII one of the kind that they can begin or go on with."""
    if byte < 0x80:
        return chr(byte).replace(" ", SPACE)
    if byte < 0xC0:
        return GOES_ON
    if byte == 0xE2:  # U+2000 to U+2FFF
        return PUNCTUATION
    return IDEOGRAPH if 0xE3 <= byte <= 0xE9 else LETTER  # U+3000 to U+9FFF


def _is_word_start(piece: str) -> bool:
    if piece.startswith((SPACE, "<")) or piece in WORD_START_PUNCTUATION:
        return True
    wide_mark = (
        len(piece) == 1 and unicodedata.category(piece)[0] == "P" and unicodedata.east_asian_width(piece) in "WF"
    )
    return wide_mark or _is_unspaced_letter(piece[0])


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

"""Normalize text before SentencePiece encodes it (preprocess_text of the original's prepro_utils.py)."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Normalization = Literal["english", "nfkc", "none"]

# Limits between English and other text: benchmarks/normalization.py prints the shares for texts of many languages.
STRETCH = 30  # words per stretch; a stretch is English or not
FUNCTION_WORDS = 0.08  # minimum share of frequent English words in an English stretch
ENGLISH = 0.85  # minimum share of the letters of an English text in English stretches
ACCENTS = 0.0005  # maximum share of letters with accents in an English text
FEW_ACCENTS = 3  # allowed in any English text, however short
OTHER_SCRIPTS = 0.0001  # maximum share of letters of other scripts in an English text
SHOWN = 5  # letters that the printed reason lists

WORD = re.compile(r"[^\W\d_]+")
# Frequent English words that are rare in other languages (unlike in, is, was, for, on).
ENGLISH_WORDS = frozenset(
    "the of and to that with this it his but not are from have they which you all she there would their been has when "
    "who will by be".split()
)


def normalize(
    text: str,
    kind: Normalization,
    *,
    lower: bool = False,
    keep_accents: bool = False,
    remove_space: bool = True,
) -> str:
    """Return the text with white space collapsed (`remove_space`), normalized by `kind`, then lowercased (`lower`).

    kind: english = straight double quotes and, unless `keep_accents`, NFKD without accents; nfkc = NFKC; none = no
    change.
    """
    if remove_space:
        text = " ".join(text.split())
    if kind == "english":
        text = text.replace("``", '"').replace("''", '"')
        if not (keep_accents or text.isascii()):
            text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    elif kind == "nfkc":
        text = unicodedata.normalize("NFKC", text)
    return text.lower() if lower else text


def guess_normalization(lines: Iterable[str]) -> Normalization:
    """Return english for English text with few accents and almost no other scripts, none if there are no letters or
    most are Thai or Lao, else nfkc.

    Dropping accents ruins most other languages. NFKC splits the vowels ำ and ຳ, and decoding does not join them again.
    """
    return Survey.of(lines).normalization


@dataclass(frozen=True)
class Survey:
    """Counts that decide the normalization of a text."""

    lines: int
    words: int
    letters: int
    english: int
    """letters in stretches of STRETCH words with at least a share of FUNCTION_WORDS frequent English words"""
    beyond_ascii: Counter[str]
    """letters and combining marks that are not ASCII"""

    @classmethod
    def of(cls, lines: Iterable[str]) -> Survey:
        number = words = letters = english = 0
        beyond_ascii: Counter[str] = Counter()
        stretch: list[str] = []

        def is_english() -> bool:
            return sum(word in ENGLISH_WORDS for word in stretch) >= FUNCTION_WORDS * len(stretch)

        for line in lines:
            number += 1
            stretch += WORD.findall(line.lower())
            if not line.isascii():
                beyond_ascii.update(c for c in line if not c.isascii() and _is_letter(c))
            if len(stretch) >= STRETCH:
                size = sum(map(len, stretch))
                words, letters, english = words + len(stretch), letters + size, english + is_english() * size
                stretch.clear()
        size = sum(map(len, stretch))
        return cls(number, words + len(stretch), letters + size, english + is_english() * size, beyond_ascii)

    @property
    def accents(self) -> int:
        """Number of Latin letters with accents that english normalization drops and NFKC keeps."""
        return sum(
            n for c, n in self.beyond_ascii.items() if _is_latin(c) and normalize(c, "english") != normalize(c, "nfkc")
        )

    @property
    def other_scripts(self) -> int:
        """Number of letters in scripts other than Latin."""
        return sum(n for c, n in self.beyond_ascii.items() if not _is_latin(c))

    @property
    def normalization(self) -> Normalization:
        """Normalization to choose for the text."""
        if not self.letters:
            return "none"
        if not self._not_english():
            return "english"
        thai = sum(n for c, n in self.beyond_ascii.items() if "\u0e00" <= c <= "\u0eff")
        return "none" if thai > self.letters / 2 else "nfkc"

    @property
    def reason(self) -> str:
        """Why this normalization was chosen, and how many letters it changes."""
        kind, read = self.normalization, f"{self.lines:,} lines"
        if not self.letters:
            return f"as the {read} have no letters"
        reasons = {
            "english": "ASCII text of few words counts as English" if self._is_short else "the text is English",
            "none": "most letters are Thai or Lao",
            "nfkc": self._not_english(),
        }
        changed = Counter({c: n for c, n in self.beyond_ascii.items() if normalize(c, kind) != c})
        shown = ", ".join(f"{c} {n:,}" for c, n in changed.most_common(SHOWN) if c.isalpha())
        which = f" ({shown}{', …' * (len(changed) > SHOWN)})" if shown else ""
        number = f"{changed.total():,}" if changed else "none"
        return f"as {reasons[kind]}; it changes {number} of {self.letters:,} letters{which} in {read}"

    @property
    def _is_short(self) -> bool:
        """Whether there are too few words to judge, and no letters that could be lost."""
        return self.words < STRETCH and not self.beyond_ascii

    def _not_english(self) -> str:
        """Return why the text does not count as English, or "" if it does."""
        if self._is_short:
            return ""
        if self.english < ENGLISH * self.letters:
            return f"{1 - self.english / self.letters:.0%} of it is not English"
        if self.other_scripts > OTHER_SCRIPTS * self.letters:
            return f"{self.other_scripts / self.letters:.2%} of its letters are not Latin"
        if self.accents > max(FEW_ACCENTS, ACCENTS * self.letters):
            return f"{self.accents / self.letters:.2%} of its letters have accents"
        return ""


def _is_letter(character: str) -> bool:
    return character.isalpha() or unicodedata.category(character).startswith("M")


def _is_latin(character: str) -> bool:
    named = unicodedata.name(character, "").startswith(("LATIN ", "COMBINING ", "MODIFIER LETTER "))
    return named or character < "\u0100"  # such as º and µ

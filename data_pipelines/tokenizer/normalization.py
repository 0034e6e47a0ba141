"""Normalise text before SentencePiece encodes it (preprocess_text of the original's prepro_utils.py)."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

Normalization = Literal["english", "nfkc", "none"]

ENGLISH_SHARE = 0.99  # minimum share of ASCII letters in English
SPACE_CODE = ord(" ")  # all other white space of ASCII has a lower code
FEW = 64  # up to so many characters, replacing each is quicker than normalising the text


def normalize(
    text: str,
    kind: Normalization,
    *,
    lower: bool = False,
    keep_accents: bool = False,
    remove_space: bool = True,
) -> str:
    """Return the text with white space collapsed (`remove_space`), normalised by `kind`, then lowercased (`lower`).

    kind: english = straight double quotes and, unless `keep_accents`, NFKD without accents; nfkc = NFKC; none = nothing
    more.
    """
    if remove_space:
        text = " ".join(text.split())
    if kind == "english":
        text = _straight_quotes(text)
        text = text if keep_accents else _without_accents(text)
    elif kind == "nfkc":
        text = _nfkc(text)
    return text.lower() if lower else text


def normalize_lines(
    lines: Sequence[str], kind: Normalization, *, lower: bool, keep_accents: bool, remove_space: bool
) -> list[str]:
    """Normalise each line as `normalize` does, in a fraction of the time: ASCII lines are joined into one text, and so
    are the others."""
    if not remove_space:
        return [normalize(x, kind, lower=lower, keep_accents=keep_accents, remove_space=False) for x in lines]
    done = list(lines)
    for is_ascii in (True, False):
        places = [i for i, line in enumerate(lines) if line.isascii() == is_ascii]
        # The lines stay apart: no later rule looks across a line feed or makes one.
        text = _without_extra_space([lines[i] for i in places])
        text = normalize(text, kind, lower=lower, keep_accents=keep_accents, remove_space=False)
        if places:
            for i, line in zip(places, text.split("\n"), strict=True):
                done[i] = line
    return done


def guess_normalization(lines: Iterable[str]) -> Normalization:
    """Return english if at least 99 % of the letters are ASCII, none if most are Thai or Lao, else nfkc.

    Dropping marks ruins most other scripts. NFKC splits the vowels ำ and ຳ, and no decoding joins them again.
    """
    letters = [c for line in lines for c in line if c.isalpha()]
    if sum(map(str.isascii, letters)) >= ENGLISH_SHARE * len(letters):
        return "english"
    return "none" if sum("\u0e00" <= c <= "\u0eff" for c in letters) > len(letters) / 2 else "nfkc"


def _without_extra_space(lines: list[str]) -> str:
    text = "\n".join(lines)
    return text if _is_tidy(text, len(lines)) else "\n".join(" ".join(line.split()) for line in lines)


def _is_tidy(text: str, num_lines: int) -> bool:
    """Return whether the text is ASCII whose only white space is line feeds between lines and single spaces inside.

    Passes over bytes: `in` and regular expressions take several times as long to find two spaces in English.
    """
    if not text.isascii() or text[:1] == " " or text[-1:] == " ":
        return False
    code = np.frombuffer(text.encode(), np.uint8)
    blank = code <= SPACE_CODE
    doubled = np.flatnonzero(blank[1:] & blank[:-1])
    around_space = SPACE_CODE in code[doubled] or SPACE_CODE in code[doubled + 1]
    return np.count_nonzero(code < SPACE_CODE) == num_lines - 1 and not around_space


def _straight_quotes(text: str) -> str:
    if "`" in text:
        text = text.replace("``", '"')
    return text.replace("''", '"')


def _without_accents(text: str) -> str:
    if text.isascii():
        return text
    # NFKD without marks changes each character independently of its neighbours.
    mapping = {c: _drop_marks(unicodedata.normalize("NFKD", c)) for c in set(text)}
    changed = {c: new for c, new in mapping.items() if c != new}
    return _replace(text, changed) if len(changed) <= FEW else _drop_marks(unicodedata.normalize("NFKD", text))


def _nfkc(text: str) -> str:
    if text.isascii():
        return text
    # Replace characters that always change, such as full-width punctuation, first: `normalize` is quick for NFKC text.
    changed = [c for c in set(text) if not unicodedata.is_normalized("NFKC", c)]
    if len(changed) <= FEW:
        text = _replace(text, {c: unicodedata.normalize("NFKC", c) for c in changed})
    return "\n".join(unicodedata.normalize("NFKC", line) for line in text.split("\n"))


def _replace(text: str, changed: dict[str, str]) -> str:
    for old, new in changed.items():
        text = text.replace(old, new)
    return text


def _drop_marks(text: str) -> str:
    return "".join(c for c in text if not unicodedata.combining(c))

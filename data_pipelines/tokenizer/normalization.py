"""What is done to a text before SentencePiece sees it (preprocess_text of the original's prepro_utils.py)."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

Normalization = Literal["english", "nfkc", "none"]

ENGLISH_SHARE = 0.99  # of the letters in ASCII
SPACE_CODE = ord(" ")  # all other white space of ASCII is below


def normalize(
    text: str,
    kind: Normalization,
    *,
    lower: bool = False,
    keep_accents: bool = False,
    remove_space: bool = True,
) -> str:
    """The text with its white space collapsed (`remove_space`), and more: english = straight double quotes, NFKD,
    accents dropped unless `keep_accents`, which leaves out NFKD too; nfkc = NFKC; none = no more. `lower` comes last.
    """
    if remove_space:
        text = " ".join(text.split())
    if kind == "english":
        text = _straight_quotes(text)
        if not (keep_accents or text.isascii()):
            text = _without_marks(unicodedata.normalize("NFKD", text))
    elif kind == "nfkc":
        text = unicodedata.normalize("NFKC", text)
    return text.lower() if lower else text


def normalize_lines(
    lines: Sequence[str], kind: Normalization, *, lower: bool, keep_accents: bool, remove_space: bool
) -> list[str]:
    """`normalize` of each line. Tidy ASCII lines, the bulk of English text, are looked at all together."""

    def alone(line: str) -> str:
        return normalize(line, kind, lower=lower, keep_accents=keep_accents, remove_space=remove_space)

    text = "\n".join(lines)
    if not _is_tidy(text, len(lines)):
        return [alone(line) for line in lines]
    if kind == "english":
        text = _straight_quotes(text)
    if lower:
        text = text.lower()
    return [done if line.isascii() else alone(line) for done, line in zip(text.split("\n"), lines, strict=True)]


def guess_normalization(lines: Iterable[str]) -> Normalization:
    """english where at least 99 % of the letters are ASCII, none where most are Thai or Lao, else nfkc.

    Dropping marks ruins most other scripts, and NFKC tears the vowels ำ and ຳ in two, for good.
    """
    letters = [c for line in lines for c in line if c.isalpha()]
    if sum(map(str.isascii, letters)) >= ENGLISH_SHARE * len(letters):
        return "english"
    return "none" if sum("\u0e00" <= c <= "\u0eff" for c in letters) > len(letters) / 2 else "nfkc"


def _is_tidy(text: str, num_lines: int) -> bool:
    """Whether single spaces inside of lines are all the ASCII white space in these lines, joined by line feeds.

    A few passes over bytes: `in` and regular expressions take several times as long to find two spaces in English.
    """
    if text[:1] == " " or text[-1:] == " ":
        return False
    code = np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)
    control, space = code < SPACE_CODE, code == SPACE_CODE
    blank = control | space
    doubled = (space[1:] & blank[:-1]) | (blank[1:] & space[:-1])
    return text.count("\n") == np.count_nonzero(control) == num_lines - 1 and not doubled.any()


def _straight_quotes(text: str) -> str:
    if "`" in text:
        text = text.replace("``", '"')
    return text.replace("''", '"')


def _without_marks(text: str) -> str:
    if not any(map(unicodedata.combining, set(text))):
        return text
    return "".join(itertools.filterfalse(unicodedata.combining, text))

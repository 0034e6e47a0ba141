"""Rules that find what is not prose in a document, each from a published recipe.

    C4       Raffel et al. 2020, section 2.2
    CCNet    Wenzek et al. 2020, section 3.1
    Gopher   Rae et al. 2021, section A.1.1 and table A1

Words are separated by spaces. In a text of a script without spaces, such as Chinese or Thai, the rules count characters
instead, two for a word, and three for one of an n-gram. Gopher's upper bound of 100,000 words is left out, because
books are text; and so is C4's rule of a punctuation mark at the end of each line, which removes headings, lists and
other scripts."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from data_pipelines.tokenizer.pieces import UNSPACED

SOURCES = {
    "repeated line": "after CCNet: the same letters in at least 3 different documents",
    "notice": "C4: cookies, privacy, JavaScript; here only in lines of at most 30 words",
    "lorem ipsum": "C4: filler text",
    "language": "py3langid: another language than those to keep",
    "length": "Gopher: fewer than 50 words",
    "word length": "Gopher: a mean of 3 to 10 characters; other languages than English 2 to 15",
    "symbols": "Gopher: more than 0.1 # or … per word",
    "bullets": "Gopher: more than 90% of the lines begin with a bullet",
    "ellipses": "Gopher: more than 30% of the lines end with an ellipsis",
    "no letters": "Gopher: fewer than 80% of the words have a letter; without spaces, 60% of the characters are one",
    "stop words": "Gopher: English with fewer than 2 of the, be, to, of, and, that, have, with",
    "repetition": "Gopher, table A1: lines, 2- to 4-grams and 5- to 10-grams that repeat",
    "near duplicate": "MinHash of 9-byte shingles: a similarity of at least 0.5 to an earlier document",
}
"""Each rule, in the order of use, and where it comes from"""
OF_LINES = ("repeated line", "notice")
"""Rules that drop lines; the others drop documents"""
UNSPACED_WORD, UNSPACED_GRAM = 2, 3  # characters that count as a word, and as one of an n-gram
NOTICE_WORDS = 30
NOTICES = re.compile(
    r"terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies"
    r"|javascript.*(enable|disable|browser|require|turn)|(enable|disable|requires?|turn on).*javascript"
)
STOP_WORDS = frozenset("the be to of and that have with".split())
BULLETS = ("•", "●", "‣", "◦", "▪", "·", "-", "*", "–", "—", "・")
ELLIPSES = ("…", "...", "[…]", "[...]")
REPEATED_LINES, REPEATED_LINE_CHARACTERS = 0.3, 0.2
TOP_NGRAMS = {2: 0.2, 3: 0.18, 4: 0.16}
REPEATED_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1}
"""Largest shares of the characters of a text, by the length of the n-gram (table A1)"""

INLINE = (
    "a abbr acronym address b bdi bdo big button center cite code data dfn em font i img input ins del kbd label mark "
    "picture q s samp select small source span strike strong sub sup svg path g time tt u var wbr object param embed "
    "iframe canvas audio video map area meta link base noscript script style"
).split()
BLOCK = (
    "article aside blockquote body br caption col colgroup dd details dialog div dl dt fieldset figcaption figure "
    "footer form frame frameset h1 h2 h3 h4 h5 h6 head header hr html legend li main menu nav ol optgroup option p pre "
    "section summary table tbody td template textarea tfoot th thead title tr ul"
).split()
TAG = re.compile(
    rf"(?P<comment><!--)|<!doctype[^<>]*>|</?(?P<name>{'|'.join(INLINE + BLOCK)})(?:\s[^<>]*)?/?>", re.IGNORECASE
)
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
ENDS = {"script": "</script", "style": "</style", "comment": "-->"}


def plain_lines(document: str) -> list[str]:
    """Return the lines of a document without HTML: tags, comments, scripts and styles are dropped, the ends of blocks
    become the ends of lines, and entities become characters. A < that begins no tag of HTML stays."""
    if "<" in document:
        document = "".join(_outside_tags(document))
    for _ in range(2):  # text of the web is often escaped twice
        if "&" in document:
            document = ENTITY.sub(lambda entity: html.unescape(entity[0]), document)
    lines = (" ".join(line.split()) for line in document.splitlines())
    return [line for line in lines if line]


def _outside_tags(document: str) -> Iterator[str]:
    """Yield the text between the tags, with a newline for each tag of a block."""
    lower, at = document.lower(), 0
    if len(lower) != len(document):  # İ has a lower case of two characters
        lower = document
    last = {kind: lower.rfind(end) for kind, end in ENDS.items()}
    for tag in TAG.finditer(document):
        if tag.start() < at:
            continue
        yield document[at : tag.start()]
        name = "comment" if tag["comment"] else (tag["name"] or "").lower()
        at = tag.end()
        if tag.start() < last.get(name, -1) and tag[0][1] != "/":
            at = lower.find(ENDS[name], at)
            at = document.find(">", at) + 1 or len(document)
        yield "\n" if name in BLOCK else ""
    yield document[at:]


def is_notice(line: str) -> bool:
    """Return True for a line about cookies, privacy or JavaScript."""
    return NOTICES.search(line.lower()) is not None and len(line.split()) <= NOTICE_WORDS


def find_fault(lines: Sequence[str], language: str) -> str | None:
    """Return the first rule that a document breaks, None if it breaks none. language: its code, such as en."""
    text = "\n".join(lines)
    spaced = len(UNSPACED.findall(text)) <= sum(map(str.isalpha, text)) / 2
    words = text.split() if spaced else list("".join(text.split()))
    count = len(words) if spaced else len(words) / UNSPACED_WORD
    if "lorem ipsum" in text.lower():
        return "lorem ipsum"
    if count < 50:
        return "length"
    shortest, longest = (3, 10) if language == "en" else (2, 15)
    if spaced and not shortest <= sum(map(len, words)) / count <= longest:
        return "word length"
    if (text.count("#") > 0.1 * count) or (text.count("…") + text.count("...") > 0.1 * count):
        return "symbols"
    if sum(line.startswith(BULLETS) for line in lines) > 0.9 * len(lines):
        return "bullets"
    if sum(line.endswith(ELLIPSES) for line in lines) > 0.3 * len(lines):
        return "ellipses"
    if sum(any(map(_is_letter, word)) for word in words) < (0.8 if spaced else 0.6) * len(words):
        return "no letters"
    if language == "en" and len(STOP_WORDS.intersection(text.lower().split())) < 2:
        return "stop words"
    return "repetition" if _repeats(lines, words, 1 if spaced else UNSPACED_GRAM) else None


def _is_letter(char: str) -> bool:
    return unicodedata.category(char)[0] in "LM"


def _repeats(lines: Sequence[str], words: Sequence[str], per_word: int) -> bool:
    """Return True if lines or n-grams repeat more than table A1 allows. per_word: entries of `words` that count as
    one."""
    seen, again = set[str](), []
    for line in lines:
        again += [line] if line in seen else []
        seen.add(line)
    characters = sum(map(len, lines))
    if len(again) > REPEATED_LINES * len(lines) or sum(map(len, again)) > REPEATED_LINE_CHARACTERS * characters:
        return True
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(word, len(numbers)) for word in words], np.uint64)
    lengths = np.fromiter(map(len, words), np.int64)
    before = np.append(0, np.cumsum(lengths))
    for n, most in (TOP_NGRAMS | REPEATED_NGRAMS).items():
        grams, size = _ngrams(ids, n * per_word), n * per_word
        if not len(grams):
            break
        _, first, group, counts = np.unique(grams, return_index=True, return_inverse=True, return_counts=True)
        if n in TOP_NGRAMS:
            found = counts * (before[first + size] - before[first]) * (counts > 1)
            share = found.max() / before[-1]
        else:
            changes = np.zeros(len(ids) + 1, np.int64)
            repeated = np.flatnonzero(first[group] != np.arange(len(grams)))
            np.add.at(changes, repeated, 1)
            np.add.at(changes, repeated + size, -1)
            share = lengths[np.cumsum(changes)[:-1] > 0].sum() / before[-1]
        if share > most:
            return True
    return False


def _ngrams(ids: np.ndarray, size: int) -> np.ndarray:
    """Return a hash of each n-gram: uint64 [len(ids) - size + 1]."""
    count = max(len(ids) - size + 1, 0)
    hashes = np.zeros(count, np.uint64)
    for k in range(size):
        hashes = (hashes + ids[k : k + count] + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return hashes


_WORD, _DIGITS = re.compile(r"[\W_]+"), re.compile(r"\d+")


def normalize_line(line: str) -> str:
    """Return the letters of a line in lower case, with single spaces and 0 for each number (CCNet). A line without
    letters stays, so that tables are not alike."""
    words = _WORD.sub(" ", line.lower()).strip()
    return _DIGITS.sub("0", words) if any(map(str.isalpha, words)) else line

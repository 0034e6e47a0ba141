"""Encode words that are given one by one as pieces of running text, and cut long sentences into windows.

A word is encoded by itself, so that it has pieces of its own, but as it appears in a text: with ▁ after a space and at
the beginning, without ▁ in a script that has no spaces. So 北 京 never become ▁北 ▁京, pieces that Chinese text lacks.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data_pipelines.tokenizer import EOP, SPECIAL_PIECES, UNK, Tokenizer
from data_pipelines.tokenizer.symbols import SPACE

# Thai, Lao, Burmese and Khmer; Chinese and Japanese with their punctuation and full-width forms. Korean has spaces.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u3190-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff9f"
    "\U00020000-\U0003ffff]"
)


class Pieces(NamedTuple):
    """Pieces of a sentence."""

    ids: np.ndarray  # int32 [tokens]
    places: np.ndarray  # int64 [words]: the first piece of each that holds any of its text


class Window(NamedTuple):
    """Tokens of a sentence that are read together, and the words that are labelled there."""

    begin: int
    end: int
    first_word: int
    last_word: int  # the one after it


def spaces_before(words: Sequence[str]) -> list[bool]:
    """Return for each word whether running text has a space before it; the beginning of a text counts as a space.

    There is none beside a character of a script without spaces, nor, in a sentence with such characters, between two
    single characters: the 1 9 9 8 of a text that was split into characters.
    """
    unspaced = any(map(_UNSPACED.search, words))

    def between(left: str, right: str) -> bool:
        apart = len(left) == len(right) == 1 or _UNSPACED.match(left[-1:]) or _UNSPACED.match(right)
        return not (unspaced and apart)

    return [i == 0 or between(words[i - 1], word) for i, word in enumerate(words)]


def encode_words(sentences: Sequence[Sequence[str]], tokenizer: Tokenizer) -> list[Pieces]:
    """Return the pieces of each sentence. A word of which normalisation leaves nothing becomes <unk>; where the
    tokenizer begins a word with a lone ▁, the piece after it counts as the first."""
    spaced = [list(zip(words, spaces_before(words), strict=True)) for words in sentences]
    distinct = sorted({word for words in spaced for word in words})
    # A piece that is always one of its own, in front of a word, takes the ▁ that begins a text.
    joint = SPECIAL_PIECES[EOP]
    in_front = tokenizer.encode_lines([joint])[0]
    if in_front[-1:].tolist() != [EOP]:
        joint, in_front = "", in_front[:0]
    encoded = tokenizer.encode_lines([word if space else joint + word for word, space in distinct])
    lone = tokenizer.pieces.index(SPACE) if SPACE in tokenizer.pieces else None
    of_word = {}
    for (word, space), ids in zip(distinct, encoded, strict=True):
        ids = ids if space else ids[len(in_front) :]
        ids = ids if len(ids) else np.array([UNK], np.int32)
        of_word[word, space] = ids, int(len(ids) > 1 and ids[0] == lone)
    return [_joined([of_word[word] for word in words]) for words in spaced]


def windows(pieces: Pieces, room: int) -> list[Window]:
    """Return windows of at most `room` tokens over a sentence, each sharing half with the next. Every word is labelled
    in one window: the one with its first piece nearest to the middle."""
    stride = max(room // 2, 1)
    count = 1 + max(-(-(len(pieces.ids) - room) // stride), 0)
    begins = np.minimum(np.arange(count) * stride, max(len(pieces.ids) - room, 0))
    nearest = np.abs(pieces.places[:, None] - (begins + (room - 1) / 2)).argmin(1)
    bounds = np.searchsorted(nearest, np.arange(count + 1))
    found = (
        Window(int(begin), min(int(begin) + room, len(pieces.ids)), int(first), int(last))
        for begin, first, last in zip(begins, bounds[:-1], bounds[1:], strict=True)
    )
    return [window for window in found if window.first_word < window.last_word]


def _joined(words: Sequence[tuple[np.ndarray, int]]) -> Pieces:
    lengths = np.array([len(ids) for ids, _ in words])
    firsts = np.array([first for _, first in words])
    return Pieces(np.concatenate([ids for ids, _ in words]), np.cumsum(lengths) - lengths + firsts)

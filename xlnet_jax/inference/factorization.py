"""Log-probabilities of words of a text, predicted jointly or each by itself (paper, section 2.6: New York is a city).

BERT predicts masked words independently of each other: log p(New | is a city) + log p(York | is a city). XLNet predicts
them in an order, each seeing those before: log p(New | is a city) + log p(York | New, is a city).
"""

import re
from typing import NamedTuple

import numpy as np

from data_pipelines.tokenizer import Tokenizer
from data_pipelines.tokenizer.symbols import SPACE
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.errors import InputError
from xlnet_jax.inference.query_stream import Query, log_likelihoods, scoring_tokenizer

_BYTE = re.compile("<0x[0-9A-F]{2}>")


class Factorizations(NamedTuple):
    """Log-probabilities of the target pieces, float32 [P], nats, in the order of the text."""

    pieces: list[str]
    independent_P: np.ndarray
    dependent_P: np.ndarray


def factorize(pretrained: Pretrained, text: str, targets: str) -> Factorizations:
    """Return both factorizations of the words `targets` of a text. Raises InputError where they are not whole pieces of
    the text, or where the checkpoint has no vocabulary scores."""
    tokenizer = scoring_tokenizer(pretrained)
    ids_L = tokenizer.encode_lines([text])[0]
    positions_P = find_words(tokenizer, ids_L, targets)
    places_P = np.arange(len(positions_P))
    queries = [Query(ids_L, positions_P, rank_P) for rank_P in (np.zeros_like(places_P), places_P)]
    independent_P, dependent_P = log_likelihoods(pretrained, queries, len(queries) * len(ids_L))
    return Factorizations([tokenizer.pieces[i] for i in ids_L[positions_P]], independent_P, dependent_P)


def find_words(tokenizer: Tokenizer, ids_L: np.ndarray, words: str) -> np.ndarray:
    """Return the positions [P] of the first occurrence of these words in a text, whatever is before and after them: a
    space, a quote, a bracket; where they occur at the beginnings of longer words alone, that counts. Raises InputError
    where they are not whole pieces of the text.

    The same word has other pieces after a space (▁city) than after a quote (c ity), so characters are compared.
    """
    pieces = [_characters(tokenizer, i) for i in ids_L.tolist()]
    wanted = "".join(_characters(tokenizer, i) for i in tokenizer.encode_lines([words])[0].tolist()).lstrip(SPACE)
    text, begins, ends = "", {}, {}
    for position, piece in enumerate(pieces):
        begins[len(text) + len(piece) - len(piece.lstrip(SPACE))] = position
        text += piece
        ends[len(text)] = position + 1
    for is_whole in (True, False):
        for at in re.finditer(f"(?={re.escape(wanted)})", text) if wanted else ():
            begin, end = at.start(), at.start() + len(wanted)
            fits = begin in begins and end in ends and not _in_a_word(text, begin)
            if fits and not (is_whole and _in_a_word(text, end)):
                return np.arange(begins[begin], ends[end])
    raise InputError(f"{words!r} is no whole piece or pieces of the text, which reads: {' '.join(pieces)}")


def _characters(tokenizer: Tokenizer, piece: int) -> str:
    """Return a piece as text, with ▁ for a space; of a byte a character of the same number."""
    name = tokenizer.pieces[piece]
    if tokenizer.settings.token_level != "byte" or not _BYTE.fullmatch(name):
        return name
    return chr(int(name[3:5], 16)).replace(" ", SPACE)


def _in_a_word(text: str, place: int) -> bool:
    """Return True where characters of one word are on both sides of a place. From U+2E80 on, as in Chinese, scripts
    have no spaces between words."""
    beside = text[place - 1 : place + 1]
    return 0 < place < len(text) and all(c.isalnum() and c < "\u2e80" for c in beside)

"""Log-probabilities of words of a text, predicted jointly or each by itself (paper, section 2.6: New York is a city).

BERT predicts masked words independently of each other: log p(New | is a city) + log p(York | is a city). XLNet predicts
them in an order, each seeing those before: log p(New | is a city) + log p(York | New, is a city).
"""

from typing import NamedTuple

import numpy as np

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.errors import InputError
from xlnet_jax.inference.query_stream import Query, log_likelihoods, scoring_tokenizer


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
    """Return the positions [P] of the first occurrence of these words in a text. Raises InputError where they are not
    whole pieces of the text."""
    ids_P = tokenizer.encode_lines([words])[0]
    start = next((i for i in range(len(ids_L)) if np.array_equal(ids_L[i : i + len(ids_P)], ids_P)), None)
    if start is None or not len(ids_P):
        pieces = " ".join(tokenizer.pieces[i] for i in ids_L)
        raise InputError(f"{words!r} is no whole piece or pieces of the text, which reads: {pieces}")
    return np.arange(start, start + len(ids_P))

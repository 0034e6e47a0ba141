"""Likeliest pieces in place of hidden words: the query stream predicts at their positions (paper, section 2.3)."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference.factorization import find_words
from xlnet_jax.inference.query_stream import Query, log_probs_PV, scoring_tokenizer
from xlnet_jax.settings.typed import list_of_texts


class Gap(NamedTuple):
    """One hidden piece, and the likeliest pieces in its place. Probabilities are in [0, 1]."""

    position: int  # in the text, in pieces
    piece: str
    probability: float
    likeliest: list[tuple[str, float]]  # most likely first


def fill_in(pretrained: Pretrained, text: str, hidden: str | Iterable[str], likeliest: int = 5) -> list[Gap]:
    """Return a Gap for each hidden piece of a text, in the order of the text. All hidden pieces are predicted from the
    pieces that are not hidden.

    hidden: words of the text, one or several together, each hidden at its first occurrence. likeliest: pieces to return
    for each gap. Raises InputError where `hidden` is not whole pieces of the text, or where the checkpoint has no
    tokenizer or no vocabulary scores.
    """
    tokenizer = scoring_tokenizer(pretrained)
    ids_L = tokenizer.encode_lines([text])[0]
    positions_P = np.unique(
        [i for words in list_of_texts(hidden, "hidden") for i in find_words(tokenizer, ids_L, words)]
    ).astype(np.int32)
    if not len(positions_P):
        return []
    probs_PV = np.exp(log_probs_PV(pretrained, Query(ids_L, positions_P, np.zeros_like(positions_P))))
    best_PQ = np.argsort(-probs_PV, axis=1, kind="stable")[:, :likeliest]
    return [
        Gap(
            int(position),
            tokenizer.pieces[ids_L[position]],
            float(probs_V[ids_L[position]]),
            [(tokenizer.pieces[i], float(probs_V[i])) for i in best_Q],
        )
        for position, probs_V, best_Q in zip(positions_P, probs_PV, best_PQ, strict=True)
    ]

"""How likely words of a text are, told jointly or each by itself (paper, section 2.6: New York is a city).

BERT predicts masked words independently of each other: log p(New | is a city) + log p(York | is a city). XLNet predicts
them in an order, each seeing those before: log p(New | is a city) + log p(York | New, is a city).
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.config import InputError
from xlnet_jax.interop.pretrained import Pretrained
from xlnet_jax.models.inputs import compact_inputs
from xlnet_jax.models.lm import XLNetLM

CONTEXT = -1  # rank of what is given: below every target


class Factorizations(NamedTuple):
    """Log-probabilities of the target pieces, nats, in the order of the text."""

    pieces: list[str]
    independent_P: np.ndarray
    dependent_P: np.ndarray


def factorize(pretrained: Pretrained, text: str, targets: str) -> Factorizations:
    """Both factorizations of the words `targets` of a text. InputError where they are not whole pieces of it, or where
    the checkpoint has no vocabulary scores."""
    tokenizer = pretrained.tokenizer
    if pretrained.head is not None:
        raise InputError(f"the checkpoint has a head for {pretrained.head.task}, and no vocabulary scores")
    if tokenizer is None:
        raise InputError("the checkpoint has no tokenizer: put its spiece.model beside it")
    ids_L, target_ids_P = tokenizer.encode_lines([text, targets])
    start = next((i for i in range(len(ids_L)) if np.array_equal(ids_L[i : i + len(target_ids_P)], target_ids_P)), None)
    if start is None or not len(target_ids_P):
        pieces = " ".join(tokenizer.pieces[i] for i in ids_L)
        raise InputError(f"{targets!r} is no whole piece or pieces of the text, which reads: {pieces}")
    positions_P = np.arange(start, start + len(target_ids_P))
    return Factorizations(
        [tokenizer.pieces[i] for i in target_ids_P],
        _log_probs_P(pretrained, ids_L, positions_P, np.zeros_like(positions_P)),
        _log_probs_P(pretrained, ids_L, positions_P, np.arange(len(positions_P))),
    )


def _log_probs_P(pretrained: Pretrained, ids_L: np.ndarray, positions_P: np.ndarray, rank_P: np.ndarray) -> np.ndarray:
    """Of equal rank, no target sees another; of rising rank, each sees those before."""
    rank_L = np.full(len(ids_L), CONTEXT)
    rank_L[positions_P] = rank_P
    ids_BL = jnp.asarray(ids_L)[None]
    inputs = compact_inputs(
        ids_BL,
        jnp.zeros_like(ids_BL),
        jnp.asarray(rank_L)[None],
        jnp.asarray(positions_P)[None],
        jnp.zeros(1, bool),
        jnp.zeros((1, 0), bool),
    )
    logits_BPV, _ = cast(Any, XLNetLM(pretrained.model).apply)({"params": pretrained.params}, inputs)
    log_probs_PV = jax.nn.log_softmax(logits_BPV[0])
    return np.asarray(log_probs_PV[jnp.arange(len(positions_P)), ids_L[positions_P]])

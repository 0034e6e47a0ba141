"""How likely words of a text are, told jointly or each by itself (paper, section 2.6: New York is a city).

BERT predicts masked words independently of each other: log p(New | is a city) + log p(York | is a city). XLNet predicts
them in an order, each seeing those before: log p(New | is a city) + log p(York | New, is a city).
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.tokenizer import PAD, Tokenizer
from xlnet_jax.config import InputError, ModelConfig
from xlnet_jax.interop.pretrained import Pretrained
from xlnet_jax.models.inputs import Inputs, compact_inputs
from xlnet_jax.models.lm import XLNetLM

CONTEXT = -1  # rank of what is given: below every target
PADDED_TO = 32  # lengths are rounded up to a multiple of this


class Factorizations(NamedTuple):
    """Log-probabilities of the target pieces, nats, in the order of the text."""

    pieces: list[str]
    independent_P: np.ndarray
    dependent_P: np.ndarray


def factorize(pretrained: Pretrained, text: str, targets: str) -> Factorizations:
    """Both factorizations of the words `targets` of a text. InputError where they are not whole pieces of it, or where
    the checkpoint has no vocabulary scores."""
    tokenizer = scoring_tokenizer(pretrained)
    ids_L = tokenizer.encode_lines([text])[0]
    positions_P = find_words(tokenizer, ids_L, targets)
    places_P = np.arange(len(positions_P))

    def log_probs_P(rank_P: np.ndarray) -> np.ndarray:
        return log_probs_PV(pretrained, ids_L, positions_P, rank_P)[places_P, ids_L[positions_P]]

    return Factorizations(
        [tokenizer.pieces[i] for i in ids_L[positions_P]],
        log_probs_P(np.zeros_like(places_P)),
        log_probs_P(places_P),
    )


def scoring_tokenizer(pretrained: Pretrained) -> Tokenizer:
    """The tokenizer of a checkpoint that scores its pieces. InputError where it has none, or no vocabulary scores."""
    if pretrained.head is not None:
        raise InputError(f"the checkpoint has a head for {pretrained.head.task}, and no vocabulary scores")
    if pretrained.tokenizer is None:
        raise InputError("the checkpoint has no tokenizer: put its spiece.model beside it")
    return pretrained.tokenizer


def find_words(tokenizer: Tokenizer, ids_L: np.ndarray, words: str) -> np.ndarray:
    """Positions [P] of the first occurrence of these words among the ids of a text. InputError where they are not whole
    pieces of it."""
    ids_P = tokenizer.encode_lines([words])[0]
    start = next((i for i in range(len(ids_L)) if np.array_equal(ids_L[i : i + len(ids_P)], ids_P)), None)
    if start is None or not len(ids_P):
        pieces = " ".join(tokenizer.pieces[i] for i in ids_L)
        raise InputError(f"{words!r} is no whole piece or pieces of the text, which reads: {pieces}")
    return np.arange(start, start + len(ids_P))


def log_probs_PV(pretrained: Pretrained, ids_L: np.ndarray, positions_P: np.ndarray, rank_P: np.ndarray) -> np.ndarray:
    """Of every piece at these positions, nats, given the rest of the text: the query stream's. Of equal rank (from 0),
    no position sees another; of rising rank, each sees those before."""
    rank_L = np.full(len(ids_L), CONTEXT)
    rank_L[positions_P] = rank_P
    # Padded, so that texts of about the same length share a compilation; nothing sees padding.
    inputs = compact_inputs(
        _padded_1N(ids_L, PAD),
        _padded_1N(np.zeros_like(ids_L), 0),
        _padded_1N(rank_L, CONTEXT),
        _padded_1N(positions_P, positions_P[-1]),
        jnp.zeros(1, bool),
        jnp.zeros((1, 0), bool),
        attention_mask_BL=_padded_1N(np.ones_like(ids_L), 0),
    )
    return np.asarray(_log_probs_BPV(pretrained.model, pretrained.params, inputs)[0, : len(positions_P)])


def _padded_1N(row_N: np.ndarray, value: int) -> jnp.ndarray:
    return jnp.asarray(np.pad(row_N, (0, -len(row_N) % PADDED_TO), constant_values=value)[None], jnp.int32)


def _run_network(config: ModelConfig, params: Any, inputs: Inputs) -> jax.Array:
    logits_BPV, _ = cast(Any, XLNetLM(config).apply)({"params": params}, inputs)
    return jax.nn.log_softmax(logits_BPV)


_log_probs_BPV = jax.jit(_run_network, static_argnums=0)

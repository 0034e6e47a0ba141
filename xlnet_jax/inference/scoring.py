"""Log-likelihoods of texts: log p(x) = sum over t of log p(x_z(t) | x_z(<t)) for a factorization order z.

The query stream predicts each piece from the pieces before it in the order (paper, section 2.2). A causal model has one
order, from left to right: its content stream predicts, and reads <eod> before the first piece.

A text is read as its pieces, without <sep> and <cls>. In pretraining a target sees most of its window; here the first
pieces of an order see almost nothing, unless there is a context, which all pieces see.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from data_pipelines.stateless import Purpose, smallest_first, uniforms
from data_pipelines.tokenizer import EOD, Tokenizer
from xlnet_jax.checkpoints.pretrained import Pretrained, vocabulary_tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.inference import left_to_right
from xlnet_jax.inference.query_stream import Query, log_likelihoods, scoring_tokenizer
from xlnet_jax.settings.typed import list_of_texts

LEFT_TO_RIGHT, RIGHT_TO_LEFT, RANDOM, PSEUDO = "left-to-right", "right-to-left", "random:", "pseudo"
MAX_LEN = 512  # pieces, as in the released models (paper, section 3.1)
BATCH_TOKENS = 4096


class TextScore(NamedTuple):
    """Scores of a text, in nats. With `pseudo` every piece sees all others: the sum is a pseudo-log-likelihood, and
    exp(sum) is no probability of a text."""

    pieces: list[str]
    log_probs_OP: np.ndarray  # float32 [orders, pieces], pieces in the order of the text

    @property
    def log_likelihoods_O(self) -> np.ndarray:
        """Log-likelihood of the text under each order, float64 [orders]."""
        return self.log_probs_OP.sum(axis=1, dtype=np.float64)

    @property
    def log_likelihood(self) -> float:
        """Mean log-likelihood over the orders; pretraining maximises its expectation over all orders."""
        return float(self.log_likelihoods_O.mean())

    @property
    def log_mean_likelihood(self) -> float:
        """Log of the mean of p(text) over the orders: log p(text) where the order is picked at random."""
        return float(np.logaddexp.reduce(self.log_likelihoods_O) - np.log(len(self.log_likelihoods_O)))

    @property
    def log_probs_P(self) -> np.ndarray:
        """Mean log-probability of each piece over the orders, float64 [pieces]; the sum is log_likelihood."""
        return self.log_probs_OP.mean(axis=0, dtype=np.float64)

    @property
    def perplexity(self) -> float:
        """Perplexity per piece."""
        return float(np.exp(-self.log_likelihood / len(self.pieces)))


def score_texts(
    pretrained: Pretrained,
    texts: str | Iterable[str],
    orders: str | Sequence[str] = LEFT_TO_RIGHT,
    *,
    context: str = "",
    seed: int = 0,
    max_len: int = MAX_LEN,
    batch_tokens: int = BATCH_TOKENS,
    names: Sequence[str] | None = None,
) -> list[TextScore]:
    """Return the scores of each text, in the order of the texts.

    orders: one or several of `left-to-right`, `right-to-left`, `random:N` (N orders, drawn from the seed and the length
    of the text alone), and a permutation of the positions of the pieces, counted from 0, as "2 0 1"; or `pseudo` by
    itself. context: text before each of the texts that all pieces see. max_len: most pieces in a text with its context.
    batch_tokens: tokens that the network reads at once; the scores do not depend on it. names: names of the texts in
    errors.

    Raises InputError for orders that do not exist, do not fit a text, or that a causal model does not have; for texts
    without pieces, or longer than max_len; for a checkpoint without a tokenizer or vocabulary scores, or trained on
    masked pieces.
    """
    texts, orders = list_of_texts(texts), list_of_texts(orders, "orders")
    check_orders(orders)
    tokenizer = _tokenizer(pretrained, orders)
    context_ids, *encoded = tokenizer.encode_lines([context, *texts])
    pieces = [[tokenizer.pieces[i] for i in ids_L] for ids_L in encoded]
    names = names or [f"text {i}" for i in range(len(texts))]
    for name, ids_L in zip(names, encoded, strict=True):
        _check_length(len(ids_L), len(context_ids), max_len, name)
    if pretrained.reads_left_to_right:
        told = [np.concatenate([[EOD], context_ids, ids_L]) for ids_L in encoded]
        found = left_to_right.log_likelihoods(pretrained, told, batch_tokens)
        rows_OP = [row_L[None, len(context_ids) :] for row_L in found]
    else:
        reads = [f"{name}, which reads: {' '.join(own)}" for name, own in zip(names, pieces, strict=True)]
        queries = [_queries(context_ids, ids, orders, seed, where) for ids, where in zip(encoded, reads, strict=True)]
        together = iter(log_likelihoods(pretrained, [query for of_text in queries for query in of_text], batch_tokens))
        each = [[next(together) for _ in of_text] for of_text in queries]
        rows_OP = [np.concatenate(rows)[None] if orders == [PSEUDO] else np.stack(rows) for rows in each]
    return [TextScore(own, row_OP) for own, row_OP in zip(pieces, rows_OP, strict=True)]


def _tokenizer(pretrained: Pretrained, orders: Sequence[str]) -> Tokenizer:
    if not pretrained.reads_left_to_right:
        return scoring_tokenizer(pretrained)
    if orders != [LEFT_TO_RIGHT]:
        raise InputError(
            f"`orders` {' '.join(orders)}: the checkpoint reads from left to right ({pretrained.objective}), and no "
            f"piece sees a later one: {LEFT_TO_RIGHT} is the only order that it can score"
        )
    return vocabulary_tokenizer(pretrained)


def check_orders(orders: Sequence[str]) -> None:
    """Raise InputError for orders that do not exist, or that fit no text."""
    if not orders:
        raise InputError("`orders` names no order: give left-to-right, for example")
    if PSEUDO in orders and len(orders) > 1:
        raise InputError(f"`orders` {' '.join(orders)}: {PSEUDO} is no order, and stands by itself")
    for order in orders:
        if order in (LEFT_TO_RIGHT, RIGHT_TO_LEFT, PSEUDO):
            continue
        number = order.removeprefix(RANDOM)
        if order.startswith(RANDOM):
            if not (number.isdecimal() and int(number)):
                raise InputError(f"`orders` {order}: give a number, as in random:8")
        elif not all(word.isdecimal() for word in order.split()) or not order.split():
            raise InputError(
                f"`orders` {order!r}: give {LEFT_TO_RIGHT}, {RIGHT_TO_LEFT}, {RANDOM}N, {PSEUDO}, or the positions of "
                'the pieces, as "2 0 1"'
            )
        elif sorted(positions := [int(word) for word in order.split()]) != list(range(len(positions))):
            raise InputError(f"`orders` {order!r} must have each of 0 to {len(positions) - 1} once")


def _check_length(length: int, given: int, max_len: int, name: str) -> None:
    if not length:
        raise InputError(f"{name}: the tokenizer leaves nothing of it")
    if given + length > max_len:
        with_context = " with the context" if given else ""
        raise InputError(
            f"{name}: {given + length} pieces{with_context}, and {max_len} at most: split it, or raise `max_len`"
        )


def _queries(context_ids: np.ndarray, ids_L: np.ndarray, orders: Sequence[str], seed: int, name: str) -> list[Query]:
    told_L = np.concatenate([context_ids, ids_L])
    places_P = np.arange(len(ids_L))
    positions_P = len(context_ids) + places_P
    if PSEUDO in orders:
        # One query for each piece: with several targets, content rows that see a piece would pass it on to its own row.
        return [Query(told_L, positions_P[i : i + 1], places_P[:1]) for i in places_P]
    return [
        Query(told_L, positions_P, np.argsort(order_P))
        for order in orders
        for order_P in _permutations(order, len(ids_L), seed, name)
    ]


def _permutations(order: str, length: int, seed: int, name: str) -> list[np.ndarray]:
    """Return arrays of positions in the order of prediction; argsort of one gives the rank of each position."""
    if order == LEFT_TO_RIGHT:
        return [np.arange(length)]
    if order == RIGHT_TO_LEFT:
        return [np.arange(length)[::-1]]
    if order.startswith(RANDOM):
        draws = range(int(order.removeprefix(RANDOM)))
        drawn = [uniforms(seed, Purpose.SCORING_ORDER, draw, [length], length) for draw in draws]
        return [smallest_first(uniform)[0] for uniform in drawn]
    positions = np.array([int(word) for word in order.split()])
    if len(positions) != length:
        raise InputError(f"`orders` {order!r} has {len(positions)} positions, and there are {length} pieces in {name}")
    return [positions]

"""Relative effective context length, RECL: the longest context that a model gains by, relative to a group of models
(Dai et al. 2019, section 4.3 and appendix C).

The loss of model i on token t, given the c pieces before it, is l_i(c, t) = -log p_i(x_t | x_{t-c} … x_{t-1}). Then

    b(c, t)    = min over i of l_i(c, t)                   best loss of the group with the short context
    T(c)       = the share r of the tokens with the largest b(c, t)
    f_i(c, c') = mean over T(c) of min(b(c, t), l_i(c', t))
    g_i(c, c') = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)

and the RECL of model i is the first c, in rising order, from which the next length c' gains g_i(c, c') less than a
threshold of 0.01 in perplexity. All models must improve on the same baseline, so that a model that is weak with a short
context gains nothing by its weakness. The paper's lengths are multiples of one length.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from xlnet_jax.errors import InputError

THRESHOLD = 0.01


class Recl(NamedTuple):
    """Relative effective context length of one model."""

    length: int
    is_bound: bool  # even the last step gained enough: the length is at least this


def gains(short_UP: np.ndarray, long_UP: np.ndarray, share: float) -> np.ndarray:
    """Return g of each model, float64 [U]. short, long: losses l_i(c, t) and l_i(c', t), nats; share: r."""
    base_P = short_UP.min(axis=0).astype(np.float64)
    hardest = np.argsort(-base_P, kind="stable")[: max(round(share * len(base_P)), 1)]
    relative_U = np.minimum(base_P, long_UP)[:, hardest].mean(axis=1)
    return 1 - np.exp(relative_U - base_P[hardest].mean())


def effective_context_lengths(
    losses_UP: Callable[[int], np.ndarray],
    lengths: Sequence[int],
    shares: Sequence[float],
    threshold: float = THRESHOLD,
) -> dict[float, list[Recl]]:
    """Return the RECL of each model, by the share of the tokens that counts.

    losses_UP: function from a context length c to the losses l_i(c, t), nats; called at most once for each length, and
    not for lengths above the one from which no model gains. lengths: rising. Raises InputError for other lengths, and
    for shares or a threshold out of range.
    """
    check(lengths, shares, threshold)
    found: dict[float, dict[int, Recl]] = {share: {} for share in shares}
    short_UP = losses_UP(lengths[0])
    models = range(len(short_UP))
    for short, long in pairwise(lengths):
        long_UP = losses_UP(long)
        for share, decided in found.items():
            gain_U = gains(short_UP, long_UP, share)
            decided |= {i: Recl(short, False) for i in models if i not in decided and gain_U[i] < threshold}
        if all(len(decided) == len(models) for decided in found.values()):
            break
        short_UP = long_UP
    return {share: [decided.get(i, Recl(lengths[-1], True)) for i in models] for share, decided in found.items()}


def check(lengths: Sequence[int], shares: Sequence[float], threshold: float) -> None:
    """Raise InputError for settings out of range."""
    if len(lengths) < 2 or lengths[0] < 1 or any(short >= long for short, long in pairwise(lengths)):
        raise InputError(
            f"context lengths {' '.join(map(str, lengths))}: give at least two, from 1 on, in rising order"
        )
    if not shares or not all(0 < share <= 1 for share in shares):
        raise InputError(f"`shares` {' '.join(f'{share:g}' for share in shares)}: give shares of the tokens in (0, 1]")
    if not 0 < threshold < 1:
        raise InputError(f"`threshold` {threshold:g} must be between 0 and 1")

"""Relative effective context length, RECL: how far back a model gains by reading, beside the other models of a group
(Dai et al. 2019, section 4.3 and appendix C).

Of model i, with the c pieces before it, token t costs l_i(c, t) = -log p_i(x_t | x_{t-c} … x_{t-1}). Then

    b(c, t)    = min over i of l_i(c, t)                   the best that the group does with the short context
    T(c)       = the share r of the tokens with the largest b(c, t)
    f_i(c, c') = mean over T(c) of min(b(c, t), l_i(c', t))
    g_i(c, c') = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)

and the RECL of model i is the first c of rising lengths from which the step to the next, c', gains g_i(c, c') less than
a threshold of 0.01 in perplexity. All models must improve on one baseline, so that one that is weak with a short
context gains nothing by its weakness. The paper's lengths are multiples of a step.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from xlnet_jax.errors import InputError

THRESHOLD = 0.01


class Recl(NamedTuple):
    """How far back a model gains by reading."""

    length: int
    is_bound: bool  # even the last step gained enough: the length is at least this


def gains(short_IT: np.ndarray, long_IT: np.ndarray, share: float) -> np.ndarray:
    """g of each model, float64 [I]. short, long: losses l_i(c, t) and l_i(c', t), nats; share: r."""
    base_T = short_IT.min(axis=0).astype(np.float64)
    hardest = np.argsort(-base_T, kind="stable")[: max(round(share * len(base_T)), 1)]
    relative_I = np.minimum(base_T, long_IT)[:, hardest].mean(axis=1)
    return 1 - np.exp(relative_I - base_T[hardest].mean())


def effective_context_lengths(
    losses_IT: Callable[[int], np.ndarray],
    lengths: Sequence[int],
    shares: Sequence[float],
    threshold: float = THRESHOLD,
) -> dict[float, list[Recl]]:
    """The RECL of each model, by the share of the tokens that counts. losses_IT: l_i(c, t) of a context length c, which
    is asked for once, and while a model still gains; lengths: rising. InputError where they are not."""
    check(lengths, shares, threshold)
    found: dict[float, dict[int, Recl]] = {share: {} for share in shares}
    short_IT = losses_IT(lengths[0])
    models = range(len(short_IT))
    for short, long in pairwise(lengths):
        long_IT = losses_IT(long)
        for share, decided in found.items():
            gain_I = gains(short_IT, long_IT, share)
            decided |= {i: Recl(short, False) for i in models if i not in decided and gain_I[i] < threshold}
        if all(len(decided) == len(models) for decided in found.values()):
            break
        short_IT = long_IT
    return {share: [decided.get(i, Recl(lengths[-1], True)) for i in models] for share, decided in found.items()}


def check(lengths: Sequence[int], shares: Sequence[float], threshold: float) -> None:
    """InputError on settings that give no answer."""
    if len(lengths) < 2 or lengths[0] < 1 or any(short >= long for short, long in pairwise(lengths)):
        raise InputError(f"context lengths {' '.join(map(str, lengths))}: give two at least, from 1 on, that rise")
    if not shares or not all(0 < share <= 1 for share in shares):
        raise InputError(f"shares {' '.join(f'{share:g}' for share in shares)}: give shares of the tokens in (0, 1]")
    if not 0 < threshold < 1:
        raise InputError(f"threshold {threshold:g} is no relative gain between 0 and 1")

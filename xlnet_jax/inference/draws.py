"""Draw pieces from logits by temperature, top_k and top_p, in Hugging Face's order (Holtzman et al. 2020, section
3.1)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Limits(NamedTuple):
    """What a draw is limited by."""

    temperature: Any = None  # above 0; None = take the likeliest piece
    top_k: int = 0  # pieces; 0 = all
    top_p: Any = None  # None = 1


def sample(limits: Limits, logits_BCV: jnp.ndarray, keys_BC: jax.Array) -> jnp.ndarray:
    """Draw a piece for each row of logits, int32 [B, C]. Pieces with a logit of minus infinity are never drawn."""
    if limits.temperature is None:
        return logits_BCV.argmax(-1).astype(jnp.int32)
    return draw_from(keys_BC, probabilities(limits, logits_BCV))


def draw_from(keys_BC: jax.Array, probability_BCV: jnp.ndarray) -> jnp.ndarray:
    """Draw a piece for each row of probabilities, which need not sum to 1: int32 [B, C]. It is the first up to which
    they sum to more than a random share of the whole."""
    size = probability_BCV.shape[-1]
    id_11V = jnp.arange(size)[None, None]
    share_BC1 = jax.vmap(jax.vmap(jax.random.uniform))(keys_BC)[..., None]
    share_BC1 *= _sum(probability_BCV, id_11V < size)

    def is_before(id_BC1: jnp.ndarray) -> jnp.ndarray:
        return _sum(probability_BCV, id_11V <= id_BC1) <= share_BC1

    return (_last(is_before, -1, size - 1, share_BC1.shape) + 1)[..., 0]


def probabilities(limits: Limits, logits_BCV: jnp.ndarray) -> jnp.ndarray:
    """Return the probabilities of the draws of `sample`, float32 [B, C, V]."""
    if limits.temperature is None:
        return jax.nn.one_hot(logits_BCV.argmax(-1), logits_BCV.shape[-1])
    prob_BCV = jax.nn.softmax(logits_BCV / limits.temperature)
    if 0 < limits.top_k < logits_BCV.shape[-1]:
        prob_BCV = _likeliest(prob_BCV, jnp.ones_like(prob_BCV), limits.top_k)
    if limits.top_p is not None:
        prob_BCV = _likeliest(prob_BCV, prob_BCV, limits.top_p)
    return prob_BCV


def _likeliest(prob_BCV: jnp.ndarray, weight_BCV: jnp.ndarray, least: Any) -> jnp.ndarray:
    """Return the probabilities of the fewest likeliest pieces whose weights sum to `least`, normalized; of pieces that
    are equally likely, all or none.

    The threshold is found on the bits of a float, which sort as its value does if that is not negative.
    """

    def has_weight(bits_BC1: jnp.ndarray) -> jnp.ndarray:
        return _sum(weight_BCV, prob_BCV >= bits_BC1.view(jnp.float32)) >= least

    above_one = int(np.float32(1).view(np.int32)) + 1
    bits_BC1 = _last(has_weight, 0, above_one, (*prob_BCV.shape[:-1], 1))
    is_in_BCV = prob_BCV >= bits_BC1.view(jnp.float32)
    return jnp.where(is_in_BCV, prob_BCV, 0) / _sum(prob_BCV, is_in_BCV)


def _last(holds: Callable[[jnp.ndarray], jnp.ndarray], low: int, high: int, shape: tuple[int, ...]) -> jnp.ndarray:
    """Return the last integers for which a condition holds, which does at `low` and does not at `high`, by bisection:
    some sums over the vocabulary, which take less time than sorting it, or than a random number for each piece."""

    def halve(_: int, bounds: tuple[jnp.ndarray, jnp.ndarray]) -> tuple[jnp.ndarray, jnp.ndarray]:
        low_BC1, high_BC1 = bounds
        middle_BC1 = low_BC1 + (high_BC1 - low_BC1) // 2
        is_low_BC1 = holds(middle_BC1)
        return jnp.where(is_low_BC1, middle_BC1, low_BC1), jnp.where(is_low_BC1, high_BC1, middle_BC1)

    bounds = jnp.full(shape, low, jnp.int32), jnp.full(shape, high, jnp.int32)
    return jax.lax.fori_loop(0, (high - low).bit_length(), halve, bounds)[0]


def _sum(array_BCV: jnp.ndarray, is_in_BCV: jnp.ndarray) -> jnp.ndarray:
    return jnp.where(is_in_BCV, array_BCV, 0).sum(-1, keepdims=True)

"""Draw pieces from logits by temperature, top_k and top_p, in Hugging Face's order (Holtzman et al. 2020, section
3.1)."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from xlnet_jax.kernels.mesh import CPU, platform

FEW = 512  # likeliest pieces, which hold most draws; on a CPU, sorting all pieces takes longer than a small network


class Limits(NamedTuple):
    """What a draw is limited by."""

    temperature: Any = None  # above 0; None = take the likeliest piece
    top_k: int = 0  # pieces; 0 = all
    top_p: Any = None  # None = 1


def sample(limits: Limits, logits_BCV: jnp.ndarray, keys_BC: jax.Array) -> jnp.ndarray:
    """Draw a piece for each row of logits, int32 [B, C]."""
    limited = functools.partial(choose, limits)
    token_C = _map_rows(limited, logits_BCV.reshape(-1, logits_BCV.shape[-1]), keys_BC.reshape(-1))
    return token_C.reshape(keys_BC.shape)


def probabilities(limits: Limits, logits_BCV: jnp.ndarray) -> jnp.ndarray:
    """Return the probabilities of the draws of `sample`, float32 [B, C, V]."""
    limited = functools.partial(distribution, limits)
    return _map_rows(limited, logits_BCV.reshape(-1, logits_BCV.shape[-1])).reshape(logits_BCV.shape)


def draw_from(keys_BC: jax.Array, probability_BCV: jnp.ndarray) -> jnp.ndarray:
    """Draw a piece for each row of probabilities, which need not sum to 1: int32 [B, C]."""
    return jax.vmap(jax.vmap(jax.random.categorical))(keys_BC, jnp.log(probability_BCV)).astype(jnp.int32)


def _map_rows(function: Callable[..., jnp.ndarray], *rows: Any) -> jnp.ndarray:
    """Return the results of a function of rows, and of the number of pieces to sort first."""
    # On a CPU one by one: in a batch, a branch is taken for all or none.
    if platform() == CPU:
        return jax.lax.map(lambda row: function(*row, few=FEW), rows)
    return jax.vmap(function)(*rows)


def choose(limits: Limits, logits_V: jnp.ndarray, key: jax.Array, few: int | None = None) -> jnp.ndarray:
    """Draw the id of a piece, int32. Pieces with a logit of minus infinity are never drawn.

    few: sort only so many of the likeliest pieces if they hold all that top_p allows; None = sort all.
    """
    if limits.temperature is None:
        return logits_V.argmax().astype(jnp.int32)
    scaled_V = logits_V / limits.temperature
    if not limits.top_k and limits.top_p is None:
        return jax.random.categorical(key, scaled_V).astype(jnp.int32)

    def draw(best_Q: jnp.ndarray, ids_Q: jnp.ndarray) -> jnp.ndarray:
        return ids_Q[jax.random.categorical(key, best_Q)]

    return _of_likeliest(draw, limits, scaled_V, few)


def distribution(limits: Limits, logits_V: jnp.ndarray, few: int | None = None) -> jnp.ndarray:
    """Return the probabilities of the pieces that `choose` draws, float32 [V]."""
    if limits.temperature is None:
        return jax.nn.one_hot(logits_V.argmax(), len(logits_V))
    scaled_V = logits_V / limits.temperature
    if not limits.top_k and limits.top_p is None:
        return jax.nn.softmax(scaled_V)

    def spread(best_Q: jnp.ndarray, ids_Q: jnp.ndarray) -> jnp.ndarray:
        return jnp.zeros_like(scaled_V).at[ids_Q].set(jax.nn.softmax(best_Q))

    return _of_likeliest(spread, limits, scaled_V, few)


def _of_likeliest(
    result: Callable[[jnp.ndarray, jnp.ndarray], jnp.ndarray],
    limits: Limits,
    scaled_V: jnp.ndarray,
    few: int | None,
) -> jnp.ndarray:
    """Return the result of the likeliest pieces' logits, minus infinity where top_k and top_p exclude a piece, and
    ids."""
    most = min(limits.top_k or len(scaled_V), len(scaled_V))

    def limited(count: int) -> tuple[jnp.ndarray, jnp.ndarray]:
        """Return the result of so many pieces, and whether pieces after them could not be drawn."""
        best_Q, ids_Q = jax.lax.top_k(scaled_V, count)
        probs_Q = jax.nn.softmax(best_Q) if count == most else jnp.exp(best_Q - jax.nn.logsumexp(scaled_V))
        # The likeliest piece always stays: the sum before it is 0, below top_p.
        before_Q, top_p = jnp.cumsum(probs_Q) - probs_Q, 1 if limits.top_p is None else limits.top_p
        return result(jnp.where(before_Q < top_p, best_Q, -jnp.inf), ids_Q), before_Q[-1] >= top_p

    if few is None or limits.top_k or most <= few:
        return limited(most)[0]
    found, is_whole = limited(few)
    return jax.lax.cond(is_whole, lambda: found, lambda: limited(most)[0])

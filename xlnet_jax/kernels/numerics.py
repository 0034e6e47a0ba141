"""Numerical building blocks that the attention implementations share with the layers around them."""

import jax
import jax.numpy as jnp

MASKED = -1e30
"""Attention bias of a key that a row may not see. Finite: the gradient of a softmax over -inf alone would be NaN, and
rows that see no key exist."""


def einsum_float32(equation: str, a: jnp.ndarray, b: jnp.ndarray) -> jnp.ndarray:
    """Return an einsum that accumulates and returns float32, whatever the type of its operands."""
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def dropout_mask(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jnp.ndarray:
    """Return a bool array of this shape: True where dropout keeps an element.

    Each element takes 16 random bits, because generating random words is the expensive part: two elements share a word,
    and the rate is rounded to a 65,536th.
    """
    *lead, last = shape
    words = jax.random.bits(key, (*lead, -(-last // 2)), jnp.uint32)
    halves = jnp.concatenate([words >> 16, words & 0xFFFF], axis=-1)
    return halves[..., :last] >= round(rate * 2**16)

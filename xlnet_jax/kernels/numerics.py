"""Numerical building blocks that the attention implementations share with the layers around them."""

import jax.numpy as jnp

MASKED = -1e30
"""Attention bias of a key that a row may not see. Finite: the gradient of a softmax over -inf alone would be NaN, and
rows that see no key exist."""


def einsum_float32(equation: str, a: jnp.ndarray, b: jnp.ndarray) -> jnp.ndarray:
    """Return an einsum that accumulates and returns float32, whatever the type of its operands."""
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)

"""Numerical building blocks that the attention implementations share with the layers around them."""

import jax.numpy as jnp

MASKED = -1e30
"""Attention bias of a key that a row may not see. Finite: the gradient of a softmax over -inf alone would be NaN, and
rows that see no key exist."""


def einsum_float32(equation: str, a: jnp.ndarray, b: jnp.ndarray) -> jnp.ndarray:
    """Return an einsum that accumulates and returns float32, whatever the type of its operands."""
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def round_up(size: int, multiple: int) -> int:
    """Return the smallest multiple that is no less than a size."""
    return -(-size // multiple) * multiple


def pad(x: jnp.ndarray, axis: int, after: int, before: int = 0, value: float = 0) -> jnp.ndarray:
    """Return an array with so many more elements along one axis."""
    if not before and not after:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, after)
    return jnp.pad(x, widths, constant_values=value)

"""Layer normalization against its formula in float64 and automatic differentiation of the formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlnet_jax.models.layers import normalize

EPS, SHAPE, WIDTH = 1e-12, (2, 5), 96


def by_formula(x, scale_D, bias_D):
    x = x.astype(jnp.float32)
    centered = x - x.mean(-1, keepdims=True)
    z = centered / jnp.sqrt(jnp.square(centered).mean(-1, keepdims=True) + EPS)
    return z * scale_D[None, None] + bias_D[None, None]


def random_arguments(offset, dtype):
    draw = np.random.default_rng(0).normal
    x = jnp.asarray(draw(offset, 1, (*SHAPE, WIDTH)), dtype)
    return x, *(jnp.asarray(draw(1, 1, WIDTH), jnp.float32) for _ in range(2))


@pytest.mark.parametrize("offset", [0, 10])
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 1e-2)])
def test_gradients_are_those_of_the_formula(dtype, tolerance, offset):
    arguments = random_arguments(offset, dtype)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(*SHAPE, WIDTH)), jnp.float32)

    def gradients(norm):
        return jax.grad(lambda *a: (norm(*a).astype(jnp.float32) * weights).sum(), argnums=(0, 1, 2))(*arguments)

    for ours, theirs in zip(gradients(lambda *a: normalize(*a, EPS)), gradients(by_formula), strict=True):
        assert ours.dtype == theirs.dtype
        ours, theirs = (np.asarray(g, np.float64) for g in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * np.abs(theirs).max())


@pytest.mark.parametrize("offset", [0, 30, 100])
def test_bfloat16_rows_lose_nothing_to_an_offset(offset):
    """The mean square minus the square of the mean is as good as the sum over centered elements."""
    x, scale_D, bias_D = random_arguments(offset, jnp.bfloat16)
    exact = np.asarray(x, np.float64)
    exact = exact - exact.mean(-1, keepdims=True)
    exact = exact / np.sqrt(np.square(exact).mean(-1, keepdims=True) + EPS) * np.asarray(scale_D) + np.asarray(bias_D)
    ours = np.asarray(normalize(x, scale_D, bias_D, EPS), np.float64)
    np.testing.assert_allclose(ours, exact, rtol=2**-8, atol=2**-8 * np.abs(exact).max())


@pytest.mark.parametrize("elements", [0, 1])
def test_nearly_equal_elements_stay_bounded(elements):
    """Their variance is below the resolution of the mean square."""
    x, scale_D, bias_D = random_arguments(0, jnp.bfloat16)
    x = jnp.full_like(x, 3.0).at[..., :elements].add(2**-6)
    z = normalize(x, jnp.ones_like(scale_D), jnp.zeros_like(bias_D), EPS)
    assert np.abs(np.asarray(z, np.float32)).max() <= WIDTH**0.5

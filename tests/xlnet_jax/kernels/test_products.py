"""Products and shifts for CPUs compute what those of other devices do, and so do their gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlnet_jax.kernels import plain, products

B, N, L, P, K, H = 2, 3, 12, 5, 20, 8
R = K + L


def draw(number, *shape):
    return jax.random.normal(jax.random.key(number), shape)


def assert_same_gradients(ours, theirs, *operands, rtol):
    weights = draw(9, *jax.eval_shape(ours, *operands).shape)
    for mine, other in zip(
        *(jax.grad(lambda *o, f=f: (f(*o) * weights).sum(), range(len(operands)))(*operands) for f in (ours, theirs)),
        strict=True,
    ):
        np.testing.assert_allclose(mine, other, rtol=rtol, atol=rtol)
        assert np.abs(other).max() > 0.1


def test_columns_of_each_row_are_those_of_the_shifts_of_other_devices_forward_and_backward():
    position_BP = jnp.array([[0, 11, 4, 4, 7], [10, 2, 1, 0, 5]])
    start_BT = L - jnp.concatenate([jnp.tile(jnp.arange(L), (B, 1)), position_BP], axis=1)

    def shifted(by_distance):
        content = plain.shift_content_BNLK(by_distance[:, :, :L], K)
        return jnp.concatenate([content, plain.shift_query_BNPK(by_distance[:, :, L:], position_BP, K)], axis=2)

    def taken(by_distance):
        return plain.take_columns_BNTK(by_distance, start_BT, K)

    by_distance = draw(0, B, N, L + P, R)
    np.testing.assert_array_equal(taken(by_distance), shifted(by_distance))
    assert_same_gradients(taken, shifted, by_distance, rtol=0)


@pytest.mark.parametrize(
    ("ours", "theirs", "shapes"),
    [
        *((products.dense, "...D,DF->...F", ((*lead, H), (H, K))) for lead in ((), (B,), (B, L))),
        (products.product_BNTK, "BNTH,BNKH->BNTK", ((B, N, L, H), (B, N, K, H))),
        (products.to_heads_BNTH, "BTD,DNH->BNTH", ((B, L, K), (K, N, H))),
        (products.from_heads_BTD, "BNTH,DNH->BTD", ((B, N, L, H), (K, N, H))),
    ],
)
def test_products_have_the_gradients_of_the_einsum(ours, theirs, shapes):
    operands = [draw(number, *shape) for number, shape in enumerate(shapes)]
    assert_same_gradients(ours, functools.partial(jnp.einsum, theirs), *operands, rtol=1e-5)


def test_the_sum_of_outer_products_is_the_gradient_of_a_right_operand():
    rows, grad = draw(0, B, L, K), draw(1, B, L, H)
    np.testing.assert_allclose(
        products.outer_sum_DE(rows, grad), jnp.einsum("BTD,BTE->DE", rows, grad), rtol=1e-5, atol=1e-5
    )

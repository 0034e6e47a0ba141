"""The attention's own way back, and its dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlnet_jax.models.attention import MASKED, attend_BNTH, kept


@pytest.mark.parametrize("with_dropout", [False, True])
def test_the_written_gradient_is_that_of_the_plain_formula(with_dropout):
    keys = jax.random.split(jax.random.key(0), 4)
    scores = jax.random.normal(keys[0], (2, 3, 5, 7)) * 3
    scores = scores.at[:, :, :, 4].add(MASKED).at[0, 0, 0].add(MASKED)  # a key that none sees, a row that sees none
    value, weight = jax.random.normal(keys[1], (2, 3, 7, 4)), jax.random.normal(keys[2], (2, 3, 5, 4))
    left = kept(keys[3], 0.3, scores.shape) if with_dropout else None

    def plain(scores, value):
        probs = jax.nn.softmax(scores, axis=-1)
        return jnp.einsum("BNTK,BNKH->BNTH", probs if left is None else jnp.where(left, probs, 0), value)

    def both(attend):
        return jax.value_and_grad(lambda s, v: (attend(s, v) * weight).sum(), argnums=(0, 1))(scores, value)

    (ours, our_grads), (theirs, their_grads) = both(lambda s, v: attend_BNTH(s, v, left)), both(plain)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    for a, b in zip(our_grads, their_grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)
    assert (our_grads[0][1, :, :, 4] == 0.0).all()


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_drops_its_rate_everywhere_alike(rate):
    """Within six standard deviations; both halves of a random word decide."""
    left = np.asarray(kept(jax.random.key(1), rate, (400, 501)))
    deviation = 6 * np.sqrt(rate * (1 - rate))
    assert abs(1 - left.mean() - rate) < deviation / np.sqrt(left.size)
    assert (abs(1 - left.mean(0) - rate) < deviation / np.sqrt(400)).all()
    first, second = left[:, :250] - left.mean(), left[:, 251:] - left.mean()
    assert abs((first * second).mean()) < 6 * rate * (1 - rate) / np.sqrt(first.size)

"""The fit of the scaling law finds the law that losses were made by."""

import itertools

import numpy as np
import pytest

from benchmarks.fit_scaling import errors, fit, jacobian, law_of
from xlnet_jax.planning.scaling_law import Law

LAW = Law(E=1.9, A=60.0, alpha=0.33, B=450.0, beta=0.31)
SIZES, TOKENS = np.array(list(itertools.product((1e5, 3e5, 1e6, 3e6), (1e6, 5e6, 2e7)))).T
LOSSES = np.array([LAW.loss(n, d) for n, d in zip(SIZES, TOKENS, strict=True)])


def test_the_law_is_found():
    found = law_of(fit(SIZES, TOKENS, LOSSES))
    assert found.alpha == pytest.approx(LAW.alpha, rel=0.01)
    assert found.beta == pytest.approx(LAW.beta, rel=0.01)
    assert abs(found.E - LAW.E) < 0.01 * LAW.E


def test_an_outlier_moves_the_law_little():
    """Least squares would follow it: a mean error of 30 % / 12 runs."""
    losses = LOSSES.copy()
    losses[5] *= 1.3
    found = law_of(fit(SIZES, TOKENS, losses))
    assert found.loss(1e7, 1e8) == pytest.approx(LAW.loss(1e7, 1e8), rel=0.005)


def test_the_derivatives_are_those_of_the_errors():
    at, nudge = np.array([4.0, 6.0, 0.6, 0.35, 0.3]), 1e-6
    for i, step in enumerate(nudge * np.eye(5)):
        above, below = (errors(at + sign * step, SIZES, TOKENS, LOSSES) for sign in (1, -1))
        numeric = (above - below) / (2 * nudge)
        np.testing.assert_allclose(jacobian(at, SIZES, TOKENS, LOSSES)[:, i], numeric, rtol=1e-4, atol=1e-8)

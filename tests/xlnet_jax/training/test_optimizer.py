"""The optimizer: its schedule, its clipping, and what weight decay leaves alone."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from xlnet_jax.config import OptimizerConfig
from xlnet_jax.training.optimizer import decayed, learning_rate, make_optimizer

CONFIG = OptimizerConfig(learning_rate=1.0, warmup_steps=10)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("linear", [0, 0.5, 1, 0.5, 0, 0]), ("constant", [0, 0.5, 1, 1, 1, 1]), ("cosine", [0, 0.5, 1, 0.5, 0, 0])],
)
def test_the_rate_rises_from_zero_and_decays_to_the_end(schedule, expected):
    rate = learning_rate(dataclasses.replace(CONFIG, schedule=schedule), steps=30)
    np.testing.assert_allclose([rate(t) for t in (0, 5, 10, 20, 30, 99)], expected, atol=1e-6)


def test_the_rate_ends_at_its_floor_and_at_its_own_length():
    config = dataclasses.replace(CONFIG, min_lr_ratio=0.1, decay_steps=20)
    np.testing.assert_allclose(learning_rate(config, steps=500)(20), 0.1, rtol=1e-6)


def params():
    return {
        "kernel": np.ones((2, 2), np.float32),
        "bias": np.ones(2, np.float32),
        "norm": {"scale": np.ones(2, np.float32)},
        "biases": np.ones(2, np.float32),
    }


def test_weight_decay_leaves_biases_and_normalisation_alone():
    assert decayed(params()) == {"kernel": True, "bias": False, "norm": {"scale": False}, "biases": False}
    tx = make_optimizer(dataclasses.replace(CONFIG, warmup_steps=0, weight_decay=0.1), steps=10)
    zeros = jax.tree.map(np.zeros_like, params())
    updates, _ = tx.update(zeros, tx.init(params()), params())
    np.testing.assert_allclose(updates["kernel"], -0.1, rtol=1e-6)
    assert not np.any(updates["bias"])
    assert not np.any(updates["norm"]["scale"])


def test_the_gradient_is_clipped_by_its_global_norm():
    """Adam hides a scale; its second moment shows it."""
    tx = make_optimizer(CONFIG, steps=100)
    _, state = tx.update(jax.tree.map(lambda p: 100.0 * p, params()), tx.init(params()), params())
    moments = optax.tree_utils.tree_get(state, "nu")
    total = sum(float(m.sum()) for m in jax.tree.leaves(moments))
    np.testing.assert_allclose(total, 0.001 * CONFIG.clip_norm**2, rtol=1e-4)

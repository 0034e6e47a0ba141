"""One update: the same on any number of devices, in any memory policy, and without a transfer that nobody asked for."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from tests.xlnet_jax.training.tiny import CONFIG, NO_DROPOUT, batch_at
from xlnet_jax.config import InputError, MeshConfig
from xlnet_jax.models.lm import XLNetLM
from xlnet_jax.training import sharding
from xlnet_jax.training.optimizer import make_optimizer
from xlnet_jax.training.state import init_state, plan_state
from xlnet_jax.training.step import make_train_step


def train(config, devices=8, steps=5):
    """(losses of the first updates, final params)."""
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    model, tx = XLNetLM(config.model), make_optimizer(config.optimizer, config.steps)
    plan = plan_state(config, model, tx, mesh)
    state = init_state(config, model, tx, plan)
    step = make_train_step(config, model, tx, plan, mesh)
    put = sharding.batch_to_mesh(mesh, config.data.batch_size)
    losses = []
    for t in range(steps):
        batch = put(batch_at(t, config.data))
        with jax.transfer_guard("disallow"):
            state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return losses, jax.device_get(state.params)


@pytest.fixture(scope="module")
def on_eight():
    return train(CONFIG)


def test_one_device_and_eight_give_the_same_losses(on_eight):
    """Dropout included: partitionable random bits do not depend on how the batch is laid out."""
    np.testing.assert_allclose(on_eight[0], train(CONFIG, devices=1)[0], rtol=0, atol=1e-5)


def test_the_same_run_gives_the_same_bits(on_eight):
    losses, params = train(CONFIG)
    assert losses == on_eight[0]
    jax.tree.map(np.testing.assert_array_equal, params, on_eight[1])


@pytest.mark.parametrize(
    "change", [{"num_predict": None}, {"emit": "dense"}, {"num_predict": None, "emit": "dense"}], ids=str
)
def test_the_form_of_a_batch_does_not_change_its_loss(change):
    """A slot for every position or for every target; masks spelt out or as ranks."""
    other = dataclasses.replace(NO_DROPOUT, data=dataclasses.replace(NO_DROPOUT.data, **change))
    np.testing.assert_allclose(train(other)[0], train(NO_DROPOUT)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("remat", ["full", "dots"])
def test_computing_again_in_the_backward_pass_changes_nothing(on_eight, remat):
    config = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, remat=remat))
    np.testing.assert_allclose(on_eight[0], train(config)[0], rtol=0, atol=1e-5)


def test_losses_of_a_tiny_run():
    """The golden table. Only a change that is meant to alter what a model learns may update it, and says so."""
    losses, _ = train(NO_DROPOUT, steps=6)
    np.testing.assert_allclose(losses, GOLDEN, rtol=0, atol=1e-4)


def test_dropout_differs_from_step_to_step_and_is_off_without_a_rate():
    assert train(CONFIG, steps=1)[0] != train(NO_DROPOUT, steps=1)[0]


def test_bfloat16_follows_float32():
    config = dataclasses.replace(NO_DROPOUT, model=dataclasses.replace(NO_DROPOUT.model, dtype="bfloat16"))
    losses, params = train(config, steps=6)
    np.testing.assert_allclose(losses, GOLDEN, rtol=0, atol=0.05)
    assert {str(p.dtype) for p in jax.tree.leaves(params)} == {"float32"}


def test_every_parameter_learns():
    config = NO_DROPOUT
    mesh = sharding.make_mesh(config.mesh, config.data.batch_size)
    model, tx = XLNetLM(config.model), make_optimizer(config.optimizer, config.steps)
    before = jax.device_get(init_state(config, model, tx, plan_state(config, model, tx, mesh)).params)
    _, after = train(config)
    # Keys are shared by r_r and the others alike; only what is never used would stay.
    still = [
        jax.tree_util.keystr(path)
        for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True)
        if (old == new).all()
    ]
    assert still == []


def test_a_mesh_that_does_not_fit_says_which_would():
    with pytest.raises(InputError, match=r"mesh\.data 3 does not use the 8 devices that are here: give 8 or -1"):
        sharding.make_mesh(MeshConfig(data=3), 24)
    with pytest.raises(InputError, match=r"data\.batch-size 12 cannot be divided over mesh\.data 8: 8 or 16 could"):
        sharding.make_mesh(MeshConfig(), 12)


def test_a_process_builds_the_rows_of_its_devices():
    mesh = sharding.make_mesh(MeshConfig(), 16)
    assert sharding.process_rows(mesh, 16) == range(16)


GOLDEN = [4.475844, 4.168459, 4.284723, 4.370868, 4.272408, 4.163970]

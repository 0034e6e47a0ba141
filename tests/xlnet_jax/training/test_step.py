"""One step: equal on any number of devices and under any remat policy, and without implicit transfers."""

import functools

import jax
import numpy as np
import pytest

from tests.xlnet_jax.training.tiny import CONFIG, NO_DROPOUT, batch_at, changed, program_of, steps_of
from xlnet_jax.costs import CHIPS
from xlnet_jax.interop.weights import flatten
from xlnet_jax.models import layers
from xlnet_jax.training import step
from xlnet_jax.training.step import make_eval_step


def train(config, devices=8, steps=6):
    """Return (losses of the first steps, final params)."""
    batches = (batch_at(t, config.data) for t in range(steps))
    *_, (state, _) = found = list(steps_of(program_of(config, devices), batches))
    return [metrics["loss"] for _, metrics in found], jax.device_get(state.params)


def count_loops(config):
    program = program_of(config, devices=1)
    return program.train_step.lower(program.init_state({}), program.put(batch_at(0))).as_text().count("stablehlo.while")


trained = functools.cache(train)
"""`train`, once for all tests that ask for the same."""


@pytest.mark.parametrize("change", [{"num_predict": None}, {"emit": "dense"}], ids=str)
def test_the_form_of_a_batch_does_not_change_its_loss(change):
    """A slot for every position or for every target; masks spelt out or as ranks."""
    np.testing.assert_allclose(train(changed(NO_DROPOUT, data=change), devices=1)[0], GOLDEN, rtol=0, atol=1e-5)


@pytest.mark.parametrize("remat", ["full", "dots", "feed_forward", "attention"])
def test_computing_again_in_the_backward_pass_changes_nothing(remat):
    np.testing.assert_allclose(
        trained(CONFIG)[0], train(changed(CONFIG, {"remat": remat}), devices=1)[0], rtol=0, atol=1e-5
    )


def test_layers_without_a_loop_compute_the_same(monkeypatch):
    monkeypatch.setattr(layers, "platform", lambda: "tpu")
    loop = changed(CONFIG, {"num_layers": 3})  # the last layer is outside of the loop, and jax unrolls loops over one
    unrolled = changed(loop, {"remat": "dots"})
    assert count_loops(unrolled) == count_loops(loop) - 2  # forward and backward
    np.testing.assert_allclose(train(loop, devices=1)[0], train(unrolled, devices=1)[0], rtol=0, atol=1e-6)


def test_an_evaluation_in_micro_batches_has_the_sums_and_the_memory_of_the_whole():
    program = program_of(CONFIG, 2)
    state, batch = program.init_state({}), program.put(batch_at(1))
    mems_ZBMD = jax.random.normal(jax.random.key(1), state.mems_ZBMD.shape)
    whole, parts = (
        make_eval_step(program.objective, program.plan, program.mesh, n)(state.params, batch, mems_ZBMD) for n in (1, 4)
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), parts, whole)


def test_a_compiler_that_refuses_the_options_of_a_tpu_trains_without_them(monkeypatch, capsys):
    """The compiler of a CPU refuses them, as another version of libtpu may."""
    monkeypatch.setattr(step, "chip_of", lambda kind: next(chip for chip in CHIPS if chip.name == "v5e"))
    assert train(NO_DROPOUT, devices=2, steps=1)[0] == pytest.approx(GOLDEN[:1], abs=1e-5)
    assert (
        "this compiler does not support the options of the train step, so steps are slower" in capsys.readouterr().err
    )


@pytest.mark.contract
def test_losses_of_a_tiny_run():
    """The golden table. Only a change that is meant to alter what a model learns may update it, and says so."""
    np.testing.assert_allclose(trained(NO_DROPOUT)[0], GOLDEN, rtol=0, atol=1e-4)


def test_bfloat16_follows_float32():
    losses, params = train(changed(NO_DROPOUT, {"dtype": "bfloat16"}), devices=1)
    np.testing.assert_allclose(losses, GOLDEN, rtol=0, atol=0.05)
    assert {str(p.dtype) for p in jax.tree.leaves(params)} == {"float32"}


def test_every_parameter_learns():
    before, after = flatten(program_of(NO_DROPOUT).init_state({}).params), flatten(trained(NO_DROPOUT)[1])
    assert [path for path in before if (np.asarray(before[path]) == after[path]).all()] == []


def test_outputs_of_layers_that_start_at_zero_learn():
    config = changed(NO_DROPOUT, {"zero_init": True})
    before, after = flatten(program_of(config).init_state({}).params), flatten(trained(config)[1])
    zero = {path for path, x in before.items() if not np.any(x) and not path.endswith("bias")}
    assert zero == {"backbone/layers/attention/o", "backbone/layers/feed_forward/outer/kernel"}
    assert [path for path in before if (np.asarray(before[path]) == after[path]).all()] == []


class Run:
    """Compiled step with its current state."""

    def __init__(self, config, devices=8):
        self.program = program_of(config, devices)
        self.state = self.program.init_state({})

    def update(self, batch):
        ((self.state, metrics),) = steps_of(self.program, [batch], self.state)
        return metrics

    def pretend(self, step, norm_mean, skipped=0):
        """Pretend that so many steps were done, some of them skipped, with gradients of this norm."""
        numbers = np.int32(step), np.float32(norm_mean), np.int32(skipped)
        step, norm_mean, skipped = jax.device_put(numbers, self.program.plan.step.sharding)
        guard = self.state.guard.replace(norm_mean=norm_mean, skipped=skipped)
        self.state = self.state.replace(step=step, guard=guard)


@pytest.mark.parametrize(("hidden", "attention"), [(0.1, 0.0), (0.0, 0.1)])
def test_dropout_of_either_kind_differs_from_step_to_step(hidden, attention):
    """The learning rate of the first step is 0, so that two steps on one batch differ in their masks alone."""
    run = Run(changed(CONFIG, {"dropout": hidden, "attention_dropout": attention}), devices=1)
    first, second = (run.update(batch_at(0)) for _ in range(2))
    assert first["learning_rate"] == 0
    assert first["loss"] != second["loss"]


@pytest.fixture(scope="module")
def guarded():
    return Run(changed(NO_DROPOUT, optimizer={"spike_factor": 3.0}))


def test_a_step_that_is_not_finite_is_skipped_and_empties_the_memory(guarded):
    guarded.update(batch_at(0))
    before = jax.device_get((guarded.state.params, guarded.state.opt_state))
    poisoned = batch_at(1)
    poisoned["target_weights"][2, 0] = np.nan
    metrics = guarded.update(poisoned)
    assert np.isnan(metrics["loss"])
    assert (metrics["skipped"], metrics["skipped_in_a_row"]) == (1, 1)
    jax.tree.map(np.testing.assert_array_equal, (guarded.state.params, guarded.state.opt_state), before)
    assert not np.asarray(guarded.state.mems_ZBMD).any()
    assert int(guarded.state.step) == 2
    state = jax.tree.map(jax.numpy.copy, guarded.state)
    after = guarded.update(batch_at(2))
    assert (after["skipped"], after["skipped_in_a_row"]) == (1, 0)
    # What is empty is masked: a batch that says so itself has the same loss.
    guarded.state = state
    assert guarded.update(batch_at(2) | {"mem_filled": np.zeros(8, np.int32)})["loss"] == after["loss"]


def test_a_spike_of_the_gradient_is_skipped_once_its_mean_is_known(guarded):
    guarded.pretend(step=60, norm_mean=1e-6, skipped=11)
    assert guarded.update(batch_at(3))["skipped_in_a_row"] == 0  # too early to tell: 49 steps were made
    guarded.pretend(step=60, norm_mean=1e-6)
    rows = [guarded.update(batch_at(t)) for t in (4, 5)]
    assert [row["skipped_in_a_row"] for row in rows] == [1, 2]
    assert guarded.state.guard.norm_mean == np.float32(1e-6)  # spikes do not enter it
    guarded.pretend(step=60, norm_mean=rows[0]["gradient_norm"] / 2)
    assert guarded.update(batch_at(4))["skipped_in_a_row"] == 0


def test_the_mean_of_the_norm_is_that_of_the_steps_made_and_then_a_running_mean(guarded):
    guarded.pretend(step=0, norm_mean=0.0)
    poisoned = batch_at(2)
    poisoned["target_weights"][0, 0] = np.nan
    batches = [batch_at(0), batch_at(1), poisoned, batch_at(3)]
    norms = [guarded.update(batch)["gradient_norm"] for batch in batches]
    np.testing.assert_allclose(guarded.state.guard.norm_mean, np.mean([norms[0], norms[1], norms[3]]), rtol=1e-5)
    guarded.pretend(step=1000, norm_mean=2.0)
    norm = guarded.update(batch_at(4))["gradient_norm"]
    np.testing.assert_allclose(guarded.state.guard.norm_mean, 2 + 0.01 * (norm - 2), rtol=1e-5)


def test_a_skipped_step_leaves_the_schedule_where_it_was(guarded):
    guarded.pretend(step=16, norm_mean=1.0, skipped=15)
    assert guarded.update(batch_at(0))["learning_rate"] == np.float32(NO_DROPOUT.optimizer.learning_rate / 2)


GOLDEN = [4.475844, 4.168459, 4.284723, 4.370868, 4.272408, 4.163970]

"""Callbacks, and an objective, a network, an optimizer and data of one's own, which `pretrain` takes as values."""

from types import SimpleNamespace

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import xlnet_jax
from tests.xlnet_jax.training.tiny_run import TINY, assert_same, records_of, state_of
from xlnet_jax.errors import InputError
from xlnet_jax.objectives import presets
from xlnet_jax.objectives.language_model import LanguageModel
from xlnet_jax.training.selection import Evaluation

IDS = np.random.default_rng(0).integers(9, 400, 8_000)
DATASET = {"train": IDS[:6_000], "validation": IDS[6_000:]}


def settings(workdir, *more):
    """Settings of a run with memory on a mesh."""
    words = [*TINY, "--workdir", str(workdir), "--mesh.fsdp", "2", "--eval.max-windows", "8", *more]
    return presets.parse_config(words, "train", "")


# ---- an objective ----------------------------------------------------------------------------------------------------


class WithZLoss(LanguageModel):
    """Adds the square of the mean bias of the vocabulary to the loss of each target."""

    def score(self, params, batch, mems_ZBMD, dropout):
        scored = super().score(params, batch, mems_ZBMD, dropout)
        square = jnp.square(params["output_bias"] + 0.1).mean()
        return scored._replace(loss_sum=scored.loss_sum + square * scored.weight_sum)


# ---- a network -------------------------------------------------------------------------------------------------------


class Averages(nn.Module):
    """Predicts the next piece from the mean of the pieces before it, and of the memory."""

    @nn.compact
    def __call__(self, inputs, mems_ZBMD, *, at_BP, reuse_len, train, needs_content=False):
        table_VD = self.param("table", nn.initializers.normal(0.02), (400, 16))
        hidden_BLD = nn.Dense(16)(table_VD[inputs.input_ids_BL])
        seen_BKD = jnp.concatenate([mems_ZBMD[0], hidden_BLD], 1)
        count_K = jnp.arange(1, seen_BKD.shape[1] + 1)
        mean_BLD = (seen_BKD.cumsum(1) / count_K[None, :, None])[:, -hidden_BLD.shape[1] :]
        new_mems_ZBMD = seen_BKD[None, :, -mems_ZBMD.shape[2] :]
        return mean_BLD @ table_VD.T, SimpleNamespace(new_mems_ZBMD=new_mems_ZBMD)


CLM = "--objective clm --data.num-predict None --data.reuse-len 32 --data.perm-size 32".split()
OWN = {
    "objective and optimizer": ({"objective": WithZLoss, "optimizer": optax.lion(1e-3)}, ()),
    "network": ({"network": Averages()}, CLM),
}
"""Values for a run of the dataset, and its settings"""


class Stop(xlnet_jax.Callback):
    """Stops the run after a step, inside a block."""

    def on_step(self, loop, step, numbers):
        if step == 6:
            loop.stop()


@pytest.mark.contract
@pytest.mark.parametrize("name", OWN)
def test_what_is_passed_as_a_value_trains_and_goes_on_with_the_same_bits(name, tmp_path):
    values, words = OWN[name]
    values = {"dataset": DATASET, **values}
    straight = xlnet_jax.pretrain(settings(tmp_path / "straight", *words), **values)
    assert (straight.steps, straight.stopped) == (12, "")
    config = settings(tmp_path / "run", *words)
    stopped = xlnet_jax.pretrain(config, callbacks=[Stop()], **values)
    assert stopped.stopped == "a callback"
    assert 6 <= stopped.steps < 12
    assert xlnet_jax.pretrain(config, **values).steps == 12
    assert_same(state_of(tmp_path / "run"), state_of(tmp_path / "straight"))
    assert records_of(tmp_path / "run") == records_of(tmp_path / "straight")
    assert ("learning_rate" in records_of(tmp_path / "run")[0]) == ("optimizer" not in values)
    with pytest.raises(InputError, match=r"is of a call with other arguments \(objective.* there, none here\)"):
        xlnet_jax.pretrain(config, dataset=DATASET)


def test_an_objective_without_a_loss_for_each_target_is_one_line(tmp_path):
    class Mean(LanguageModel):
        def loss_of_targets_BP(self, logits_BPV, target_ids_BP):
            return super().loss_of_targets_BP(logits_BPV, target_ids_BP).mean()

    with pytest.raises(
        InputError, match=r"its loss_of_targets_BP must return a loss for each target, \(\d, 6\), not \(\)"
    ):
        xlnet_jax.pretrain(settings(tmp_path / "run"), dataset=DATASET, objective=Mean)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({"train": IDS}, "`dataset` must have two arrays of ids, train and validation"),
        (DATASET | {"train": IDS / 2}, r"train must have one axis and whole numbers, not float64 \[8000\]"),
        (DATASET | {"train": IDS - 9}, "train has ids from 0 to 390: 9 is the first after the special ones, and"),
        (DATASET | {"validation": IDS[:10]}, "validation has 10 ids, but needs 78"),
    ],
)
def test_a_dataset_that_cannot_be_read_is_one_line(dataset, message, tmp_path):
    with pytest.raises(InputError, match=message):
        xlnet_jax.pretrain(settings(tmp_path / "run"), dataset=dataset)


# ---- callbacks -------------------------------------------------------------------------------------------------------


class Seen(xlnet_jax.Callback):
    """Notes its calls."""

    def __init__(self):
        self.calls = []

    def on_start(self, loop):
        self.calls.append(("start", loop.step))

    def on_step(self, loop, step, numbers):
        self.calls.append(("step", step))
        if step == 9:
            loop.save()

    def on_evaluation(self, loop, step, numbers):
        assert int(loop.state.step) == step
        self.calls.append(("evaluation", step, sorted(numbers)))

    def on_save(self, loop):
        self.calls.append(("save", loop.step))

    def on_end(self, loop, error):
        self.calls.append(("end", loop.step, error))


def test_callbacks_are_called_in_the_order_of_a_step(tmp_path):
    seen = Seen()
    xlnet_jax.pretrain(settings(tmp_path / "run"), callbacks=[seen], dataset=DATASET)
    evaluation = ["loss", "unigram"]
    assert seen.calls == [
        ("start", 0), ("step", 1), ("step", 3), ("save", 4), ("step", 6), ("evaluation", 6, evaluation), ("save", 6),
        ("save", 8), ("step", 9), ("save", 10), ("step", 12), ("evaluation", 12, evaluation), ("save", 12),
        ("end", 12, None),
    ]  # fmt: skip


def test_an_error_of_a_callback_ends_the_run_and_reaches_all_callbacks(tmp_path):
    class Fails(xlnet_jax.Callback):
        def on_evaluation(self, loop, step, numbers):
            raise RuntimeError("pruned")

    seen = Seen()
    with pytest.raises(RuntimeError, match="pruned"):
        xlnet_jax.pretrain(settings(tmp_path / "run"), callbacks=[seen, Fails()], dataset=DATASET)
    assert isinstance(seen.calls[-1][-1], RuntimeError)


def test_pretraining_ends_early_and_keeps_its_best_checkpoint(tmp_path, monkeypatch):
    add = Evaluation.add
    config = settings(
        tmp_path / "run", "--eval.every-steps", "2", "--selection.patience", "2", "--checkpoint.keep", "1"
    )
    losses = {2: 5.0, 4: 4.0, 6: 4.5, 8: 4.0}

    def add_no_better(evaluation, step, numbers):
        numbers["loss"] = losses[step]
        add(evaluation, step, numbers)

    monkeypatch.setattr(Evaluation, "add", add_no_better)
    result = xlnet_jax.pretrain(config, dataset=DATASET)
    assert (result.stopped, result.steps, result.step, result.metrics["loss"]) == ("patience", 8, 4, 4.0)
    assert result.checkpoint == str(tmp_path / "run" / "checkpoints" / "4")
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == ["4", "8"]
    assert xlnet_jax.pretrain(config, dataset=DATASET) == result  # it is known to have ended

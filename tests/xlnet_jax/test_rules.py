"""Settings that contradict each other are refused before any work, by a line that says which and the rule."""

import dataclasses
import re

import pytest

from xlnet_jax.config import InputError
from xlnet_jax.presets import demo
from xlnet_jax.rules import validate

CONTRADICTIONS = [
    (
        "data",
        {"seq_len": 64},
        r"data.seq-len 64 is too short for data.reuse-len 64: .* seq-len must be at least reuse-len \+ 5",
    ),
    ("data", {"reuse_len": -1}, r"data.reuse-len -1 must be at least 0 \(0 = windows that share nothing\)"),
    ("data", {"reuse_len": 0}, "model.mem-len 64 needs data.reuse-len: with 0, windows hand nothing on"),
    (
        "data",
        {"perm_size": 48},
        "data.perm-size 48 must divide both parts of the window: data.reuse-len 64 and .* = 64",
    ),
    ("data", {"num_predict": 130}, "data.num-predict 130 is more than the window can hold: 65 targets .* at most 128"),
    ("data", {"num_predict": 0}, "data.num-predict 0 must be at least 1"),
    ("data", {"weights": (0.7, 0.2)}, "data.weights 0.7, 0.2 sum to 0.9, not 1"),
    ("data", {"weights": (1.5, -0.5)}, "data.weights 1.5, -0.5 must be positive: leave out the source"),
    ("data", {"weights": (float("nan"), 1.0)}, "data.weights nan, 1 must be positive"),
    ("data", {"batch_size": 0}, "data.batch-size 0 must be at least 1"),
    ("data", {"validation_fraction": 1.0}, r"data.validation-fraction 1.0 must be in \(0, 1\)"),
    ("data", {"mask_beta": 7}, "data.mask-alpha 6 must be at least data.mask-beta 7"),
    ("model", {"mem_len": 1000}, r"model.mem-len 1000 can never be filled: .* x data.reuse-len = 960 positions"),
    ("model", {"mem_len": -1}, r"model.mem-len -1 must be at least 0 \(0 = no memory\)"),
    ("model", {"d_model": 127}, "model.d-model 127 must be even"),
    ("model", {"dropout": 1.0}, r"model.dropout 1.0 must be in \[0, 1\)"),
    ("optimizer", {"learning_rate": 0.0}, "optimizer.learning-rate 0.0 must be positive"),
    ("optimizer", {"decay_steps": 50}, "optimizer.decay-steps 50 must be above optimizer.warmup-steps 100"),
    ("optimizer", {"weight_decay": float("nan")}, "optimizer.weight-decay nan must be a finite number"),
    ("optimizer", {"learning_rate": float("inf")}, "optimizer.learning-rate inf must be a finite number"),
    ("model", {"clamp_len": -7}, "model.clamp-len -7 must be at least 1, or -1 for no bound"),
    ("model", {"init_std": 0.0}, "model.init-std 0.0 must be positive"),
    ("optimizer", {"beta1": 1.0}, r"optimizer.beta1 1.0 must be in \[0, 1\)"),
    ("checkpoint", {"keep": 0}, "checkpoint.keep 0 must be at least 1"),
]


@pytest.mark.parametrize(("group", "change", "message"), CONTRADICTIONS)
def test_a_contradiction_names_its_settings_and_the_rule(group, change, message):
    config = demo()
    broken = dataclasses.replace(config, **{group: dataclasses.replace(getattr(config, group), **change)})
    with pytest.raises(InputError) as mistake:
        validate(broken)
    assert re.search(message, str(mistake.value)), str(mistake.value)
    assert "\n" not in str(mistake.value)


@pytest.mark.parametrize("name", ["corpus", "validation", "tokenizer", "workdir"])
def test_an_empty_name_is_no_default(name):
    with pytest.raises(InputError, match=f"{name} is empty: leave it out, or name something"):
        validate(dataclasses.replace(demo(), **{name: ""}))


@pytest.mark.parametrize("change", [{"num_predict": None}, {"weights": (0.7, 0.2, 0.1)}, {"weights": (1 / 3,) * 3}])
def test_a_window_without_a_goal_and_shares_that_sum_to_one_are_fine(change):
    validate(dataclasses.replace(demo(), data=dataclasses.replace(demo().data, **change)))


def test_a_short_run_may_end_inside_its_warmup():
    validate(dataclasses.replace(demo(), steps=5))

"""Contenders differ in what they are named for, and a budget buys each what it costs."""

import dataclasses

import pytest

from xlnet_jax.comparison.contenders import CONTENDERS, fit_to_budget, step_tokens
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import base, demo, large
from xlnet_jax.objectives.registry import step_flops
from xlnet_jax.settings.fields import flatten

MASKED = {
    "objective", "model.mem-len", "data.reuse-len", "data.num-predict", "data.targets", "data.bidirectional",
}  # fmt: skip
CAUSAL = {
    "objective", "model.attn-type", "model.num-segments", "data.window", "data.reuse-len", "data.num-predict",
    "data.bidirectional",
}  # fmt: skip
DIFFERS_IN = {
    "bert": MASKED | {"model.positions", "data.pair-loss"},
    "mlm": MASKED,
    "dae-transformer-xl": {"objective", "data.num-predict", "data.targets"},
    "plm": set(),
    "plm-k7": {"data.num-predict", "data.mask-alpha"},
    "plm-no-memory": {"model.mem-len"},
    "plm-no-spans": {"data.targets"},
    "plm-no-bidirectional": {"data.bidirectional"},
    "plm-next": {"data.pair-loss"},
    "clm": CAUSAL,
    "vanilla": CAUSAL | {"model.mem-len", "model.positions"},
    "prefix": CAUSAL - {"model.attn-type"} | {"model.mem-len"},
    "rtd": MASKED | {"model.positions", "data.mask-share", "data.random-share"},
    "electra": MASKED | {"model.positions", "data.mask-share", "data.random-share"},
}


@pytest.mark.parametrize("name", CONTENDERS)
def test_a_contender_differs_from_the_common_settings_in_what_it_is_named_for(name):
    common = large()
    config = fit_to_budget(name, CONTENDERS[name](common), common.steps * step_tokens(common), "tokens")
    differing = {
        ours.name for ours, its in zip(flatten(config), flatten(common), strict=True) if ours.value != its.value
    }
    assert differing == DIFFERS_IN[name]


def test_the_papers_k_of_seven_predicts_seventy_three_of_its_tokens():
    assert CONTENDERS["plm-k7"](base()).data.num_predict == 73


@pytest.mark.parametrize("name", CONTENDERS)
def test_equal_operations_are_as_many_updates_as_fit_and_not_one_more(name):
    common, budget = demo(), 1e12
    config = fit_to_budget(name, CONTENDERS[name](common), budget, "operations")
    assert config.steps * step_flops(config) <= budget < (config.steps + 1) * step_flops(config)


@pytest.mark.parametrize(
    ("decay_steps", "steps", "counts"),
    [(900, 300, (30, 270, 75)), (101, 50, (5, 6, 12)), (101, 1, (0, 1, 1))],  # of 1,000 steps; rounded, at least 1
)
def test_what_counts_updates_keeps_its_share(decay_steps, steps, counts):
    common = demo()
    common = dataclasses.replace(common, optimizer=dataclasses.replace(common.optimizer, decay_steps=decay_steps))
    config = fit_to_budget("plm", common, (steps + 0.9) * step_tokens(common), "tokens")
    optimizer = config.optimizer
    assert config.steps == steps
    assert (optimizer.warmup_steps, optimizer.decay_steps, config.eval.every_steps) == counts


def test_a_budget_below_one_update_is_refused_with_what_one_costs():
    with pytest.raises(InputError, match=r"--budget 2047 is less than one update of plm, which takes 2,048 tokens"):
        fit_to_budget("plm", demo(), 2047, "tokens")


def test_settings_that_a_contender_cannot_have_are_refused_by_its_name():
    common = dataclasses.replace(demo(), data=dataclasses.replace(demo().data, emit="dense"))
    with pytest.raises(InputError, match=r"^clm: --objective clm with data\.emit dense"):
        fit_to_budget("clm", CONTENDERS["clm"](common), 1e9, "tokens")

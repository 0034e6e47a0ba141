"""Contenders differ in what they are named for, and a budget buys each what it costs."""

import dataclasses

import pytest

from xlnet_jax.comparison.contenders import CONTENDERS, fit_to_budget, step_tokens
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import base, demo
from xlnet_jax.objectives.registry import step_flops


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

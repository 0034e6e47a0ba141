"""Numbers of training steps that a budget pays for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from xlnet_jax.errors import InputError
from xlnet_jax.objectives.flops import step_flops
from xlnet_jax.objectives.rules import validate
from xlnet_jax.settings.config import Config

Equal = Literal["tokens", "operations"]


def step_tokens(config: Config) -> int:
    """Return the number of tokens in the windows of one step, as papers count them: reused text counts again."""
    return config.data.batch_size * config.data.seq_len


COST: dict[Equal, Callable[[Config], int]] = {"tokens": step_tokens, "operations": step_flops}


def within_budget(name: str, config: Config, budget: float, equal: Equal) -> Config:
    """Return the settings of a contender with as many steps as the budget pays for; settings that count steps (warmup,
    decay, evaluation) keep their share of the run.

    Raises InputError where the budget is below one step, or the settings contradict each other.
    """
    cost = COST[equal](config)
    steps = int(budget // cost)
    if steps < 1:
        raise InputError(f"--budget {budget:g} is less than one update of {name}, which takes {cost:,} {equal}")
    optimizer, share = config.optimizer, steps / config.steps
    warmup = round(share * optimizer.warmup_steps)
    decay = None if optimizer.decay_steps is None else max(round(share * optimizer.decay_steps), warmup + 1)
    config = replace(
        config,
        steps=steps,
        optimizer=replace(optimizer, warmup_steps=warmup, decay_steps=decay),
        eval=replace(config.eval, every_steps=max(round(share * config.eval.every_steps), 1)),
    )
    try:
        validate(config)
    except InputError as contradiction:
        raise InputError(f"{name}: {contradiction}") from None
    return config

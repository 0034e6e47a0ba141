"""Commands that a finished pretraining run proposes."""

import shlex

from xlnet_jax.objectives.presets import PRESETS, with_objective
from xlnet_jax.objectives.rules import unread
from xlnet_jax.settings.config import FIXED_BY_WEIGHTS, Config
from xlnet_jax.settings.plain import flatten


def defaults_of(config: Config) -> Config:
    """Return the settings of the run's preset and objective, before anything was set by hand."""
    return with_objective(PRESETS[config.preset](), config.objective)


def command_of(config: Config) -> str:
    """Return the command line of these settings: the preset, the objective, and what differs from them.

    Settings that change nothing beside the others are left out, because `train` refuses them.
    """
    left_out = {name for name, _ in unread(config)}
    if config.tokenizer:
        left_out.add("model.vocab-size")  # a given tokenizer brings its vocabulary along
    if config.init:
        left_out |= {f"model.{name.replace('_', '-')}" for name in FIXED_BY_WEIGHTS}
    words = ["python", "-m", "xlnet_jax.train", "--preset", config.preset]
    if config.objective != PRESETS[config.preset]().objective:
        words += ["--objective", config.objective]
    for (name, value, _), (_, default, _) in zip(flatten(config), flatten(defaults_of(config)), strict=True):
        if value == default or name in left_out:
            continue
        if isinstance(value, bool):
            group, dot, last = name.rpartition(".")
            words += [f"--{group}{dot}{'' if value else 'no-'}{last}"]
        else:
            words += [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]
    return shlex.join(words)

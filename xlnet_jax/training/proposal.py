"""Commands that a finished pretraining run proposes."""

import shlex

from xlnet_jax.objectives.presets import PRESETS, with_objective
from xlnet_jax.objectives.rules import unread
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import differences


def defaults_of(config: Config) -> Config:
    """Return the settings of the run's preset and objective, before anything was set by hand."""
    return with_objective(PRESETS[config.preset](), config.objective)


def command_of(config: Config) -> str:
    """Return the command line of these settings: the preset, the objective, and what differs from them.

    Settings that change nothing beside the others are left out, because `train` refuses them.
    """
    left_out = {name for name, _ in unread(config)}
    words = ["python", "-m", "xlnet_jax.train", "--preset", config.preset]
    if config.objective != PRESETS[config.preset]().objective:
        words += ["--objective", config.objective]
    for setting, _ in differences(config, defaults_of(config)):
        name, value = setting.name, setting.value
        # Weights bring their network along, and a tokenizer its vocabulary.
        brought = (config.init and setting.has("weights")) or (name == "model.vocab-size" and config.tokenizer)
        if name in left_out or brought:
            continue
        if isinstance(value, bool):
            group, dot, last = name.rpartition(".")
            words += [f"--{group}{dot}{'' if value else 'no-'}{last}"]
        else:
            words += [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]
    return shlex.join(words)

"""Commands that a finished pretraining run proposes."""

import shlex
from dataclasses import replace
from typing import Any

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.interop import hf_files
from xlnet_jax.interop.contents import Pretrained
from xlnet_jax.objectives.following import following
from xlnet_jax.objectives.presets import PRESETS, defaults_of
from xlnet_jax.objectives.rules import unread
from xlnet_jax.printing import without_secrets
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import differences, marked

LARGER = {
    "demo": "small",
    "small": "base",
    "base": "large",
    "transformer-xl-wt103": "transformer-xl-wt103-large",
}
"""The preset with which a run of a preset goes on to a larger network."""


def command_of(config: Config) -> str:
    """Return the command line of these settings: the preset, the objective, and what differs from them.

    Settings that change nothing beside the others are left out, because `train` refuses them.
    """
    left_out, usual = {name for name, _ in unread(config)}, defaults_of(config)
    if (seq_len := config.data.seq_len) != usual.data.seq_len:
        asked = replace(usual, data=replace(usual.data, seq_len=seq_len))
        lengths = following(asked, usual, ()).data
        usual = replace(usual, data=replace(lengths, seq_len=usual.data.seq_len))
    words = ["python", "-m", "xlnet_jax.train", "--preset", config.preset]
    if config.objective != PRESETS[config.preset]().objective:
        words += ["--objective", config.objective]
    for setting, _ in differences(config, usual):
        name, value = setting.name, without_secrets(setting.value)
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


def longer(config: Config, folder: str) -> Config:
    """Return the settings of a run of four times as many steps. A schedule that would end before them ends with them:
    after its end nothing is learned."""
    steps, optimizer = 4 * config.steps, config.optimizer
    if optimizer.decay_steps is not None and optimizer.decay_steps < steps:
        optimizer = replace(optimizer, decay_steps=None)
    return replace(config, steps=steps, optimizer=optimizer, workdir=f"{folder.rstrip('/')}-longer")


def larger(config: Config, tokenizer: str) -> Config | None:
    """Return the settings of the next larger preset for the same text; None where there is none."""
    if config.preset not in LARGER:
        return None
    start = defaults_of(replace(config, preset=LARGER[config.preset]))
    text: Any = {name: getattr(config, name) for name in marked(Config, "text")}
    return replace(start, **text, tokenizer=tokenizer)


def command_for_other_text(config: Config) -> str:
    """Return the command that trains from the run's preset and objective on a text of the user."""
    words = ["python", "-m", "xlnet_jax.train"]
    words += ["--preset", config.preset] if config.preset != Config().preset else []
    words += ["--objective", config.objective] if config.objective != PRESETS[config.preset]().objective else []
    return shlex.join([*words, "--corpus", "my.txt"])


def finetuning_of(folder: str) -> str:
    """Return the command that finetunes the model of a run in `folder` for a table of the user."""
    words = ["python", "-m", "xlnet_jax.finetune", "--task", "classification", "--init", folder]
    return shlex.join([*words, "--train", "mine.csv", "--eval", "dev.csv"])


def conversion_of(config: Config, tokenizer: Tokenizer, folder: str) -> str | None:
    """Return the command that makes a folder of Hugging Face of a run's model; None where that cannot hold it."""
    if not hf_files.can_hold(Pretrained(config.model, {}, config.objective, tokenizer=tokenizer)):
        return None
    name = folder.rstrip("/").rpartition("/")[2]
    return shlex.join(["python", "-m", "xlnet_jax.convert", folder, f"{name}-hf", "--to", "hf"])

"""Commands that a finished pretraining run proposes."""

import shlex
from dataclasses import replace

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.interop import hf_files
from xlnet_jax.interop.contents import Contents
from xlnet_jax.objectives.following import following
from xlnet_jax.objectives.presets import PRESETS, with_objective
from xlnet_jax.objectives.rules import unread
from xlnet_jax.printing import without_secrets
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import differences


def defaults_of(config: Config) -> Config:
    """Return the settings of the run's preset and objective, before anything was set by hand."""
    return with_objective(PRESETS[config.preset](), config.objective)


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


def finetuning_of(folder: str) -> str:
    """Return the command that finetunes the model of a run in `folder` for a table of the user."""
    words = ["python", "-m", "xlnet_jax.finetune", "--task", "classification", "--init", folder]
    return shlex.join([*words, "--train", "mine.csv", "--eval", "dev.csv"])


def conversion_of(config: Config, tokenizer: Tokenizer, folder: str) -> str | None:
    """Return the command that makes a folder of Hugging Face of a run's model; None where that cannot hold it."""
    if not hf_files.can_hold(Contents(config.model, {}, config.objective, tokenizer=tokenizer)):
        return None
    name = folder.rstrip("/").rpartition("/")[2]
    return shlex.join(["python", "-m", "xlnet_jax.convert", folder, f"{name}-hf", "--to", "hf"])

"""The folder of a pretraining run. Knowing it needs no jax, so that hosts can meet there first."""

from data_pipelines import sources
from xlnet_jax.objectives.presets import PRESETS
from xlnet_jax.settings.config import Config


def folder_of(config: Config) -> str:
    """Return `workdir`, or a name made of text, preset and objective."""
    if config.workdir:
        return config.workdir
    objective = "" if config.objective == PRESETS[config.preset]().objective else f"-{config.objective}"
    return f"runs/{name_of_text(config)}-{config.preset}{objective}"


def name_of_text(config: Config) -> str:
    """Return a short name of the text, that can be part of a file name."""
    return "+".join(map(sources.describe, config.corpus)) or "austen"

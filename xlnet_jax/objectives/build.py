"""The objective of a pretraining run, chosen by its settings."""

from xlnet_jax.objectives.language_model import LanguageModel
from xlnet_jax.objectives.rtd import ReplacedTokenDetection
from xlnet_jax.settings.config import Config

PretrainingObjective = LanguageModel | ReplacedTokenDetection


def objective_of(config: Config) -> PretrainingObjective:
    """That of config.objective."""
    return ReplacedTokenDetection(config) if config.objective == "rtd" else LanguageModel(config)

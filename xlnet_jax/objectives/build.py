"""The objective of a pretraining run, chosen by its settings."""

from xlnet_jax.config import Config
from xlnet_jax.objectives.language_model import LanguageModel
from xlnet_jax.objectives.replaced import ReplacedTokenDetection

PretrainingObjective = LanguageModel | ReplacedTokenDetection


def objective_of(config: Config) -> PretrainingObjective:
    """That of config.objective."""
    return ReplacedTokenDetection(config) if config.objective == "rtd" else LanguageModel(config)

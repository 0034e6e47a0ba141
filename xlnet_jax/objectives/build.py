"""The traced objective of a pretraining run."""

from xlnet_jax.objectives.base import Objective
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config


def objective_of(config: Config) -> Objective:
    """Return the objective that config.objective names."""
    return objective_named(config.objective).build(config)

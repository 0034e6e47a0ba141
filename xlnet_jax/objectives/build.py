"""The traced objective of a pretraining run."""

from importlib import import_module

from xlnet_jax.objectives.base import Objective
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config


def objective_of(config: Config) -> Objective:
    """Return the objective that config.objective names."""
    module, _, traced = objective_named(config.objective).traced.partition(".")
    return getattr(import_module(f"xlnet_jax.objectives.{module}"), traced)(config)

"""Build the train step for devices that are not here."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from xlnet_jax.objectives.build import objective_of
from xlnet_jax.settings.config import Config
from xlnet_jax.training import sharding
from xlnet_jax.training.attention import chosen
from xlnet_jax.training.program import AbstractBatch, Program, batch_of_windows


def abstract_step(config: Config, devices: Sequence[Any]) -> tuple[Program[Any], AbstractBatch]:
    """Return the program that `train` would run on these devices, with the attention implementation that it would
    choose, and the shapes of its batch.

    Raises InputError where the mesh does not divide the devices, the network or the batch, and where the settings ask
    for an attention kernel that does not exist for them.
    """
    model, _ = chosen(config, sharding.make_mesh(config, devices))
    config = replace(config, model=model)
    program = Program.of(config, objective_of(config), devices)
    return program, batch_of_windows(config, program.mesh)

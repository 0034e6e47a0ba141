"""Build the train step for devices that are not here."""

from collections.abc import Sequence
from typing import Any

from xlnet_jax.settings.config import Config
from xlnet_jax.training import sharding
from xlnet_jax.training.attention import choose_attention
from xlnet_jax.training.program import AbstractBatch, Program, pretraining_program


def abstract_step(config: Config, devices: Sequence[Any]) -> tuple[Program[Any], AbstractBatch]:
    """Return the program that `train` would run on these devices, with the attention implementation that it would
    choose, and the shapes of its batch.

    Raises InputError where the mesh does not divide the devices, the network or the batch, and where the settings ask
    for an attention kernel that does not exist for them.
    """
    attention, _ = choose_attention(config, sharding.make_mesh(config, devices))
    return pretraining_program(config, attention, devices)

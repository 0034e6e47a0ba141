"""Compile the train step ahead of time, for devices that are not here."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from data_pipelines.objectives.fields import batch_spec, shape_of
from xlnet_jax.objectives.build import objective_of
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config
from xlnet_jax.training import sharding
from xlnet_jax.training.attention import chosen
from xlnet_jax.training.program import Program


@dataclass(frozen=True)
class Abstract:
    """Train step before it is compiled: the run's program, and shapes, types and shardings of its batch."""

    config: Config
    """settings of the step: `attention` is the implementation that was chosen"""
    program: Program[Any]
    batch: dict[str, jax.ShapeDtypeStruct]


class DoesNotFit(Exception):
    """The compiler's answer that a step needs more memory than a device has: bytes needed, and bytes available."""

    def __init__(self, needed: int, available: int) -> None:
        super().__init__(needed, available)
        self.needed, self.available = needed, available


def abstract_step(config: Config, devices: Sequence[Any]) -> Abstract:
    """Return the step that `train` would run on these devices, with the attention implementation that it would choose.

    Raises InputError where the mesh does not divide the devices, the network or the batch, and where the settings ask
    for an attention kernel that does not exist for them.
    """
    model, _ = chosen(config, sharding.make_mesh(config, devices))
    config = replace(config, model=model)
    program = Program.of(config, objective_of(config), devices)
    return Abstract(config, program, abstract_batch(config, program.mesh))


def compile_step(abstract: Abstract) -> tuple[Any, float]:
    """Return the compiled step, and the seconds that compiling took. Raises DoesNotFit."""
    start = time.perf_counter()
    step: Any = abstract.program.train_step
    try:
        compiled = step.lower(abstract.program.plan.abstract, abstract.batch).compile()
    except jax.errors.JaxRuntimeError as error:
        raise _read(error) from None
    return compiled, time.perf_counter() - start


def abstract_batch(config: Config, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes, types and shardings of a batch."""
    data = config.data
    spec = batch_spec(objective_named(config.objective).filling.fields, data)
    over_batch = sharding.over_batch(mesh)
    return {
        name: jax.ShapeDtypeStruct(shape_of(field, data.batch_size, data), jnp.dtype(field.dtype), sharding=over_batch)
        for name, field in spec.items()
    }


_OUT_OF_MEMORY = re.compile(
    r"temporaries \((?P<needed>[\d.]+)(?P<unit>[KMG])\) exceeds available HBM \((?P<there>[\d.]+)(?P<there_unit>[KMG])"
    r"|Used (?P<used>[\d.]+)(?P<used_unit>[KMG]) of (?P<of>[\d.]+)(?P<of_unit>[KMG])"
)


def _read(error: Exception) -> Exception:
    """Return DoesNotFit where the compiler ran out of device memory; any other error unchanged."""
    match = _OUT_OF_MEMORY.search(str(error))
    if not match:
        return error
    number, unit, limit, limit_unit = (group for group in match.groups() if group)
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}
    return DoesNotFit(int(float(number) * scale[unit]), int(float(limit) * scale[limit_unit]))

"""Devices of TPU slices and of GPUs, by their public names: a program can be compiled for them without having one."""

import importlib.util
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from xlnet_jax.costs.chips import CHIPS, GIB, Chip
from xlnet_jax.errors import InputError
from xlnet_jax.planning import gpus

# Ask no metadata server what this machine is; let another process hold the TPU; the two names keep libtpu quiet.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
"""variables to set before jax is imported"""

RESERVED = int(0.52 * GIB)
"""bytes of a TPU device that programs cannot use: the compiler offers 15.48 GiB of 16, and 7.48 of 8"""


@dataclass(frozen=True)
class Generation:
    """TPU generation: the slices of one kind of chip."""

    shapes: tuple[str, ...]
    """chips along each axis, of the slices that Google Cloud documents"""
    cores: int = 1
    """number of cores of a chip, which names such as v3-32 count"""
    compiler_name: str | None = None
    """the compiler's own name for it; None = the public name"""
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")
GENERATIONS = {
    "v2": Generation(("2x2", "4x4", "8x8", "8x16", "16x16"), cores=2),
    "v3": Generation(("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"), cores=2),
    "v4": Generation((*_CUBES, "16x16x16"), cores=2, settings={"chip_config_name": "megacore"}),
    "v5e": Generation(_FLAT),
    "v5p": Generation((*_CUBES, "16x16x16", "16x16x24"), cores=2),
    "v6e": Generation(_FLAT),
    "v7": Generation((*_CUBES, "16x16x16", "16x16x36"), cores=2, compiler_name="tpu7x"),
}
_ALIASES = {"v5litepod": "v5e", "v7x": "v7", "tpu7x": "v7"}


@dataclass(frozen=True)
class Topology:
    """Slices of one shape or GPUs of one kind, and the devices that jax sees in them."""

    name: str
    chip: Chip
    chips: int
    devices: tuple[Any, ...]
    available: int
    """bytes on each device that programs can use"""


def find_topology(name: str, slices: int = 1) -> Topology:
    """Return slices by a name such as v3:16x32 (chips along each axis) or v3-1024 (as Google Cloud sells it), or GPUs
    by their kind and number, as h100-8.

    Raises InputError where there are no such devices, or their compiler is not installed.
    """
    if (found_gpus := gpus.parse(name)) is not None:
        return _gpus(*found_gpus, slices)
    generation, shape = _parse(name)
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise InputError(
            "the TPU compiler is not installed: pip install 'xlnet_jax[plan]' in an environment of its own"
        )
    from jax.experimental import topologies

    found = GENERATIONS[generation]
    alone = all(n == 1 for n in shape)
    settings = dict(found.settings) | ({"chips_per_host_bounds": [1, 1, 1]} if alone else {})
    if slices > 1:
        settings["num_slices"] = slices
    full_name = f"{found.compiler_name or generation}:{'x'.join(map(str, shape))}"
    try:
        description = topologies.get_topology_desc(platform="tpu", topology_name=full_name, **settings)
    except Exception as error:
        if "INVALID_ARGUMENT" not in str(error):
            raise
        raise InputError(_unknown(name)) from None
    chip = next(chip for chip in CHIPS if chip.name == generation)
    return Topology(
        f"{generation}:{'x'.join(map(str, shape))}",
        chip,
        slices * math.prod(shape),
        tuple(description.devices),
        chip.memory // chip.devices - RESERVED,
    )


def _gpus(kind: str, count: int, slices: int) -> Topology:
    if slices > 1:
        raise InputError(f"`mesh.dcn_data` {slices}: GPUs have no slices; name all of them, as {kind}-{slices * count}")
    chip = gpus.chip_of_kind(kind)
    return Topology(f"{kind}-{count}", chip, count, gpus.devices(kind, count), int(chip.memory * gpus.SHARE))


def _parse(name: str) -> tuple[str, tuple[int, ...]]:
    """Return (generation, chips along each axis)."""
    match = re.fullmatch(r"([a-z0-9]+)(?::(\d+(?:x\d+)+)|-(\d+))", name.lower())
    generation = _ALIASES.get(match[1], match[1]) if match else ""
    if not match or generation not in GENERATIONS:
        raise InputError(_unknown(name))
    known = [tuple(map(int, shape.split("x"))) for shape in GENERATIONS[generation].shapes]
    if match[3]:
        counted = [s for s in known if math.prod(s) * GENERATIONS[generation].cores == int(match[3])]
        if not counted:
            raise InputError(_unknown(name))
        return generation, counted[0]
    shape = tuple(map(int, match[2].split("x")))
    if len(shape) != len(known[0]) or not 0 < math.prod(shape) <= math.prod(known[-1]):
        raise InputError(_unknown(name))
    return generation, shape


def _unknown(name: str) -> str:
    listed = "; ".join(f"{generation}:{' '.join(g.shapes)}" for generation, g in GENERATIONS.items())
    return (
        f"`topology` {name}: there is no such slice. By chips along each axis, as v3:16x32, or as they are sold, "
        f"v3-1024: {listed}. GPUs, up to {gpus.IN_A_HOST} or multiples of them, as h100-8: {' '.join(gpus.GPUS)}"
    )

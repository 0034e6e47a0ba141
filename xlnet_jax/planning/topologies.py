"""Find the devices of TPU slices and GPUs by their public names, to compile programs for them without having them.
For a GPU, XLA's compiler reads a description of its properties.
"""

import importlib.util
import math
import os
import re
from dataclasses import dataclass
from typing import Any

from xlnet_jax.costs import GIB, Chip, chip_named
from xlnet_jax.errors import InputError

GPUS_IN_A_HOST = 8
CUDA_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")

GPU_MEMORY_SHARE = 0.75
"""share of a GPU's memory that jax takes by default (XLA_PYTHON_CLIENT_MEM_FRACTION)"""

GPU_MEMORY_SIZES = (16, 24, 32, 40, 48, 80, 141)
"""GB of memory of common GPUs"""


@dataclass(frozen=True)
class Gpu:
    """Properties of a GPU as CUDA reports them."""

    chip: str
    """name in costs.py"""
    capability: tuple[int, int]
    processors: int
    """streaming multiprocessors"""
    arithmetic_units: int
    """float32 units in a processor"""
    clock_ghz: float
    threads: int
    """maximum threads in a processor"""
    shared_memory: int
    """bytes per processor"""
    shared_memory_of_block: int
    """maximum bytes per block"""
    cache: int
    """bytes of L2 cache"""


# Numbers: the descriptions a100_sxm_80, a6000, h100_sxm and h200 of openxla/xla, xla/backends/gpu/target_config/specs.
# L4: NVIDIA Ada GPU Architecture (AD104 with 58 processors, 48 MiB of cache) and its data sheet (2.04 GHz); CUDA C++
# Programming Guide, technical specifications of compute capability 8.9.
GPUS = {
    "l4": Gpu("L4", (8, 9), 58, 128, 2.04, 1536, 102_400, 101_376, 50_331_648),
    "a6000": Gpu("RTX A6000", (8, 6), 84, 128, 1.8, 1536, 102_400, 101_376, 6_291_456),
    "a100": Gpu("A100 80GB", (8, 0), 108, 64, 1.41, 2048, 167_936, 166_912, 41_943_040),
    "h100": Gpu("H100", (9, 0), 132, 128, 1.98, 2048, 233_472, 232_448, 52_428_800),
    "h200": Gpu("H200", (9, 0), 132, 128, 1.98, 2048, 233_472, 232_448, 52_428_800),
}


def parse_gpus(name: str) -> tuple[str, int] | None:
    """Parse a name such as h100-8 into the kind and number of GPUs; None = not a name of GPUs.

    More than eight must be a multiple of eight: hosts of eight.
    """
    match = re.fullmatch(r"([a-z0-9]+)-(\d+)", name.lower())
    if not match or match[1] not in GPUS:
        return None
    count = int(match[2])
    return (match[1], count) if count and (count <= GPUS_IN_A_HOST or count % GPUS_IN_A_HOST == 0) else None


def memory_for_programs(card: int) -> float:
    """Return the bytes that programs can use on a GPU of `card` GB."""
    return card * 10**9 * GPU_MEMORY_SHARE


def describe_gpu(kind: str) -> str:
    """Return XLA's description of a GPU: a GpuTargetConfigProto in text format."""
    gpu, chip = GPUS[kind], chip_named(GPUS[kind].chip)
    major, minor = gpu.capability
    # Instructions of a single architecture ("9.0a"), which matrix products on Hopper use.
    extension = "ACCELERATED_FEATURES" if major >= 9 else "NONE"
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: {gpu.threads}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {gpu.shared_memory_of_block}
  shared_memory_per_core: {gpu.shared_memory}
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  core_count: {gpu.processors}
  fpus_per_core: {gpu.arithmetic_units}
  clock_rate_ghz: {gpu.clock_ghz}
  memory_bandwidth: {int(chip.memory_bandwidth)}
  device_memory_size: {chip.memory}
  l2_cache_size: {gpu.cache}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{chip.device_kinds[0]}"
"""


# Do not query the metadata server; work while another process holds the TPU; the two names keep libtpu quiet.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # a program is read back only where its devices are
}
"""environment variables to set before jax is imported"""

RESERVED = int(0.52 * GIB)
"""bytes on a TPU device that programs cannot use: the compiler offers 15.48 GiB of 16 and 7.48 of 8"""


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")
SLICES = {
    "v2": ("2x2", "4x4", "8x8", "8x16", "16x16"),
    "v3": ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"),
    "v4": (*_CUBES, "16x16x16"),
    "v5e": _FLAT,
    "v5p": (*_CUBES, "16x16x16", "16x16x24"),
    "v6e": _FLAT,
    "v7": (*_CUBES, "16x16x16", "16x16x36"),
}
"""slices that Google Cloud documents, by chips along each axis"""

_ALIASES = {"v5litepod": "v5e", "v7x": "v7", "tpu7x": "v7"}


@dataclass(frozen=True)
class Topology:
    """Slices of one shape or GPUs of one kind, and their jax devices."""

    name: str
    chip: Chip
    chips: int
    devices: tuple[Any, ...]
    available: int
    """bytes on each device that programs can use"""


def find_topology(name: str, slices: int = 1) -> Topology:
    """Find slices by a name such as v3:16x32 (chips along each axis) or v3-1024 (as Google Cloud sells it), or GPUs by
    kind and number, such as h100-8.

    Raises InputError if there are no such devices or their compiler is not installed.
    """
    if (found_gpus := parse_gpus(name)) is not None:
        return _find_gpus(*found_gpus, slices)
    generation, shape = parse_slice(name)
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise InputError(
            "the TPU compiler is not installed: pip install -e '.[plan]' in the clone, in a separate environment"
        )
    from jax.experimental import topologies

    settings: dict[str, Any] = {"chip_config_name": "megacore"} if generation == "v4" else {}
    if math.prod(shape) == 1:
        settings["chips_per_host_bounds"] = [1, 1, 1]
    if slices > 1:
        settings["num_slices"] = slices
    chips = "x".join(map(str, shape))
    compilers_name = "tpu7x" if generation == "v7" else generation
    try:
        description = topologies.get_topology_desc(
            platform="tpu", topology_name=f"{compilers_name}:{chips}", **settings
        )
    except Exception as error:
        if "INVALID_ARGUMENT" not in str(error):
            raise
        raise InputError(_refusal(name)) from None
    chip = chip_named(generation)
    available = chip.memory // chip.devices - RESERVED
    return Topology(f"{generation}:{chips}", chip, slices * math.prod(shape), tuple(description.devices), available)


def _find_gpus(kind: str, count: int, slices: int) -> Topology:
    if slices > 1:
        raise InputError(
            "mesh.dcn_data", slices, f": GPUs have no slices; give their total number, {kind}-{slices * count}"
        )
    if not any(importlib.util.find_spec(name) for name in CUDA_PLUGINS):
        raise InputError(
            "the GPU compiler is not installed: pip install -e '.[plan-gpu]' in the clone, in a separate environment"
        )
    from jax.experimental import topologies

    chip, hosts = chip_named(GPUS[kind].chip), -(-count // GPUS_IN_A_HOST)
    described = topologies.get_topology_desc(
        platform="cuda", target_config=describe_gpu(kind), topology=f"1x{hosts}x{count // hosts}"
    )
    return Topology(f"{kind}-{count}", chip, count, tuple(described.devices), int(chip.memory * GPU_MEMORY_SHARE))


def parse_slice(name: str) -> tuple[str, tuple[int, ...]]:
    """Return (generation, chips along each axis)."""
    match = re.fullmatch(r"([a-z0-9]+)(?::(\d+(?:x\d+)+)|-(\d+))", name.lower())
    generation = _ALIASES.get(match[1], match[1]) if match else ""
    if match and generation in SLICES:
        known = [tuple(map(int, shape.split("x"))) for shape in SLICES[generation]]
        cores = chip_named(generation).cores
        for shape in [tuple(map(int, match[2].split("x")))] if match[2] else known:
            is_slice = len(shape) == len(known[0]) and 0 < math.prod(shape) <= math.prod(known[-1])
            if is_slice and (match[2] or math.prod(shape) * cores == int(match[3])):
                return generation, shape
    raise InputError(_refusal(name))


def _refusal(name: str) -> str:
    listed = "; ".join(f"{generation}:{' '.join(shapes)}" for generation, shapes in SLICES.items())
    return (
        f"`topology` {name}: no such slice; known slices, by chips along each axis (v3:16x32) or as sold (v3-1024): "
        f"{listed}; known GPUs, up to {GPUS_IN_A_HOST} or a multiple (h100-8): {' '.join(GPUS)}"
    )

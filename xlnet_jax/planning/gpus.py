"""NVIDIA GPUs that are not here: what XLA's compiler wants to know of them, and devices to compile for."""

import importlib.util
import re
from dataclasses import dataclass
from typing import Any

from xlnet_jax.costs.chips import CHIPS, Chip
from xlnet_jax.errors import InputError

IN_A_HOST = 8
PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")

SHARE = 0.75
"""share of a GPU's memory that jax takes, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise"""

CARDS = (16, 24, 32, 40, 48, 80, 141)
"""GB of memory of common GPUs"""


@dataclass(frozen=True)
class Gpu:
    """Properties of a GPU as CUDA reports them."""

    chip: str
    """name in costs/chips.py"""
    capability: tuple[int, int]
    processors: int
    """streaming multiprocessors"""
    arithmetic_units: int
    """float32 units of a processor"""
    clock_ghz: float
    threads: int
    """most threads that a processor holds"""
    shared_memory: int
    """bytes of a processor"""
    shared_memory_of_block: int
    """bytes that a block may ask for"""
    cache: int
    """bytes of the second-level cache"""


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


def parse(name: str) -> tuple[str, int] | None:
    """Return the kind of GPU and the number of GPUs that a name such as h100-8 says; None = no name of GPUs.

    More than eight fill hosts of eight.
    """
    match = re.fullmatch(r"([a-z0-9]+)-(\d+)", name.lower())
    if not match or match[1] not in GPUS:
        return None
    count = int(match[2])
    return (match[1], count) if count and (count <= IN_A_HOST or count % IN_A_HOST == 0) else None


def chip_of_kind(kind: str) -> Chip:
    """Return the data sheet of a kind of GPU."""
    return next(chip for chip in CHIPS if chip.name == GPUS[kind].chip)


def memory_for_programs(card: int) -> float:
    """Return the bytes that programs can use of a GPU of `card` GB."""
    return card * 10**9 * SHARE


def devices(kind: str, count: int) -> tuple[Any, ...]:
    """Return devices of GPUs that are not here. Raises InputError where jax's CUDA plugin is not installed."""
    if not any(importlib.util.find_spec(name) for name in PLUGINS):
        raise InputError(
            "the compiler for GPUs is not installed: pip install 'xlnet_jax[plan-gpu]' in an environment of its own"
        )
    from jax.experimental import topologies

    hosts = -(-count // IN_A_HOST)
    described = topologies.get_topology_desc(
        platform="cuda", target_config=description(kind), topology=f"1x{hosts}x{count // hosts}"
    )
    return tuple(described.devices)


def description(kind: str) -> str:
    """Return XLA's description of a GPU, a GpuTargetConfigProto as text."""
    gpu, chip = GPUS[kind], chip_of_kind(kind)
    major, minor = gpu.capability
    # The instructions of one architecture alone ("9.0a"), which products on Hopper use.
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

"""Devices that a program is traced for, which need not be here."""

from typing import Any

import jax


def device_kind() -> str:
    """Return the kind of the devices, as cpu, TPU v4 or NVIDIA H200."""
    return _device().device_kind


def platform() -> str:
    """Return the platform of the devices: cpu, gpu or tpu."""
    return "gpu" if _device().platform == "cuda" else _device().platform


def _device() -> Any:
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.devices()[0] if device is None else device

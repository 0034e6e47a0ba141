"""Devices that a program is traced for, which need not be here."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax

CPU, GPU = "cpu", "gpu"


class Interpretation(NamedTuple):
    """Device that kernels are interpreted for, where it is not here."""

    device: str  # a generation of TPUs, such as v5e, or GPU
    interpret: Any  # argument of `pallas_call`


_INTERPRETATION: ContextVar[Interpretation | None] = ContextVar("interpretation", default=None)


@contextmanager
def interpret_kernels(device: str = "v5e", interpret: Any = True) -> Iterator[None]:
    """Interpret the kernels of calls traced inside, as a device would compute them: tests without that device.

    device: a generation of TPUs, or "gpu"; interpret: argument of `pallas_call`: True = quickly,
    `pltpu.InterpretParams` = with the memories of a TPU.
    """
    token = _INTERPRETATION.set(Interpretation(device, interpret))
    try:
        yield
    finally:
        _INTERPRETATION.reset(token)


def interpretation() -> Interpretation | None:
    """Return how `interpret_kernels` has kernels computed; None = on their device."""
    return _INTERPRETATION.get()


def device_kind() -> str:
    """Return the kind of the devices, as cpu, TPU v4 or NVIDIA H200."""
    return _device().device_kind


def platform() -> str:
    """Return the platform of the devices: cpu, gpu or tpu."""
    return "gpu" if _device().platform == "cuda" else _device().platform


def _device() -> Any:
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.devices()[0] if device is None else device

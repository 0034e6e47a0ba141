"""Memory that a device has for programs: as its driver says, by the data sheet of its chip, or this machine's."""

import os
import re
from pathlib import Path

import jax

from xlnet_jax.costs.chips import chip_of

_CGROUPS, _OWN_CGROUP, _MEMINFO = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")
OF_PROCESS = 5 << 28
"""Bytes that Python, jax, its compiler and the input pipeline take beside the step of a small network, measured; a
constant, so that the same settings on the same machine end in the same choice"""


def available_on(device: jax.Device) -> int | None:
    """Return the bytes that programs can have on a device of this process; None where nothing says.

    A GPU says its share of XLA_PYTHON_CLIENT_MEM_FRACTION. The devices of a CPU share the memory of the machine with
    the process itself: where both together exceed the limit of a container, the kernel kills it without a word. Of a
    TPU it is the whole memory: its compiler refuses by itself what exceeds the part that programs can have.
    """
    if device.platform == "cpu":
        whole = of_machine()
        return whole and max(whole - OF_PROCESS, whole // 8) // device.client.local_device_count()
    try:
        stats = device.memory_stats() or {}
    except jax.errors.JaxRuntimeError:  # a backend may know of none
        stats = {}
    chip = chip_of(device.device_kind)
    by_data_sheet = chip.memory // chip.devices if chip else None
    by_driver: int | None = stats.get("bytes_limit")
    return by_data_sheet or by_driver if device.platform == "tpu" else by_driver or by_data_sheet


def of_machine() -> int | None:
    """Return the bytes of memory that this process may use: the machine's or its container's, swap space, and no more
    than `ulimit -v` allows; None where the system does not say."""
    bounds = [bound for bound in (_physical(), *_of_cgroups()) if bound]
    whole = min(bounds) + _swap() if bounds else None
    return min(whole or allowed, allowed) if (allowed := _allowed()) else whole


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return None


def _swap() -> int:
    found = re.search(r"SwapTotal:\s*(\d+) kB", _read(_MEMINFO))
    return int(found[1]) * 1024 if found else 0


def _allowed() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def _of_cgroups() -> list[int]:
    """Return the limits of the control groups that this process is in: of version 2, then of version 1."""
    own = {
        kinds: path.strip("/") for kinds, path in re.findall(r"^\d+:([^:]*):(.*)$", _read(_OWN_CGROUP), re.MULTILINE)
    }
    files = []
    for folder, path, name in (
        (_CGROUPS, own.get("", ""), "memory.max"),
        (_CGROUPS / "memory", own.get("memory", ""), "memory.limit_in_bytes"),
    ):
        # A container sees its own group at the top, whatever the path says.
        files += [
            parent / name for parent in (folder / path, *(folder / path).parents) if parent.is_relative_to(folder)
        ]
    return [int(limit) for file in files if (limit := _read(file).strip()).isdecimal()]


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""

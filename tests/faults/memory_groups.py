"""Control groups with a limit of memory: where it is reached the kernel kills (SIGKILL), whatever the process does."""

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

_MEBIBYTE = 1 << 20
_VERSIONS = {1: ("memory.limit_in_bytes", "memory.max_usage_in_bytes"), 2: ("memory.max", "memory.peak")}
_numbers = iter(range(1, 1 << 30))


def lacking_groups() -> str | None:
    """Return why no group can be made here; None where one can."""
    try:
        with memory_group(64 * _MEBIBYTE):
            return None
    except OSError as error:
        return f"no memory group can be made here: {error}"


@contextlib.contextmanager
def memory_group(limit: int | None = None) -> Iterator[Path]:
    """Make a group below that of this process, with a limit in bytes; remove it at the end, when it is empty.

    Raises OSError where this machine has no memory groups, or this process may make none.
    """
    parent, version = _own()
    folder = parent / f"xlnet-faults-{next(_numbers)}-{id(_numbers):x}"
    folder.mkdir()
    try:
        if limit:
            (folder / _VERSIONS[version][0]).write_text(str(limit))
            swap = folder / ("memory.swap.max" if version == 2 else "memory.memsw.limit_in_bytes")
            if swap.exists():
                swap.write_text("0" if version == 2 else str(limit))
        yield folder
    finally:
        for attempt in range(50):  # the kernel counts a killed process for a moment longer
            try:
                folder.rmdir()
                break
            except OSError:
                if attempt == 49:
                    raise
                time.sleep(0.1)


def most_used(group: Path) -> int:
    """Return the most bytes that the processes of a group have had at once."""
    return next(int(file.read_text()) for _, name in _VERSIONS.values() if (file := group / name).exists())


def _own() -> tuple[Path, int]:
    """Return the folder of this process's memory group, and the version of its interface."""
    groups = dict(re.findall(r"^\d+:([^:]*):/?(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE))
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    for _, place, kind, options, *_ in mounts:
        if kind == "cgroup" and "memory" in options.split(",") and "memory" in groups:
            return Path(place, groups["memory"]), 1
        if kind == "cgroup2" and "memory" in Path(place, groups[""], "cgroup.subtree_control").read_text():
            return Path(place, groups[""]), 2
    raise FileNotFoundError("no controller of memory is mounted that a group can be made below")

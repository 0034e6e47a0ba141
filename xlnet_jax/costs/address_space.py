"""Address space that jax and TensorFlow need: where a thread gets none they abort, which no caller can catch."""

import resource

from xlnet_jax.errors import InputError

NEEDED = 4 << 30
"""Bytes for a tiny run on 2 cores: 3 GiB abort, 4 GiB suffice. Most of it is reserved and never used."""


def demand_address_space() -> None:
    """Raise InputError where `ulimit -v` leaves less than any run needs. Call it before the first device is asked
    for."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < NEEDED:
        raise InputError(
            f"this process may use {limit / 2**30:.1f} GiB of address space (ulimit -v), and jax reserves more than "
            f"{NEEDED / 2**30:.0f} GiB at its start, most of which stays empty: raise the limit; a limit of memory "
            "itself is one of a control group, as systemd-run -p MemoryMax=8G sets it"
        )

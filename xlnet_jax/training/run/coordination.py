"""Values between the processes of a run, by the key-value store of jax.distributed.

The store belongs to jax's coordination service, which runs in process 0. jax has no public functions for it: this file
alone uses its private client, with what jax 0.10 and 0.12 have in common.
"""

from typing import Any

import jax

from xlnet_jax.settings.config import DistributedConfig

_LISTENS_ON_ALL = "[::]"
_SECONDS_OF_ONE_WAIT = 2.0
"""between two of them Python's signal handlers run"""


def connect(place: DistributedConfig, bind: str | None) -> None:
    """Start jax.distributed, and wait until all processes have done so; call this before anything asks for a device.

    bind: HOST:PORT on which process 0 listens; None = jax decides. When another process is lost, jax aborts this one
    (SIGABRT), in here too. Raises RuntimeError where process 0 cannot be reached.
    """
    # jax's own handler of SIGTERM would replace ours.
    jax.config.update("jax_enable_preemption_service", False)
    address = str(place.coordinator_address)
    if place.process_id == 0 and bind and bind.startswith(_LISTENS_ON_ALL):
        # Process 0 may not reach itself by the address that the others use: a router may translate it.
        address = bind.replace(_LISTENS_ON_ALL, "localhost")
    jax.distributed.initialize(
        address,
        place.num_processes,
        place.process_id,
        cluster_detection_method="deactivate",  # the launcher decides which devices a process sees
        initialization_timeout=place.initialization_timeout,
        heartbeat_timeout_seconds=place.heartbeat_timeout_seconds,
        coordinator_bind_address=bind,
    )


def put(key: str, value: str) -> None:
    """Store a value that all processes can read. Raises RuntimeError where the key is taken."""
    _client().key_value_set(key, value)


def get(key: str, seconds: float | None = None) -> str:
    """Wait for the value of a key. seconds: time limit; None = wait for as long as all processes live.

    Raises TimeoutError after the limit, RuntimeError where process 0 is lost.
    """
    while True:
        wait = _SECONDS_OF_ONE_WAIT if seconds is None else min(seconds, _SECONDS_OF_ONE_WAIT)
        try:
            return str(_client().blocking_key_value_get(key, int(1000 * wait)))
        except RuntimeError as error:
            if not str(error).startswith("DEADLINE_EXCEEDED"):
                raise
        if seconds is not None:
            seconds -= wait
            if seconds <= 0:
                raise TimeoutError(f"no process has stored {key}")


def _client() -> Any:
    from jax._src.distributed import global_state

    return global_state.client

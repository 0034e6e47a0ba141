"""Devices: demanding a TPU, and the multi-host runtime where the platform has more than one worker."""

import os

from xlnet_jax.config import InputError


def demand_tpu() -> None:
    """Starts the multi-host runtime where there is more than one worker, then makes sure that there is a TPU."""
    import jax

    if worker_count() > 1:
        jax.distributed.initialize()
    try:
        devices = jax.devices("tpu")
    except RuntimeError:
        devices = []
    if not devices:
        raise InputError(
            f"--tpu: no TPU here, jax sees {jax.default_backend()} only. On a TPU machine: pip install "
            "'xlnet_jax[tpu]'; in Colab: Runtime > Change runtime type > TPU; elsewhere: leave --tpu out"
        )


def worker_count() -> int:
    """How many hosts the platform names: TPU_WORKER_HOSTNAMES, set on TPU VMs and GKE, times the slices of a multislice
    job. Colab names one, or none."""
    hosts = [h for h in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if h]
    return max(len(hosts), 1) * int(os.environ.get("MEGASCALE_NUM_SLICES", "1") or 1)

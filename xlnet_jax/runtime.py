"""The machine: demanding a TPU, the multi-host runtime where there are several workers, memory pages on a CPU."""

import os
import sys
import urllib.request

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
    """How many hosts the platform names, over all slices: by TPU_WORKER_HOSTNAMES on GKE, by the metadata server on a
    TPU VM. Colab names one, or none."""
    named = os.environ.get("TPU_WORKER_HOSTNAMES") or metadata("instance/attributes/worker-network-endpoints")
    hosts = [host for host in named.split(",") if host]
    return max(len(hosts), 1) * int(os.environ.get("MEGASCALE_NUM_SLICES") or 1)


def metadata(name: str) -> str:
    """What the Google Cloud machine that this is says under this name; empty elsewhere."""
    server = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    url = f"http://{server}/computeMetadata/v1/{name}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def start_with_huge_pages() -> None:
    """Starts this process anew with glibc's allocator asking for huge pages, which it reads only when a process starts.

    XLA takes and gives back its scratch memory at every step on a CPU, and the kernel clears each page again: 2 MB
    pages are cleared at once (benchmarks/huge_pages.py). Other systems, and a GLIBC_TUNABLES that is set, stay as they
    are.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, sys.orig_argv)

"""Detect the place of this machine among the hosts of a run, and whether it has a TPU; set up a CPU's memory pages and
compiler."""

import errno
import os
import re
import socket
import sys
import time
import urllib.request
from http.client import HTTPException
from importlib.metadata import version
from importlib.util import find_spec
from typing import NamedTuple

from xlnet_jax.errors import InputError, first_line

_PLACE = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
INITIALIZATION_SECONDS = 300
"""time within which all processes must start"""
HEARTBEAT_SECONDS = 100
"""time of silence after which a host counts as lost; if only its process ends, that is noticed sooner"""
_TPU_PORT = 8482
"""port of process 0 on TPUs, as in jax"""
_LONGEST_METADATA = 1 << 20
"""bytes"""


class HostPlace(NamedTuple):
    """Place of this process among those of a run, one per host."""

    address: str  # HOST:PORT of process 0, with a free port that all hosts can reach
    num_processes: int
    process_id: int  # from 0


def place_of(tpu: bool) -> HostPlace | None:
    """Return the place of this process among those of its run; None if it is the only one. This uses no device.

    The environment comes first (JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID), then the platform of a run
    on TPUs, then Slurm. Raises InputError if they are incomplete.
    """
    try:
        given = [name for name in _PLACE if os.environ.get(name)]
        if given:
            if missing := [name for name in _PLACE if name not in given]:
                raise InputError(f"the environment has {' and '.join(given)}, but not {' and '.join(missing)}")
            address, count, process_id = (os.environ[name] for name in _PLACE)
            place = HostPlace(address, int(count), int(process_id))
        elif tpu and worker_count() > 1:
            place = _place_on_tpu()
        elif not tpu and "SLURM_STEP_NODELIST" in os.environ and int(os.environ.get("SLURM_NTASKS") or 1) > 1:
            place = _place_on_slurm()
        else:
            return None
    except InputError:
        raise
    except (RuntimeError, OSError, ValueError, LookupError) as error:
        # Process 0 cannot be resolved, or a variable is missing or no number.
        raise InputError(f"the environment does not say which processes make this run: {first_line(error)}") from None
    if not re.fullmatch(r".+:\d+", place.address):
        raise InputError(f"{_PLACE[0]} {place.address} in the environment must be HOST:PORT, as 10.0.0.1:8476")
    return place if place.num_processes > 1 else None


def initialize_jax(place: HostPlace) -> None:
    """Connect this process to the others. jax ends it (SIGABRT) if one does not connect in time or is lost later.

    Raises InputError if process 0 cannot listen, or if a device was used before.
    """
    import jax

    print(
        f"hosts       process {place.process_id} on {socket.gethostname()} waits {INITIALIZATION_SECONDS} s for "
        f"{place.num_processes} processes at {place.address}; if one never connects, jax terminates this process "
        "(SIGABRT)",
        file=sys.stderr,
        flush=True,
    )
    listens_at = bind_address(place.address) if place.process_id == 0 else None
    jax.config.update("jax_enable_preemption_service", False)  # its handler of SIGTERM would replace ours
    try:
        jax.distributed.initialize(
            *place,
            cluster_detection_method="deactivate",  # the launcher decides which devices a process sees
            initialization_timeout=INITIALIZATION_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            coordinator_bind_address=listens_at,
        )
    except (RuntimeError, ValueError) as error:
        raise InputError(f"jax cannot connect the processes at {place.address}: {first_line(error)}") from None


def bind_address(address: str) -> str | None:
    """Return HOST:PORT on which process 0 listens: the coordinator's address, if it is an address of this host. None if
    it is not, or if JAX_COORDINATOR_BIND_ADDRESS is set: then jax decides.

    Raises InputError if another program uses the port, which gRPC would share.
    """
    if os.environ.get("JAX_COORDINATOR_BIND_ADDRESS"):
        return None
    host, _, port = address.rpartition(":")
    try:
        ip = socket.gethostbyname(host.strip("[]"))
        socket.create_server((ip, int(port))).close()
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise InputError(
                f"{_PLACE[0]} {address}: process 0 cannot listen there ({error.strerror}): give a port that is free on "
                "its host"
            ) from None
        return None  # an address of another host, which a router translates
    except (UnicodeError, OverflowError):  # no name of a host, or no port: jax refuses it
        return None
    # Debian resolves a host's own name to 127.0.1.1, which no other host can reach.
    is_reachable = not ip.startswith("127.") or host == "localhost" or host.startswith("127.")
    return address if is_reachable else None


def _place_on_slurm() -> HostPlace:
    """Return the place that Slurm gives this process, as `jax.distributed.initialize` detects it."""
    # The first host of node3, node3,node5 or node[3-4,7].
    prefix, number = re.findall(r"^([^,[]+)(?:\[([^],-]+))?", os.environ["SLURM_STEP_NODELIST"])[0]
    port = os.environ.get("JAX_COORDINATOR_PORT") or 2**16 - 2**12 + int(os.environ["SLURM_JOB_ID"]) % 2**12
    return HostPlace(f"{prefix}{number}:{port}", int(os.environ["SLURM_NTASKS"]), int(os.environ["SLURM_PROCID"]))


def _place_on_tpu() -> HostPlace:
    """Return the place of this host in its TPU slices, as `jax.distributed.initialize` detects it."""
    number = os.environ.get("TPU_WORKER_ID") or metadata("instance/attributes/agent-worker-number")
    if not number:
        why = f": {worker_count()} workers are named here, and nothing says which of them this is: set "
        raise InputError("tpu", "", f"{why}{', '.join(_PLACE)} in the environment")
    addresses = os.environ.get("TPU_PROCESS_ADDRESSES")
    names = addresses.split(",") if addresses else _worker_names()
    host = (_of_slices("MEGASCALE_COORDINATOR_ADDRESS") or names[0]).split(":")[0]
    _wait_for_name(host)
    process_id = int(number) + int(_of_slices("MEGASCALE_SLICE_ID") or 0) * len(names)
    port = os.environ.get("JAX_COORDINATOR_PORT") or _TPU_PORT
    return HostPlace(f"{host}:{port}", len(names) * _slice_count(), process_id)


def _wait_for_name(host: str) -> None:
    """Wait until a host has an address: Kubernetes gives it to a pod only when the pod starts. Raises OSError."""
    end = time.monotonic() + INITIALIZATION_SECONDS
    while True:
        try:
            socket.gethostbyname(host)
            return
        except socket.gaierror:
            if time.monotonic() > end:
                raise
            time.sleep(5)


def require_tpu() -> None:
    """Raise InputError if there is no TPU."""
    import jax

    try:
        devices = jax.devices("tpu")
    except RuntimeError:
        devices = []
    if not devices:
        raise InputError(
            "tpu",
            "",
            f": no TPU here, jax sees {jax.default_backend()} only. On a TPU machine: pip install -e '.[tpu]' in "
            "the clone; in Colab: Runtime > Change runtime type > TPU; elsewhere: leave `tpu` out",
        )


def worker_count() -> int:
    """Return the number of hosts of all slices, from TPU_WORKER_HOSTNAMES on GKE, or the metadata server on a TPU VM.
    Colab lists one or none."""
    return max(len(_worker_names()), 1) * _slice_count()


def _slice_count() -> int:
    return int(_of_slices("MEGASCALE_NUM_SLICES") or 1)


def _of_slices(name: str) -> str:
    """Return a variable about the slices of a run, from the environment on GKE, or from the metadata of a TPU VM, as
    `MEGASCALE_NUM_SLICES: '2'`; "" if there is none."""
    if name in os.environ:
        return os.environ[name]
    found = re.search(rf"^{name}: *'?([^'\n]*)", metadata("instance/attributes/tpu-env"), re.MULTILINE)
    return found[1].strip() if found else ""


def _worker_names() -> list[str]:
    named = os.environ.get("TPU_WORKER_HOSTNAMES") or metadata("instance/attributes/worker-network-endpoints")
    # The metadata server may give an endpoint as name:port:address.
    return [endpoint.split(":")[-1] for endpoint in named.split(",") if endpoint]


def metadata(name: str) -> str:
    """Return this value of the Google Cloud metadata server; "" if there is none."""
    server = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    url = f"http://{server}/computeMetadata/v1/{name}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            return answer.read(_LONGEST_METADATA).decode()
    except (OSError, HTTPException, ValueError):
        return ""


HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""GLIBC_TUNABLES of training on a CPU"""


def start_with_huge_pages() -> None:
    """Restart this process with `HUGE_PAGES`, which glibc reads only when a process starts.

    On a CPU, XLA allocates and frees its scratch memory at every step, and the kernel clears every page again. 2 MB
    pages are cleared much faster (benchmarks/huge_pages.py). If the process kept freed memory, steps would be a few
    percent faster, but the heap could grow to more than twice its size. Do nothing on other systems, or if
    GLIBC_TUNABLES is set.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = HUGE_PAGES
        os.execv(sys.executable, sys.orig_argv)


def compile_quickly() -> None:
    """Have XLA:CPU optimize less, so that it compiles in about half the time; products, which are calls of a library,
    take as long as before. For programs that run for seconds. Call this before jax is used.

    Flags in XLA_FLAGS have priority. Do nothing if jax may find another device than the CPU.
    """
    if os.environ.get("JAX_PLATFORMS") != "cpu" and (find_spec("libtpu") or find_spec("jax_plugins")):
        return
    flags = ["--xla_backend_optimization_level=1"]
    if version("jaxlib").startswith("0.10."):  # the older code generator for fusions, which later versions do not have
        flags.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")])

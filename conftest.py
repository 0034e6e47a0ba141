"""Runs before any test module: eight simulated devices, no silent broadcasting of ranks, each program compiled once."""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from importlib.metadata import version

import pytest

# A shell without job control starts background commands with SIGINT ignored, and child processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# All must be set before jax is imported.
# Programs are tiny and run a few times each: making them quick takes longer than they do.
FLAGS = [
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",
]
if version("jaxlib").startswith("0.10."):
    # The older code generator for fusions compiles a train step four times as fast. Later versions do not have it.
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS])
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Commands that tests start do not start again to get huge pages.
os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # Most of the time of the tests is compilation, of the same programs again and again. All processes of one session
    # share what they compile, and nothing outlives it, unless the environment names a folder for it.
    programs = os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="xlnet-jax-tests-")
    atexit.register(shutil.rmtree, programs, ignore_errors=True)


def pytest_addoption(parser):
    parser.addoption(
        "--long", action="store_true", help="run what takes minutes too, as .ci/run does: those marked `long`"
    )


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: --long runs it, as .ci/run does"))


def pytest_collection_finish():
    """Leave what imports made out of garbage collection, and collect less often: traces make many objects that live."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)

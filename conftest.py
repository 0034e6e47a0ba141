"""Runs before any test module: eight simulated devices, and no silent broadcasting of ranks."""

import os

# Both must be set before jax is imported.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def pytest_addoption(parser):
    parser.addoption("--kills", type=int, default=4, help="how often a run is killed (tests of recovery)")

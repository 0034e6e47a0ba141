"""Programs that are compiled for devices that are not here. Each has a process of its own, as jax reads its environment
when it starts."""

import importlib.util
import os
import subprocess
import sys

import pytest

from xlnet_jax.planning.topologies import CUDA_PLUGINS, ENVIRONMENT

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="the TPU compiler: pip install -e '.[plan]'"
)
has_gpu_compiler = any(map(importlib.util.find_spec, CUDA_PLUGINS))
needs_gpu_compiler = pytest.mark.skipif(not has_gpu_compiler, reason="the compiler for GPUs: make gpu-plans")
TINY = """--preset demo --data.seq-len 32 --data.reuse-len 16 --data.perm-size 16 --data.num-predict 6
--model.mem-len 16 --model.d-model 32 --model.d-ff 64 --model.vocab-size 128"""


def run_program(program, *arguments):
    """Run a program with jax as it is set up for plans; return what it prints. As in setup.cfg, calls of what is
    deprecated fail."""
    filters = ("error::DeprecationWarning", "ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
    argv = [sys.executable, *(f"-W{rule}" for rule in filters), "-c", program, *map(str, arguments)]
    done = subprocess.run(argv, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def run_plan(words):
    """Run the command; return (exit code, output), and show that it reports nothing else."""
    argv = [sys.executable, "-m", "xlnet_jax.plan", *words.split()]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert done.stderr == "", done.stderr[-2000:]
    return done.returncode, done.stdout

"""Fixtures of the tests of faults: the server of commands, what they read, and their undisturbed runs."""

import functools
import os

import pytest

from tests.faults import shim
from tests.faults.children import Children
from tests.faults.commands import COMMANDS, make_inputs
from tests.faults.trials import run_undisturbed


@pytest.fixture(scope="session")
def faults(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="session")
def children(faults):
    if reason := shim.missing_requirement():
        pytest.skip(reason)
    with Children(shim.build(faults), faults, os.environ["JAX_COMPILATION_CACHE_DIR"]) as children:
        yield children


@pytest.fixture(scope="session")
def given(faults, children):
    """Return the folder of what the commands read."""
    folder = faults / "given"
    folder.mkdir()
    make_inputs(folder, children.run)
    return folder


@pytest.fixture(scope="session")
def sound(faults, given, children):
    """Return a function that runs a command without a fault, once, and returns its run."""
    return functools.cache(lambda name: run_undisturbed(COMMANDS[name], given, faults, children, times=1))

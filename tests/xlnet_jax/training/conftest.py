"""Fixtures of the tests of training: a short text, and an uninterrupted run on it."""

import itertools

import pytest

from data_pipelines import sources
from tests.xlnet_jax.training.tiny_run import arguments
from xlnet_jax.__main__ import COMMANDS

train = COMMANDS["train"]


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """Two chapters of a novel."""
    path = tmp_path_factory.mktemp("text") / "novel.txt"
    with open(sources.embedded()[0]) as novels:
        path.write_text("".join(itertools.islice(novels, 400)))
    return path


@pytest.fixture(scope="session")
def straight(text, tmp_path_factory):
    """Return the workdir of an uninterrupted run."""
    workdir = tmp_path_factory.mktemp("straight") / "run"
    assert train.main(arguments(text, workdir)) == 0
    return workdir

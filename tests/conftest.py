"""Fixtures of several test files: the original's numbers, data of others, a bucket, processes that start quickly."""

import os
from pathlib import Path

import pytest

from tests.bucket import Bucket, serving

DATA_OF_OTHERS = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session", autouse=True)
def commands_without_torch():
    """Hide PyTorch from the processes that tests start. The tests themselves compare with it."""
    hidden = str(Path(__file__).parent / "hidden")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", hidden, prepend=os.pathsep)
        yield


@pytest.fixture(autouse=True)
def current_folder_searched_as_before():
    """Undo what a command that a test runs in this process says to the processes that it starts."""
    before = os.environ.get("PYTHONSAFEPATH")
    yield
    if before is None:
        os.environ.pop("PYTHONSAFEPATH", None)


@pytest.fixture(scope="session")
def reference() -> Path:
    """Return the folder of numbers obtained by running the original code."""
    return Path(__file__).parent / "reference"


@pytest.fixture(scope="session")
def published():
    """Return a function that turns a name into the path of a file or folder that others published. It skips the test
    where the checkout has no such data beside it."""

    def path_of(name: str) -> Path:
        path = DATA_OF_OTHERS / name
        if not path.exists():
            pytest.skip(f"{path} is not here")
        return path

    return path_of


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    """Return the server that gs:// leads to, with the empty bucket gs://bucket."""
    server = Bucket(tmp_path / "cloud")
    (server.folder / "bucket").mkdir(parents=True)
    with serving(server) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def bucket(cloud):
    """Return the folder with the objects of gs://bucket."""
    return cloud.folder / "bucket"

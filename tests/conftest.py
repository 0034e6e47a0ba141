"""Fixtures of several test files: the original's numbers, data of others, a bucket, processes that start quickly."""

import os
from pathlib import Path

import pytest
from array_record.python.array_record_data_source import ArrayRecordDataSource
from etils.epath import backend, gpath

from data_pipelines import corpus
from tests.bucket import Bucket

DATA_OF_OTHERS = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session", autouse=True)
def commands_without_torch():
    """Hide PyTorch from the processes that tests start. The tests themselves compare with it."""
    hidden = str(Path(__file__).parent / "hidden")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", hidden, prepend=os.pathsep)
        yield


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
def bucket(tmp_path, monkeypatch):
    """Return the folder that gs://bucket stands for."""
    cloud = Bucket(tmp_path / "cloud")
    monkeypatch.setattr(gpath, "_is_zonal_gcs_bucket", lambda bucket: False)
    monkeypatch.setattr(backend, "tf_backend", cloud)
    monkeypatch.setattr(gpath, "_GCS_BACKENDS", frozenset({cloud}))
    # The library that reads shards knows gs:// by itself.
    monkeypatch.setattr(
        corpus, "ArrayRecordDataSource", lambda names: ArrayRecordDataSource([cloud.here(n) for n in names])
    )
    (cloud.folder / "bucket").mkdir(parents=True)
    return cloud.folder / "bucket"

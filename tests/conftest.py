"""What several test files share: the reference numbers beside the checkout, where they are, and a bucket."""

from pathlib import Path

import pytest
from array_record.python.array_record_data_source import ArrayRecordDataSource
from etils.epath import backend, gpath

from data_pipelines import corpus
from tests.bucket import Bucket

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def reference() -> Path:
    """Numbers obtained by running the original code; absent in a user's checkout."""
    folder = SHARED / "reference"
    if not folder.is_dir():
        pytest.skip(f"the original's reference numbers are not here ({folder})")
    return folder


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """A folder that gs:// stands for."""
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

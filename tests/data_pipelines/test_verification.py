"""Shards are compared with the checksums of the manifest before their blocks are used."""

import hashlib
import time

import pytest
from etils import epath

from data_pipelines.verification import Verification
from xlnet_jax.errors import InputError


@pytest.fixture
def shards(tmp_path):
    """Three files and their checksums, the last one altered since."""
    files = [epath.Path(tmp_path / f"shard-{i}") for i in range(3)]
    for i, file in enumerate(files):
        file.write_bytes(bytes([i]) * 1000)
    sha256 = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    files[2].write_bytes(b"x" * 1000)
    return files, sha256


def test_a_shard_is_read_once_and_only_where_its_blocks_are_wanted(shards):
    verification = Verification(*shards, num_bytes=3000)
    verification.demand([0, 1])
    shards[0][0].write_bytes(b"later")
    verification.demand([0])
    with pytest.raises(
        InputError, match=r"shard-2 was altered, its sha256 is \w{64} and not \w{64}; delete the folder"
    ):
        verification.demand([0, 2])
    with pytest.raises(InputError, match="shard-2 was altered"):
        verification.demand([2])
    with pytest.raises(InputError, match="shard-0 was altered"):
        verification.demand_all()


def test_a_thread_reads_the_shards_of_a_large_split(shards):
    verification = Verification(*shards, num_bytes=3000, at_once=2999)
    verification.demand([0])
    verification.demand([2])
    assert raises_within(60, verification, "shard-2 was altered")


def raises_within(seconds, verification, message):
    """Return whether the thread's finding is raised where blocks of an intact shard are wanted."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            verification.demand([1])
        except InputError as error:
            return message in str(error)
        time.sleep(0.01)
    return False

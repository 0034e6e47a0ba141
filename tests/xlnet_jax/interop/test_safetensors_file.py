"""safetensors files: the library's own bytes, and an error where the disk refuses them at the end."""

import errno
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from xlnet_jax.interop import safetensors_file

TENSORS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a.ü": np.arange(8, dtype=np.float32).reshape(2, 4).T,
    "c": np.ones(3, ml_dtypes.bfloat16),
    "d": np.array(2.5, np.float16),
    "e": np.arange(3),
    "empty": np.zeros((0, 4), np.float32),
}


def test_the_bytes_are_those_of_the_library(tmp_path):
    safetensors_file.write(TENSORS, tmp_path / "ours")
    contiguous = {name: array.copy("C") for name, array in TENSORS.items()}  # the library takes no other
    assert (tmp_path / "ours").read_bytes() == safetensors.numpy.save(contiguous, metadata={"format": "pt"})
    read = safetensors.numpy.load_file(tmp_path / "ours")
    assert {name: (a.dtype, a.tolist()) for name, a in read.items()} == {
        name: (a.dtype, a.tolist()) for name, a in TENSORS.items()
    }


def test_a_disk_that_refuses_what_was_written_when_the_file_is_closed_is_an_error():
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):  # Python writes the few bytes when it closes the file
        safetensors_file.write({"a": np.zeros(2, np.float32)}, Path("/dev/full"))

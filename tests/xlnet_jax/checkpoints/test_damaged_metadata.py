"""Damaged metadata of Orbax end in one line, without warnings of Orbax beside it."""

import json
import shutil
import subprocess
import sys

import orbax.checkpoint as ocp
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import random_model
from xlnet_jax.errors import InputError


def test_an_array_of_an_unknown_kind_ends_in_one_line(tmp_path):
    folder = tmp_path / "checkpoint"
    xlnet_jax.save(random_model(), folder)
    (folder / "checksums.json").unlink()
    file = folder / "params" / "_METADATA"
    content = json.loads(file.read_text())
    next(iter(content["tree_metadata"].values()))["value_metadata"]["value_type"] = "x" * 70_000
    file.write_text(json.dumps(content))
    command = [sys.executable, "-m", "xlnet_jax.convert", str(folder), str(tmp_path / "hf"), "--to", "hf"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"error: {folder / 'params'} cannot be read: ")


def test_chunks_that_are_larger_than_their_array_are_refused(tmp_path):
    xlnet_jax.save(random_model(), tmp_path / "native")
    arrays = ocp.PyTreeCheckpointer().restore(tmp_path / "native" / "params")
    shutil.rmtree(tmp_path / "native" / "params")
    (tmp_path / "native" / "checksums.json").unlink()
    ocp.PyTreeCheckpointer(use_ocdbt=False).save(tmp_path / "native" / "params", arrays)
    xlnet_jax.load(tmp_path / "native")
    file = next((tmp_path / "native" / "params").glob("*/.zarray"))
    form = json.loads(file.read_text())
    file.write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"\.zarray is damaged: "):
        xlnet_jax.load(tmp_path / "native")
    file.write_text(json.dumps(form | {"chunks": [10**9] * len(form["chunks"])}))
    with pytest.raises(InputError, match=r"is cut into chunks of 1,000,000,[\d,]+ numbers, and has"):
        xlnet_jax.load(tmp_path / "native")

"""Damaged metadata of Orbax end in one line, without warnings of Orbax beside it."""

import json
import subprocess
import sys

import xlnet_jax
from tests.xlnet_jax.random_models import random_model


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

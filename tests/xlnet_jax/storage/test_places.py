"""A scheme:// that names no place, and a variable that cannot be read, end in one line."""

import os
import subprocess
import sys

import pytest
from etils import epath

from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError
from xlnet_jax.storage.outputs import complete_folder, new_file


def test_a_url_that_has_lost_a_slash_is_not_made_a_folder():
    for make in (complete_folder, new_file):
        with pytest.raises(InputError, match="results are written only to a disk"), make(epath.Path("gs:/x")):
            raise AssertionError


@pytest.mark.parametrize(
    "words",
    [
        "train --workdir s3x://b/x",
        "train --config s3x://b/x",
        "prepare --source a.txt --tokenizer tiny --out s3x://b/x",
        "convert s3x://b/x out",
        "inspect s3x://b/x",
        "tokenizer show s3x://b/x",
    ],
)
def test_a_scheme_that_is_no_place_ends_a_command_in_one_line_and_makes_nothing(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("A line.\n")
    command, *words = words.split()
    with pytest.raises(InputError) as refused:
        COMMANDS[command].main(words)
    assert "\n" not in str(refused.value)
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_variable_of_jax_that_cannot_be_read_ends_in_one_line(tmp_path):
    words = [sys.executable, "-m", "xlnet_jax", "score", "tiny", "--sentences", "a"]
    variables = os.environ | {"JAX_PLATFORMS": "rubbish"}
    ended = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("error: JAX_PLATFORMS in the environment: ")
    assert ended.stderr.count("\n") == 1

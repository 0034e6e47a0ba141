"""A module in the current folder is imported by no command of an installed package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHADOW = "open('ran', 'a').write(__name__ + ' ')\nraise ImportError(__name__)\n"


@pytest.mark.parametrize("command", ["-m xlnet_jax --version", "-m data_pipelines.tokenizer --help"])
def test_a_command_imports_nothing_from_the_current_folder(tmp_path, command):
    for name in ("tyro", "numpy", "difflib", "rich", "msgspec", "my_module"):
        (tmp_path / f"{name}.py").write_text(SHADOW)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONSAFEPATH", None)
    ended = subprocess.run([sys.executable, *command.split()], cwd=tmp_path, env=environment, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()
    assert not (tmp_path / "ran").exists()


def test_a_program_that_imports_the_package_keeps_its_folder(tmp_path):
    (tmp_path / "mine.py").write_text("print('imported')")
    program = "import xlnet_jax, data_pipelines, mine"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True)
    assert ended.stdout == b"imported\n", ended.stderr.decode()

"""launch/README.md shows what the launchers print, for settings that training takes."""

import os
import re
import shlex
import subprocess

import pytest

from tests.launch.conftest import ROOT
from xlnet_jax.objectives import command_line

PAGE = (ROOT / "launch/README.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.S | re.M)
EXAMPLES = [example for block in BLOCKS for example in re.findall(r"^\$ (.*?)\n(.*?)(?=^\$ |\Z)", block, re.S | re.M)]


@pytest.mark.parametrize(("line", "output"), EXAMPLES)
def test_the_page_shows_what_is_printed(line: str, output: str) -> None:
    without = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    said = subprocess.run(["bash", "-c", line], cwd=ROOT, env=without, capture_output=True, text=True, timeout=120)
    assert (said.returncode, said.stderr, said.stdout) == (0, "", output)


@pytest.mark.parametrize("line", [line for line, _ in EXAMPLES if " -- " in line and "dataflow" not in line])
def test_training_takes_the_settings_of_the_page(line: str) -> None:
    words = shlex.split(line)
    config = command_line.parse_config(words[words.index("--") + 1 :], "train", "")
    assert config.workdir
    assert config.preset in line


def test_every_launcher_is_on_the_page() -> None:
    scripts = {path.relative_to(ROOT).as_posix() for path in (ROOT / "launch").rglob("*.sh")}
    shown = {word for line, _ in EXAMPLES for word in shlex.split(line) if word in scripts}
    assert shown == scripts - {"launch/common.sh", "launch/tpu_worker.sh"}

"""The fuzzer finds nothing in a small budget, and notices each fault of a command that has them all."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzz.faulty import FAULTS
from tests.fuzz.inputs import KINDS, Kind
from tests.fuzz.trial import Trials
from xlnet_jax.__main__ import commands

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="watches files by inotify, and processes in /proc")


def fuzz(*words):
    """Run the fuzzer, and return its exit code and what it printed."""
    ended = subprocess.run([sys.executable, "-m", "tests.fuzz", *words], cwd=ROOT, capture_output=True, text=True)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """Folder of the samples."""
    return tmp_path_factory.mktemp("fuzz") / "samples"


@pytest.mark.slow
def test_damaged_files_and_command_lines_end_in_one_line(samples):
    code, printed = fuzz("--samples", str(samples), "--examples", "1", "--quick")
    assert code == 0, printed
    tried = re.findall(r"^\| (?!all|kind|---)(.*?) \| 1 \|", printed, re.MULTILINE)
    foreign = {"torch", *({"bert", "fast", "bytes", "hf-bert"} if find_spec("tokenizers") is None else ())}
    wanted = {name for name, kind in KINDS.items() if kind.quick and not foreign & set(kind.samples.split())}
    assert wanted <= set(tried)
    (done,) = re.findall(r"^\| all, seed 0 \| \d+ \| (\d+) ", printed, re.MULTILINE)
    assert int(done) >= 4, "some damage is harmless"


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """Return a function that tries the faulty command, and returns its outcome."""
    monkeypatch.setattr("tests.fuzz.trial.IDLE_SECONDS", 1)
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "few.txt").write_text("few\n")

    def run(*words):
        kind = Kind("faulty", " ".join(["tests.fuzz.faulty", *words]), "few.txt", "few.txt")
        return Trials(tmp_path / "samples", tmp_path, 0).sound(kind)

    return run


def test_a_command_without_fault_passes(tried):
    outcome = tried()
    assert (outcome.code, outcome.problems) == (0, []), outcome.stderr


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "without-python" or shutil.which("cat")])
def test_the_fuzzer_notices_every_fault(tried, fault):
    outcome = tried(fault)
    wanted = FAULTS[fault][1]
    assert any(re.search(wanted, problem) for problem in outcome.problems), (outcome.problems, outcome.stderr)


def test_every_command_is_tried_with_a_damaged_command_line_and_with_damaged_settings():
    modules = {module for module, _ in commands().values()}
    assert modules <= {kind.module for kind in KINDS.values() if not kind.damaged}
    assert modules <= {kind.module for kind in KINDS.values() if "--config in/settings/" in kind.command}


def test_an_example_can_be_made_again(tmp_path):
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "few.txt").write_text("few words\n" * 9)
    kind = Kind("faulty", "tests.fuzz.faulty", "few.txt", "few.txt", "text")
    made = []
    for seed in (3, 3, 4):
        (tmp_path / str(len(made))).mkdir()
        trials = Trials(tmp_path / "samples", tmp_path / str(len(made)), seed)
        trials.example(kind, 1)
        made.append((tmp_path / str(len(made)) / "box" / "in" / "few.txt").read_bytes())
    assert made[0] == made[1] != made[2]

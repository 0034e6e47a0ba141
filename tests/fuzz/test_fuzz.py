"""The fuzzer finds nothing in a small budget, and notices the faults that a command may have."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzz.inputs import COMMAND_LINE, KINDS, Kind
from tests.fuzz.trial import READABLE, try_example
from xlnet_jax.__main__ import COMMANDS

ROOT = Path(__file__).parents[2]
FAULTS = {
    "import evil": r"runs code of .*evil\.py",
    "open('secret.txt')": r"opens BOX/secret\.txt",
    "open('/not-there')": "opens /not-there",
    "open('stray', 'w')": "opens BOX/stray for writing",
    "open('in/few.txt', 'w')": r"changes in/few\.txt",
    "import subprocess; subprocess.run(['true'])": "starts a program",
    "import socket; socket.socket().connect_ex(('127.0.0.1', 9))": r"socket\.connect",
    "{}['x']": "exit code 1: KeyError: 'x'",
    "import sys; sys.exit('a warning\\nerror: a mistake')": "exit code 1",
    "import sys; print('a\\nerror: b', file=sys.stderr); sys.exit(2)": "2 lines where one is due: a / error: b",
    "import time; time.sleep(1000)": "does not end",
    "b'x' * (7 << 30)": "exit code 1: MemoryError",
}
"""Code of a faulty command, and the words of the fuzzer for it"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="watches processes in /proc")


@pytest.mark.slow
def test_damaged_files_and_command_lines_end_in_one_line():
    words = [sys.executable, "-m", "tests.fuzz", "--examples", "1", "--quick"]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    tried = set(re.findall(r"^\| (?!all|kind|---)(.*?) \| 1 \|", ended.stdout, re.MULTILINE))
    foreign = {"fast", "bert"} if find_spec("tokenizers") is None else set()
    assert {name for name, kind in KINDS.items() if kind.quick and not foreign & set(kind.samples)} <= tried


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_the_fuzzer_notices_every_fault(fault, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.fuzz.trial.SECONDS", 1 if "sleep" in fault else 60)
    monkeypatch.setattr("tests.fuzz.trial.READABLE", (*READABLE, str(tmp_path / "code")))
    for folder, file, text in (("samples", "few.txt", "few\n"), ("code", "faulty_command.py", fault)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "code")
    kind = Kind("faulty", "faulty_command in/few.txt", "few.txt")
    outcome = try_example(kind, tmp_path / "samples", tmp_path, None)
    if fault:
        assert any(re.search(FAULTS[fault], problem) for problem in outcome.problems), outcome
    else:
        assert (outcome.code, outcome.problems) == (0, []), outcome


def test_every_command_is_tried_with_a_damaged_command_line():
    tried = {kind.module for name, kind in KINDS.items() if name.startswith(COMMAND_LINE)}
    serving = {"xlnet_jax.play"}  # it ends only by a signal; tests/xlnet_jax/serving tries its requests
    assert {command.module for command in COMMANDS.values()} - serving <= tried

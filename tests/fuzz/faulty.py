"""Stand in for a command that does what no command may do: test_fuzz.py shows that the fuzzer notices each fault."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from tests.fuzz.mutations import EVIL, SECRET
from xlnet_jax.errors import InputError


def _two_lines() -> None:
    print("a warning", file=sys.stderr)
    raise InputError("a mistake")


def _without_python() -> None:
    """Open the secret by a program that no audit hook sees, as libraries in C++ do."""
    if os.spawnlp(os.P_WAIT, "cat", "cat", SECRET):
        raise AssertionError("cat failed")


def _connect() -> None:
    with socket.socket() as other:
        other.connect_ex(("127.0.0.1", 9))


def _memory() -> None:
    sys.stdout.write(str(len(b"x" * (3 << 30))))


FAULTS: dict[str, tuple[Callable[[], object], str]] = {
    "import": (lambda: import_module(EVIL), rf"runs code of .*{EVIL}\.py"),
    "import-from-folder": (lambda: import_module(f"dataset.{EVIL}"), rf"runs code of .*{EVIL}\.py"),
    "eval": (lambda: exec(compile("1", f"in/{EVIL}", "exec")), rf"runs code of in/{EVIL}"),
    "secret": (lambda: Path("in", SECRET).read_text(), rf"opens BOX/in/{SECRET}"),
    "open-outside": (lambda: Path("/not-there").read_bytes(), "opens /not-there"),
    "without-python": (_without_python, rf"opens {SECRET}"),
    "write": (lambda: Path("stray").write_text("x"), r"opens BOX/stray for writing"),
    "change": (lambda: Path("in", "few.txt").write_text("x"), r"changes in/few\.txt"),
    "rename": (lambda: Path("in", "few.txt").rename(Path("out", "few.txt").absolute()), r"changes in/few\.txt"),
    "program": (lambda: subprocess.run(["true"], check=True), "starts a program"),
    "connect": (_connect, r"socket\.connect"),
    "traceback": (lambda: {}["x"], r"exit code 1: .*KeyError: 'x'"),
    "exit-code": (lambda: sys.exit(3), "exit code 3"),
    "two-lines": (_two_lines, "2 lines where one is due: a warning / error: a mistake"),
    "abort": (os.abort, "exit code -6"),
    "hang": (lambda: time.sleep(1000), "hangs"),
    "memory": (_memory, r"takes [23],\d{3} MiB of memory"),
}
"""Fault by its name, and the words of the fuzzer for it."""


def main(argv: Sequence[str]) -> int:
    """Commit the fault that the command line names; without one, end well."""
    for name in argv:
        FAULTS[name][0]()
    return 0

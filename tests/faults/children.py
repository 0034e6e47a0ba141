"""Run commands under faults, in processes that tests/faults/server.py forks: a start takes no time for imports."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"


@dataclass(frozen=True)
class Fault:
    """Disturbance of a run, as shim.c reads it from its environment."""

    act: str = ""
    """FAULTS_ACT; "" = none"""
    kind: str = ""
    glob: str = "*"
    count: int = 1


SOUND = Fault()


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    error: str
    reached: int
    """number of calls that the fault's kind and glob matched"""

    @property
    def is_one_line(self) -> bool:
        """True where it ended as a mistake does that the user can mend, or for launchers to start again."""
        return self.code in (1, 2, 143) and self.error.startswith("error: ") and self.error.count("\n") == 1

    def __str__(self) -> str:
        return f"exit code {self.code}: {self.error[-3000:] or self.out[-300:]}"


@dataclass(frozen=True)
class Start:
    """A command to run: its module and arguments, in a folder, under a fault."""

    command: list[str]
    folder: Path
    fault: Fault = SOUND
    environment: Mapping[str, str] = field(default_factory=dict)
    """variables besides those of the server"""


class Children:
    """Server that runs commands on one processor. Use as a context manager."""

    def __init__(self, library: Path, folder: Path, programs: Path):
        """library: the compiled shim. folder: for outputs and logs. programs: compiled programs, shared and kept."""
        self._folder, self.log = folder, folder / "log-0"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FAULTS_")} | {
            "LD_PRELOAD": str(library),
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(programs),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "XLA_FLAGS": FLAGS,
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_ENABLE_ONEDNN_OPTS": "0",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
            stderr=(folder / "server").open("w"),
        )  # fmt: skip

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate(timeout=60)

    def run(self, command: list[str], folder: Path, fault: Fault = SOUND) -> Outcome:
        """Run a command, module and arguments, in a folder; write the calls below it to `log`."""
        return self.run_together(Start(command, folder, fault))[0]

    def run_together(self, *starts: Start) -> list[Outcome]:
        """Run commands at the same time. Return when all have ended."""
        requests = [self._request(number, start) for number, start in enumerate(starts)]
        assert self._server.stdin
        assert self._server.stdout
        print(json.dumps(requests), file=self._server.stdin, flush=True)
        codes = json.loads(self._server.stdout.readline())
        return [self._outcome(number, code) for number, code in enumerate(codes)]

    def _request(self, number: int, start: Start) -> dict[str, Any]:
        (self._folder / f"shared-{number}").write_bytes(bytes(16))
        (self._folder / f"log-{number}").write_text("")
        of_shim = {
            "FOLDER": start.folder, "LOG": self._folder / f"log-{number}", "SHARED": self._folder / f"shared-{number}",
            "ACT": start.fault.act, "KIND": start.fault.kind, "GLOB": start.fault.glob, "COUNT": start.fault.count,
        }  # fmt: skip
        return {
            "command": start.command,
            "folder": str(start.folder),
            **{stream: str(self._folder / f"{stream}-{number}") for stream in ("out", "error")},
            "environment": {f"FAULTS_{name}": str(value) for name, value in of_shim.items()} | dict(start.environment),
        }

    def _outcome(self, number: int, code: int) -> Outcome:
        out, error = ((self._folder / f"{stream}-{number}").read_text(errors="replace") for stream in ("out", "error"))
        reached = int.from_bytes((self._folder / f"shared-{number}").read_bytes()[:8], sys.byteorder)
        return Outcome(code, out, error, reached)

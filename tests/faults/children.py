"""Run commands under faults, in processes that tests/faults/server.py forks: a start takes no time for imports."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

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


class Children:
    """Server that runs one command after the other, on one processor. Use as a context manager."""

    def __init__(self, library: Path, folder: Path, programs: Path):
        """library: the compiled shim. folder: for outputs and logs. programs: compiled programs, shared and kept."""
        self._folder, self.log, self._shared = folder, folder / "log", folder / "shared"
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
        out, error = (self._folder / name for name in ("out", "error"))
        self._shared.write_bytes(bytes(16))
        self.log.write_text("")
        request = {
            "command": command, "folder": str(folder), "out": str(out), "error": str(error),
            "environment": {
                "FAULTS_FOLDER": str(folder), "FAULTS_LOG": str(self.log), "FAULTS_SHARED": str(self._shared),
                "FAULTS_ACT": fault.act, "FAULTS_KIND": fault.kind, "FAULTS_GLOB": fault.glob,
                "FAULTS_COUNT": str(fault.count),
            },
        }  # fmt: skip
        assert self._server.stdin
        assert self._server.stdout
        print(json.dumps(request), file=self._server.stdin, flush=True)
        code = int(self._server.stdout.readline())
        reached = int.from_bytes(self._shared.read_bytes()[:8], sys.byteorder)
        texts = out.read_text(errors="replace"), error.read_text(errors="replace")
        return Outcome(code, *texts, reached)

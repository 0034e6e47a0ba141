"""Run launchers with stand-ins for the vendors' tools, which record their calls."""

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

DIGEST = "@sha256:" + "0123456789abcdef" * 4
ROOT = Path(__file__).parents[2]
TOOLS = "gcloud kubectl docker xpk sbatch srun scontrol git python3 sleep sudo systemctl systemd-run setpriv".split()
# All else that the launchers call. Nothing but these and the stand-ins is on PATH.
ORDINARY = "bash cat cp date dirname env grep id mkdir hostname mv sed".split()
RECORDER = """#!/usr/bin/env bash
words=("${0##*/}" "$@")
(IFS=$'\\x1f' && printf '%s\\x1e' "${words[*]}" >>"$HOME/calls")  # one write: tools may run at the same time
"""


@dataclass(frozen=True)
class StandIns:
    """A folder for PATH with tools that record their words and run the script of `answer`."""

    folder: Path

    def answer(self, tool: str, reply: str = "") -> None:
        """Let the tool run `reply`, in bash, after it records a call."""
        path = self.folder / "bin" / tool
        path.write_text(f"{RECORDER}{reply}\n")
        path.chmod(0o755)

    def calls(self) -> list[list[str]]:
        """Return the words of every call in order, the tool's name first."""
        record = self.folder / "calls"
        return [call.split("\x1f") for call in record.read_text().split("\x1e")[:-1]] if record.exists() else []

    def environment(self) -> dict[str, str]:
        return {"PATH": str(self.folder / "bin"), "HOME": str(self.folder)}

    def run(self, line: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            shlex.split(line),
            cwd=cwd,
            env=self.environment() | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture
def stand_ins(tmp_path: Path) -> StandIns:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ORDINARY:
        os.symlink(shutil.which(name) or "", bin_folder / name)
    made = StandIns(tmp_path)
    for name in TOOLS:
        made.answer(name)
    return made


def printed(output: str) -> list[list[str]]:
    commands, here_document = [], False
    for line in output.splitlines():
        if not here_document and not line.endswith("<<'EOF'"):
            commands.append(shlex.split(line))
        here_document = line.endswith("<<'EOF'") or (here_document and line != "EOF")
    return commands

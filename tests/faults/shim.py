"""Compile shim.c, and read the log of calls that it writes."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_suffix(".c")
_VARIES = re.compile(r"[0-9a-f]{16,}|[0-9]+|(?<=\.tmp)[A-Za-z0-9]{6}")
_ALIKE = {
    re.compile(r"^((.*/)?checkpoints/[^/]*/)(params|optimizer|guard|mems)\b"): r"\1ARRAYS",
    re.compile(r"^((.*/)?checkpoints/[^/]*/)(config|data|dropout)\b"): r"\1JSON",
}


class Call(NamedTuple):
    kind: str
    """name of a kind in shim.c"""
    path: str
    """relative to the watched folder; of a rename or a link, its target"""
    error: int = 0
    """errno; 0 where it succeeded"""
    source: str = ""
    """of a rename or a link"""

    @property
    def glob(self) -> str:
        """Pattern of this path and of all that differ from it in numbers only."""
        return _VARIES.sub("*", self.path)

    @property
    def pattern(self) -> str:
        """Glob in which items of a checkpoint that are written by the same code have one name."""
        glob = self.glob
        for alike, name in _ALIKE.items():
            glob = alike.sub(name, glob)
        return glob


def missing_requirement() -> str | None:
    if shutil.which("cc") is None:
        return "no C compiler (cc) to build tests/faults/shim.c with"
    if not Path("/proc/self/fd").is_dir():
        return "no /proc, in which tests/faults/shim.c looks up open files"
    return None


def build(folder: Path) -> Path:
    library = folder / "shim.so"
    subprocess.run(["cc", "-O1", "-Wall", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


def read_calls(log: Path) -> Iterator[Call]:
    for line in log.read_text().splitlines():
        kind, error, path, source = line.split("\t")
        yield Call(kind, path, int(error), source)

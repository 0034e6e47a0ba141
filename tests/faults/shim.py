"""Compile shim.c, and read the log of calls that it writes."""

import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

KINDS = ("open", "write", "rename", "link", "unlink", "rmdir", "mkdir", "sync", "truncate", "close", "read")
SOURCE = Path(__file__).with_suffix(".c")
_HEAD = struct.Struct("<IIiIqQII")  # struct record of shim.c
_VARIES = re.compile(r"[0-9a-f]{16,}|[0-9]+|(?<=\.tmp)[A-Za-z0-9]{6}")
_ALIKE = {
    re.compile(r"^((.*/)?checkpoints/[^/]*/)(params|optimizer|guard|mems)\b"): r"\1ARRAYS",
    re.compile(r"^((.*/)?checkpoints/[^/]*/)(config|data|dropout)\b"): r"\1JSON",
}


class Call(NamedTuple):
    """Call that changed a file."""

    kind: str
    path: str
    """relative to the watched folder; of a rename or a link, its target"""
    other: str
    """source of a rename or a link"""
    error: int
    process: int
    offset: int
    """place of a write; length of a truncation; flags of an open; 1 for a sync of the whole file system"""
    inode: int
    data: bytes

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


def lacking() -> str | None:
    """Return why the shim cannot be used here; None where it can."""
    if shutil.which("cc") is None:
        return "no C compiler (cc) to build tests/faults/shim.c with"
    if not Path("/proc/self/fd").is_dir():
        return "no /proc, in which tests/faults/shim.c looks up open files"
    return None


def build(folder: Path) -> Path:
    """Compile the shim; return the library to preload."""
    library = folder / "shim.so"
    words = ("cc", "-O1", "-Wall", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl")
    subprocess.run(words, check=True)
    return library


def calls(log: Path) -> Iterator[Call]:
    """Yield the records of a log, in their order."""
    content, begin = log.read_bytes(), 0
    while begin < len(content):
        size, kind, error, process, offset, inode, path, other = _HEAD.unpack_from(content, begin)
        cut = begin + _HEAD.size
        names = [content[cut : cut + path].decode(), content[cut + path : cut + path + other].decode()]
        data = content[cut + path + other : begin + size]
        yield Call(KINDS[kind], *names, error, process, offset, inode, data)
        begin += size

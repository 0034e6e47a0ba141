"""Power loss: what is left of a folder when the machine stops after a call of a recorded run.

The disk is one that keeps a journal, as ext4, XFS and Btrfs do: changes of names reach it in their order, and all of
them when anything is synced; the data of a file reaches it when that file is synced. The rest may be there or not.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.faults.shim import Call


@dataclass
class _File:
    written: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


Tree = dict[str, _File | None]  # path -> file; None = a folder
Left = dict[str, bytes | None]  # path -> content; None = a folder


class Loss(NamedTuple):
    """Part that is lost of what was not synced."""

    name: str
    names: bool
    """changes of names since the last sync of anything"""
    half: bool
    """only half of the data that was not synced, instead of all"""


LOSSES = (Loss("data", False, False), Loss("half of the data", False, True), Loss("data and names", True, False))


def moments(calls: Sequence[Call]) -> Iterator[int]:
    """Yield the numbers of calls after which the machine may stop: the last of each kind that changes names, and the
    end of the run."""
    last = {(c.kind, c.pattern): n for n, c in enumerate(calls, 1) if c.kind in ("rename", "unlink", "mkdir")}
    yield from sorted({*last.values(), len(calls)})


def left_after(calls: Sequence[Call], loss: Loss | None) -> Left:
    """Return what is left of a folder that was empty before these calls, when the machine stops after the last one.

    loss: None = nothing is lost.
    """
    tree: Tree = {".": None}
    opened: dict[int, _File] = {}
    on_disk = dict(tree)
    for call in calls:
        if not call.error:
            _apply(call, tree, opened)
            if call.kind == "sync":
                on_disk = dict(tree)
    names = on_disk if loss and loss.names else tree
    return {path: None if file is None else _content(file, loss) for path, file in names.items() if path != "."}


def _apply(call: Call, tree: Tree, opened: dict[int, _File]) -> None:
    path = call.path
    if call.kind == "open":
        there = tree.get(path)
        file = tree[path] = opened[call.inode] = there if isinstance(there, _File) else _File()
        if call.offset & os.O_TRUNC:
            file.written.clear()
            file.synced = b""
    elif call.kind == "write":
        file = opened[call.inode]
        file.written.extend(bytes(max(0, call.offset - len(file.written))))
        file.written[call.offset : call.offset + len(call.data)] = call.data
    elif call.kind == "truncate":
        if call.inode in opened:
            del opened[call.inode].written[call.offset :]
    elif call.kind == "sync":
        for file in opened.values() if call.offset else [opened[call.inode]] if call.inode in opened else []:
            file.synced = bytes(file.written)
    elif call.kind == "mkdir":
        tree[path] = None
    elif call.kind in ("unlink", "rmdir"):
        tree.pop(path, None)
    elif call.kind == "rename":
        below = [name for name in tree if name == call.other or name.startswith(f"{call.other}/")]
        for old in [name for name in tree if name == path or name.startswith(f"{path}/")]:
            del tree[old]
        for name in below:
            tree[path + name.removeprefix(call.other)] = tree.pop(name)


def _content(file: _File, loss: Loss | None) -> bytes:
    written = bytes(file.written)
    if loss is None:
        return written
    if written == file.synced or not loss.half:
        return file.synced
    return written[: (len(file.synced) + len(written)) // 2]


def unseen(calls: Sequence[Call], folder: Path) -> list[str]:
    """Return the files of a folder that these calls do not account for: something was written past the shim."""
    left = left_after(calls, None)
    there = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    wrong = [name for name, path in there.items() if path.is_file() and left.get(name) != path.read_bytes()]
    return sorted({*wrong, *(there.keys() ^ left.keys())})


def restore(left: Left, folder: Path) -> None:
    """Write into an empty folder what is left."""
    for path, content in sorted(left.items()):
        if content is None:
            (folder / path).mkdir(parents=True, exist_ok=True)
        else:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)

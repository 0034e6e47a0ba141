"""Size and CRC-32 of every file of a checkpoint, which tell a damaged one before anything reads it."""

import json
import zlib
from collections.abc import Iterable
from pathlib import Path

from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import write_durably
from xlnet_jax.storage.reading import Count, demand_regular, inside, read_json

NAME = "checksums.json"


def write_checksums(folder: Path) -> None:
    """Write checksums.json into a finished folder, with a record of every other file in it."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != NAME)
    record = {p.relative_to(folder).as_posix(): _checksum(p) for p in files}
    write_durably(folder / NAME, json.dumps(record).encode())


def find_damage(folder: Path, parts: Iterable[str]) -> str | None:
    """Return one line on the first damaged file in these sub-folders, or None. A folder without checksums.json passes:
    its process was killed between the end of the write and the record."""
    record = folder / NAME
    if not record.exists():
        return None
    try:
        expected = read_json(record, dict[str, tuple[Count, Count]])
    except InputError as damage:
        return str(damage)
    for name, (size, crc) in expected.items():
        if name.partition("/")[0] not in parts:
            continue
        try:
            file = Path(inside(epath.Path(folder), name, str(record)))
            there = demand_regular(file)
        except InputError as damage:
            return str(damage)
        if there != size:
            return f"{name} has {there:,} bytes of {size:,}"
        if _checksum(file)[1] != crc:
            return f"{name} was altered"
    return None


def _checksum(file: Path) -> tuple[int, int]:
    size, crc = 0, 0
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 22):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return size, crc

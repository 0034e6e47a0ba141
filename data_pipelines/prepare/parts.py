"""Cut text into parts, the unit of work: any process encodes any part, and encoded parts survive a stop.

Parts depend on the text alone, never on the machine. Units are grouped, so that many small files make few parts. A part
ends where a document ends, if one ends in it.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from etils import epath

from data_pipelines.readers import Errors
from data_pipelines.sources import Source, Unit
from data_pipelines.tfds_text import DatasetSlice

PART_CHARS = 2**22
LINE_CHARS = 32  # added to the size of each line: encoding millions of short lines takes much memory
GROUP_BYTES = 2**26
BLANK_LINE = re.compile(r"\n[^\S\n]*\n")


@dataclass(frozen=True)
class Group:
    """Consecutive units of a source, read by one process."""

    source: int
    index: int
    units: tuple[Unit, ...]
    errors: Errors


@dataclass(frozen=True)
class Part:
    """A stretch of a group: whole lines, with blank lines between documents."""

    text: str
    continues: bool  # the first line belongs to the last document of the part before
    ends: bool  # the last document ends with this part

    @cached_property
    def sha256(self) -> str:
        """SHA-256 in hex: parts with the same value have the same tokens."""
        return hashlib.sha256(bytes([self.continues, self.ends]) + self.text.encode()).hexdigest()


def groups_of(sources: Sequence[Source], errors: Errors) -> list[Group]:
    """Group the units of all sources, in order. A missing file raises when it is read, not here."""
    return [
        Group(number, index, units, errors)
        for number, source in enumerate(sources)
        for index, units in enumerate(_grouped(source))
    ]


def _grouped(source: Source) -> Iterator[tuple[Unit, ...]]:
    group: list[Unit] = []
    size = 0
    for unit, there in itertools.zip_longest(source.units, source.remote):
        group.append(unit)
        size += (there.size or 0) if there else _num_bytes(unit)
        if size >= GROUP_BYTES:
            yield tuple(group)
            group, size = [], 0
    if group:
        yield tuple(group)


def _num_bytes(unit: Unit) -> int:
    if isinstance(unit, DatasetSlice):
        return GROUP_BYTES
    try:
        return epath.Path(unit.path).stat().length
    except OSError:
        return 0


def cut_parts(group: Group) -> Iterator[Part]:
    """Yield the text of a group, about PART_CHARS characters at a time. Raises the InputErrors of the readers."""
    pending: list[str] = []
    size = 0
    continues = False
    for chunk in _chunks(group):
        pending.append(chunk)
        size += _size(chunk)
        if size < PART_CHARS:
            continue
        text = "".join(pending)
        if text.isspace():
            if continues:
                yield Part(text, continues, ends=True)
            pending, size, continues = [], 0, False
            continue
        end = _last_document_end(text)
        ends = end > 0
        yield Part(text[: end or None], continues, ends)
        rest = text[end:] if ends else ""
        pending, size, continues = [rest], _size(rest), not ends
    if (text := "".join(pending)).strip() or continues:
        yield Part(text, continues, ends=True)


def _size(text: str) -> int:
    return len(text) + LINE_CHARS * text.count("\n")


def _chunks(group: Group) -> Iterator[str]:
    for unit in group.units:
        yield from unit.chunks(group.errors)
        yield "\n"  # the end of a file ends a document


def _last_document_end(text: str) -> int:
    """Return the index after the last blank line that has text before it, or 0 if there is no such line."""
    end = text.rfind("\n\n") + 2
    if end < 2 or text[:end].isspace():
        end = max((m.end() for m in BLANK_LINE.finditer(text)), default=0)
    return 0 if text[:end].isspace() else end


def fingerprint(source: Source, errors: Errors) -> str:
    """Return the SHA-256, in hex, of the text of a source, whatever its files are called."""
    return fingerprint_of(part.sha256 for group in groups_of([source], errors) for part in cut_parts(group))


def fingerprint_of(parts: Iterable[str]) -> str:
    """Return the fingerprint of a source from the hashes of its parts, in order."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(bytes.fromhex(part))
    return whole.hexdigest()

"""Text cut into parts, the unit of work: each is encoded by itself, by any process, and found again after a stop.

Parts depend on the text alone, never on the machine. Units are taken in groups, so that many small files make few
parts; a part ends with a document wherever one ends in it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from etils import epath

from data_pipelines.readers import Errors
from data_pipelines.sources import Source, Unit
from data_pipelines.tfds_text import DatasetSlice

PART_CHARS = 2**22
LINE_CHARS = 32  # what a line counts beside its characters: millions of short ones take much memory to encode
GROUP_BYTES = 2**26
BLANK_LINE = re.compile(r"\n[^\S\n]*\n")


@dataclass(frozen=True)
class Group:
    """Units of a source that follow each other, read by one process."""

    source: int
    index: int
    units: tuple[Unit, ...]
    errors: Errors


@dataclass(frozen=True)
class Part:
    """A stretch of a group: whole lines, documents divided by blank lines."""

    text: str
    continues: bool  # its first line goes on with the document of the part before
    ends: bool  # its last document ends with it

    @cached_property
    def sha256(self) -> str:
        """In hex: parts that share it are encoded alike."""
        return hashlib.sha256(bytes([self.continues, self.ends]) + self.text.encode()).hexdigest()


def groups_of(sources: Sequence[Source], errors: Errors) -> list[Group]:
    """The groups of all sources, in order; a file that is gone is found when it is read."""
    return [
        Group(number, index, units, errors)
        for number, source in enumerate(sources)
        for index, units in enumerate(_grouped(source.units))
    ]


def _grouped(units: Sequence[Unit]) -> Iterator[tuple[Unit, ...]]:
    group: list[Unit] = []
    size = 0
    for unit in units:
        group.append(unit)
        size += _num_bytes(unit)
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
    """The text of a group, about PART_CHARS characters at a time. Errors are those of the readers."""
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
    """Behind the last blank line with text before it; 0 = there is none."""
    end = text.rfind("\n\n") + 2
    if end < 2 or text[:end].isspace():
        end = max((m.end() for m in BLANK_LINE.finditer(text)), default=0)
    return 0 if text[:end].isspace() else end


def fingerprint(source: Source, errors: Errors) -> str:
    """SHA-256, in hex, of the text of a source; the names of its files do not count."""
    return fingerprint_of(part.sha256 for group in groups_of([source], errors) for part in cut_parts(group))


def fingerprint_of(parts: Iterator[str]) -> str:
    """The same from the hashes of its parts, in order."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(bytes.fromhex(part))
    return whole.hexdigest()

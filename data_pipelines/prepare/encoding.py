"""Cut text into parts, the unit of work, and encode them: the first pass of preparation.

Parts depend only on the text, not on the machine, so any process can encode any part, and encoded parts can be reused
after a stop. Units are grouped, so that many small files make few parts. If a document ends in a part, the part ends
there. Each part becomes a file (`FIELDS`), and each group gets a file that lists its parts.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from etils import epath

from data_pipelines.corpus import Start
from data_pipelines.prepare.holdout import DOCUMENT, line_hashes
from data_pipelines.prepare.runners import Runner
from data_pipelines.readers import TextFile
from data_pipelines.records import KEY
from data_pipelines.remote import is_remote
from data_pipelines.sources import Source, Unit, chunks_of
from data_pipelines.tfds_text import DatasetSlice
from data_pipelines.tokenizer import EOD, Tokenizer
from xlnet_jax.storage.files import complete_file
from xlnet_jax.storage.reading import read_arrays, read_json

PART_CHARS = 2**22
LINE_CHARS = 32  # added to the size of each line, as encoding millions of short lines takes much memory
GROUP_BYTES = 2**26
BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
READERS = 32  # parts read at once, to join their documents
VERSION = 1
"""Version of the part files. An interrupted run of another version starts over"""
FIELDS: dict[str, tuple[type[np.generic], int]] = {
    "tokens": (np.int32, 1),  # documents in order, <eod> after each
    "starts": (np.uint8, 1),  # `Start` of each token
    "document_tokens": (np.int64, 1),  # length of each document within the part; 0 = empty after normalization
    "document_hashes": (np.uint64, 1),  # per document, the sum of `holdout.line_hashes` of its lines with tokens
    "line_starts": (np.int64, 1),  # index of the first token of each line with text
    "continues": (np.bool_, 0),  # the first document began in an earlier part
}
"""Arrays of an encoded part: dtype and rank"""


Group = tuple[Unit, ...]
"""Consecutive units of a source, which one process reads"""


@dataclass(frozen=True)
class TextPart:
    """A stretch of a group: whole lines, with blank lines between documents."""

    text: str
    continues: bool  # the first line belongs to the last document of the previous part
    ends: bool  # the last document ends with this part

    @cached_property
    def sha256(self) -> str:
        """SHA-256 in hex. Parts with the same value have the same tokens."""
        return hashlib.sha256(bytes([self.continues, self.ends]) + self.text.encode()).hexdigest()


def groups_of(source: Source) -> list[Group]:
    """Group the units of a source, in order. A missing file raises an error only when it is read."""
    groups: list[Group] = []
    units: list[Unit] = []
    size = 0
    for unit in source.units:
        units.append(unit)
        size += _num_bytes(unit)
        if size >= GROUP_BYTES or unit is source.units[-1]:
            groups.append(tuple(units))
            units, size = [], 0
    return groups


def _num_bytes(unit: Unit) -> int:
    if isinstance(unit, DatasetSlice):
        return GROUP_BYTES
    if isinstance(unit, TextFile) and is_remote(unit.path):
        return unit.size or 0
    try:
        return epath.Path(unit.path).stat().length
    except OSError:
        return 0


def cut_parts(group: Group) -> Iterator[TextPart]:
    """Yield the text of a group in parts of about PART_CHARS characters. Raises the InputErrors of the readers."""
    pending: list[str] = []
    size = 0
    continues = False
    for chunk in chunks_of(group):
        pending.append(chunk)
        size += _size(chunk)
        if size < PART_CHARS:
            continue
        text = "".join(pending)
        if text.isspace():
            if continues:
                yield TextPart(text, continues, ends=True)
            pending, size, continues = [], 0, False
            continue
        end = _last_document_end(text)
        ends = end > 0
        yield TextPart(text[: end or None], continues, ends)
        rest = text[end:] if ends else ""
        pending, size, continues = [rest], _size(rest), not ends
    if (text := "".join(pending)).strip() or continues:
        yield TextPart(text, continues, ends=True)


def _size(text: str) -> int:
    return len(text) + LINE_CHARS * text.count("\n")


def _last_document_end(text: str) -> int:
    """Return the index after the last blank line that follows text, or 0 if there is none."""
    end = text.rfind("\n\n") + 2
    if end < 2 or text[:end].isspace():
        end = max((m.end() for m in BLANK_LINE.finditer(text)), default=0)
    return 0 if text[:end].isspace() else end


def fingerprint(source: Source) -> str:
    """Return the SHA-256, in hex, of the text of a source. File names do not count."""
    return join_fingerprints(part.sha256 for group in groups_of(source) for part in cut_parts(group))


def join_fingerprints(parts: Iterable[str]) -> str:
    """Return the fingerprint of a source from the hashes of its parts, in order."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(bytes.fromhex(part))
    return whole.hexdigest()


@dataclass(frozen=True)
class EncodedSource:
    """Encoded parts of a source, and its documents. A document that spans several parts consists of several pieces."""

    text: Source
    fingerprint: str  # as `fingerprint`
    files: tuple[str, ...]  # of the parts, in order
    pieces: np.ndarray  # int64 [pieces, 3]: part, first token, and end (after the last token) of each piece
    document: np.ndarray  # int64 [pieces], index of the document of each piece
    hashes: np.ndarray  # uint64 [documents], of whole documents

    @property
    def piece_tokens(self) -> np.ndarray:
        """Number of tokens of each piece: int64 [pieces]."""
        return self.pieces[:, 2] - self.pieces[:, 1]

    @property
    def tokens(self) -> int:
        return int(self.piece_tokens.sum())

    @property
    def documents(self) -> np.ndarray:
        """The whole documents, in order, without empty ones: `DOCUMENT` [documents]."""
        documents = np.zeros(len(self.hashes), DOCUMENT)
        documents["hash"] = self.hashes
        np.add.at(documents["tokens"], self.document, self.piece_tokens)
        return documents[documents["tokens"] > 0]


def encode_text(
    text: Sequence[Source], tokenizer: Tokenizer, folder: epath.Path, runner: Runner
) -> list[EncodedSource]:
    """Encode the parts of each source that are not yet in `folder`, and return all sources encoded."""
    parts, lists = folder / f"encoded-{VERSION}-{tokenizer.sha256[:16]}", folder / "lists"
    for made in (parts, lists):
        made.mkdir(parents=True, exist_ok=True)
    groups = [
        [(lists / f"{number}-{place}.json", group) for place, group in enumerate(groups_of(source))]
        for number, source in enumerate(text)
    ]
    seeds = list(itertools.chain.from_iterable(groups))
    runner(seeds, partial(_encode_part, parts, tokenizer), partial(unfinished_parts, parts))
    encoded = []
    for source, of_source in zip(text, groups, strict=True):
        listed = [read_json(file, list[str]) for file, _ in of_source if file.exists()]
        files = [str(parts / f"{part}.npz") for part in itertools.chain.from_iterable(listed)]
        encoded.append(join_parts(source, files))
    return encoded


def unfinished_parts(parts: epath.Path, seed: tuple[epath.Path, Group]) -> Iterator[TextPart]:
    """Yield the parts of a group that are not encoded yet, then write the list of all its parts into a file. seed: the
    file and the group."""
    file, group = seed
    seen = []
    for part in cut_parts(group):
        seen.append(part.sha256)
        if not (parts / f"{part.sha256}.npz").exists():
            yield part
    file.write_text(json.dumps(seen)) if seen else file.unlink(missing_ok=True)


def _encode_part(parts: epath.Path, tokenizer: Tokenizer, part: TextPart) -> None:
    save(encode(part, tokenizer), parts / f"{part.sha256}.npz")


def save(part: Mapping[str, Any], file: epath.Path) -> None:
    """Write an encoded part, complete or not at all. Two processes may save the same part if it occurs twice in a
    text."""
    with complete_file(file, writer=uuid.uuid4().hex) as partial, partial.open("wb") as opened:
        np.savez(opened, **part)


def load(file: str, *names: str) -> list[np.ndarray]:
    """Read only these arrays of a saved part. Raises InputError if the file is damaged."""
    return list(read_arrays(epath.Path(file), {name: FIELDS[name] for name in names}).values())


def join_parts(source: Source, files: Sequence[str]) -> EncodedSource:
    """Return a source from its encoded parts, in order. The files are named by the SHA-256 of their parts."""
    with ThreadPoolExecutor(READERS) as pool:
        found = list(pool.map(lambda file: load(file, "document_tokens", "document_hashes", "continues"), files))
    pieces, begins, piece_hashes = [np.zeros((0, 3), np.int64)], [np.zeros(0, bool)], [np.zeros(0, np.uint64)]
    for part, (tokens, hashes, continues) in enumerate(found):
        ends = np.cumsum(tokens)
        pieces.append(np.stack([np.full(len(tokens), part), ends - tokens, ends], axis=1))
        begins.append(np.arange(len(tokens)) >= continues)
        piece_hashes.append(hashes)
    document = np.cumsum(np.concatenate(begins)) - 1
    hashes = np.zeros(np.count_nonzero(np.concatenate(begins)), np.uint64)
    np.add.at(hashes, document, np.concatenate(piece_hashes))
    parts = join_fingerprints(epath.Path(file).stem for file in files)
    return EncodedSource(source, parts, tuple(files), np.concatenate(pieces), document, hashes)


def encode(part: TextPart, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Encode a part and return its `FIELDS`. Lines and documents that are empty after normalization give no tokens."""
    lines = lines_of(part)
    ids, lengths = tokenizer.encode_flat(lines, threads=1)
    is_end = np.array([not line for line in lines], bool)
    document = np.cumsum(is_end) - is_end  # document number of each line
    documents = int(is_end.sum()) + (not part.ends)

    # Add <eod> after every line, so that its sentence starts do not depend on the next line. Most are removed below.
    line_end = np.cumsum(lengths + 1) - 1
    keep = np.ones(line_end[-1] + 1, bool) if len(lines) else np.zeros(0, bool)
    keep[line_end] = False
    tokens = np.full(len(keep), EOD, np.int32)
    tokens[keep] = ids
    starts = tokenizer.tables.sentence_starts(tokens) * np.uint8(Start.SENTENCE)

    has_text = lengths > 0
    before = 0 if part.continues else -1  # the document that began in an earlier part, or none
    begins_document = np.diff(document[has_text], prepend=before) != 0
    starts[(line_end - lengths)[has_text]] = np.where(begins_document, Start.DOCUMENT, Start.SENTENCE)
    is_line = np.zeros(len(keep), bool)
    is_line[(line_end - lengths)[has_text]] = True
    has_lines = np.bincount(document[has_text], minlength=documents) > 0
    hashes = np.zeros(documents, np.uint64)
    hashed = [line for line, has in zip(lines, has_text, strict=True) if has]
    if tokenizer.records:
        hashed = [line.partition(KEY)[2] or line for line in hashed]
    np.add.at(hashes, document[has_text], line_hashes(hashed))
    keep[line_end] = is_end & (has_lines[document] | (document == before))
    return {
        "tokens": tokens[keep],
        "starts": starts[keep],
        "document_tokens": np.bincount(document, lengths + keep[line_end], documents).astype(np.int64),
        "document_hashes": hashes,
        "line_starts": np.flatnonzero(is_line[keep]),
        "continues": np.array(part.continues),
    }


def lines_of(part: TextPart) -> list[str]:
    """Return the stripped lines of a part, with one empty line after each document that ends in it."""
    lines = [line.strip() for line in part.text.split("\n")]
    kept = [line for line, before in zip(lines, [part.continues and "x", *lines], strict=False) if line or before]
    if part.ends and (kept or part.continues) and (not kept or kept[-1]):
        kept.append("")
    if not part.ends:
        while kept and not kept[-1]:
            kept.pop()
    return kept

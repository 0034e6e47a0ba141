"""Encode text: the first pass of preparation.

Each part becomes a file: documents in order, `<eod>` after each, with the tokens at which documents and lines begin.
The parts of a group are listed in a file beside them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from etils import epath

from data_pipelines.corpus import Start
from data_pipelines.prepare.holdout import Documents, line_hashes
from data_pipelines.prepare.parts import Group, Part, cut_parts, fingerprint_of, groups_of
from data_pipelines.prepare.runners import Runner
from data_pipelines.readers import Errors
from data_pipelines.sources import Source
from data_pipelines.tokenizer import EOD, Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import complete_file
from xlnet_jax.storage.reading import demand_regular, read_arrays, read_json
from xlnet_jax.storage.versions import KEY, with_version, without_version

READERS = 32  # parts that are open at once, for their documents
REMEDY = "delete it, and give the same command again"  # for a damaged file that an interrupted run left
_FORMS: dict[str, tuple[type[np.generic], int]] = {
    "tokens": (np.int32, 1),
    "starts": (np.uint8, 1),
    "document_tokens": (np.int64, 1),
    "document_hashes": (np.uint64, 1),
    "line_starts": (np.int64, 1),
    "continues": (np.bool_, 0),
    KEY: (np.int64, 0),
}
"""Type of number and rank of each field of a part"""


@dataclass(frozen=True)
class EncodedPart:
    """Tokens of a part, and their documents. The first document may have begun in the part before."""

    tokens: np.ndarray  # int32 [E]
    starts: np.ndarray  # uint8 [E], `Start`
    document_tokens: np.ndarray  # int64 [documents], length of each; 0 = empty after normalisation
    document_hashes: np.ndarray  # uint64 [documents], sum of `holdout.line_hashes` of its lines with tokens
    line_starts: np.ndarray  # int64 [lines], index of the first token of each line with text
    continues: np.ndarray  # bool [], as in `Part`

    def save(self, file: epath.Path) -> None:
        """Write the part, whole or not at all. Two processes may save the same part, if a text holds it twice."""
        with complete_file(file, writer=uuid.uuid4().hex) as partial, partial.open("wb") as opened:
            np.savez(opened, **with_version("parts", vars(self)))


def load(file: str, *names: str) -> tuple[np.ndarray, ...]:
    """Read the named fields of a saved part, and no others. Raises InputError where the file is damaged, or of another
    version."""
    path = epath.Path(file)
    try:
        found = read_arrays(path, {name: _FORMS[name] for name in (*names, KEY)})
    except InputError as damage:
        raise InputError(f"{damage}; {REMEDY}") from None
    without_version("parts", {KEY: int(found.pop(KEY))}, file, REMEDY)
    most = demand_regular(path)  # no number in it counts more than its bytes
    if any(
        array.min(initial=0) < 0 or (name not in ("tokens", "document_hashes") and array.max(initial=0) > most)
        for name, array in found.items()
    ):
        raise InputError(f"{file} is damaged: it holds numbers out of range; {REMEDY}")
    return tuple(found[name] for name in names)


@dataclass(frozen=True)
class EncodedSource:
    """Encoded parts of a source, and its documents. The ends of parts cut some documents into several pieces."""

    given: Source
    fingerprint: str  # as `parts.fingerprint`
    files: tuple[str, ...]  # of the parts, in order
    part: np.ndarray  # int64 [pieces], index of the part of each piece
    piece_tokens: np.ndarray  # int64 [pieces]
    document: np.ndarray  # int64 [pieces], index of the document of each piece
    hashes: np.ndarray  # uint64 [documents], of whole documents

    @property
    def tokens(self) -> int:
        return int(self.piece_tokens.sum())

    @property
    def documents(self) -> Documents:
        """The whole documents in order, without empty ones."""
        tokens = np.zeros(len(self.hashes), np.int64)
        np.add.at(tokens, self.document, self.piece_tokens)
        return Documents(self.hashes[tokens > 0], tokens[tokens > 0])


@dataclass(frozen=True)
class Encoder:
    """The first pass. The methods that a runner calls leave their results in `folder`, where a later call finds
    them."""

    folder: epath.Path
    tokenizer: Tokenizer

    def encode(self, text: Sequence[Source], errors: Errors, runner: Runner) -> list[EncodedSource]:
        """Encode the parts of each source that are not encoded yet. errors: as in `sources.read_lines`."""
        for folder in (self._parts, self._lists):
            folder.mkdir(parents=True, exist_ok=True)
        groups = groups_of(text, errors)
        runner.run(groups, self.encode_part, self.unfinished_parts)
        return [
            self._source(source, [group for group in groups if group.source == number])
            for number, source in enumerate(text)
        ]

    def unfinished_parts(self, group: Group) -> Iterator[Part]:
        """Yield the parts of a group that are not encoded yet, then write the list of all its parts."""
        seen = []
        for part in cut_parts(group):
            seen.append(part.sha256)
            if not self._file(part.sha256).exists():
                yield part
        file = self._list(group)
        file.write_text(json.dumps(seen)) if seen else file.unlink(missing_ok=True)

    def encode_part(self, part: Part) -> None:
        """Encode a part into a file."""
        encode(part, self.tokenizer).save(self._file(part.sha256))

    def _source(self, source: Source, groups: Sequence[Group]) -> EncodedSource:
        parts: list[str] = []
        for group in groups:
            file = self._list(group)  # missing for a group without text
            parts += read_json(file, list[str]) if file.exists() else []
        return join_parts(source, parts, [str(self._file(part)) for part in parts])

    @property
    def _parts(self) -> epath.Path:
        return self.folder / f"encoded-{self.tokenizer.sha256[:16]}"

    @property
    def _lists(self) -> epath.Path:
        return self.folder / "lists"

    def _file(self, part: str) -> epath.Path:
        return self._parts / f"{part}.npz"

    def _list(self, group: Group) -> epath.Path:
        return self._lists / f"{group.source:04d}-{group.index:06d}.json"


def join_parts(source: Source, parts: Sequence[str], files: Sequence[str]) -> EncodedSource:
    """Return a source from its encoded parts, in order, each of which is read once. parts: SHA-256 of each."""

    def read(file: str) -> tuple[np.ndarray, ...]:
        tokens, hashes, continues = load(file, "document_tokens", "document_hashes", "continues")
        if len(tokens) != len(hashes):
            raise InputError(f"{file} is damaged: its arrays do not agree; {REMEDY}")
        return tokens, hashes, continues

    with ThreadPoolExecutor(READERS) as pool:
        found = list(pool.map(read, files))
    piece_tokens = np.concatenate([np.zeros(0, np.int64), *(tokens for tokens, *_ in found)])
    piece_hashes = np.concatenate([np.zeros(0, np.uint64), *(hashes for _, hashes, _ in found)])
    part = np.repeat(np.arange(len(files)), [len(tokens) for tokens, *_ in found])
    begins = np.ones(len(part), bool)
    begins[np.searchsorted(part, [number for number, (*_, continues) in enumerate(found) if continues])] = False
    document = np.cumsum(begins) - 1
    hashes = np.zeros(int(begins.sum()), np.uint64)
    np.add.at(hashes, document, piece_hashes)
    return EncodedSource(source, fingerprint_of(parts), tuple(files), part, piece_tokens, document, hashes)


def encode(part: Part, tokenizer: Tokenizer, threads: int = 1) -> EncodedPart:
    """Encode a part. Lines and documents that are empty after normalisation leave no token."""
    lines = _lines(part)
    ids, lengths = tokenizer.encode_flat(lines, threads)
    is_end = np.array([not line for line in lines], bool)
    document = np.cumsum(is_end) - is_end  # document number of each line
    documents = int(is_end.sum()) + (not part.ends)

    # Put <eod> after every line, so that its sentence starts do not depend on the next line. Most are dropped below.
    line_end = np.cumsum(lengths + 1) - 1
    keep = np.ones(line_end[-1] + 1, bool) if len(lines) else np.zeros(0, bool)
    keep[line_end] = False
    tokens = np.full(len(keep), EOD, np.int32)
    tokens[keep] = ids
    starts = tokenizer.sentence_starts(tokens) * np.uint8(Start.SENTENCE)

    has_text = lengths > 0
    before = 0 if part.continues else -1  # the document that began in the part before, or none
    begins_document = np.diff(document[has_text], prepend=before) != 0
    starts[(line_end - lengths)[has_text]] = np.where(begins_document, Start.DOCUMENT, Start.SENTENCE)
    is_line = np.zeros(len(keep), bool)
    is_line[(line_end - lengths)[has_text]] = True
    has_lines = np.bincount(document[has_text], minlength=documents) > 0
    hashes = np.zeros(documents, np.uint64)
    np.add.at(hashes, document[has_text], line_hashes([line for line, has in zip(lines, has_text, strict=True) if has]))
    keep[line_end] = is_end & (has_lines[document] | (document == before))
    return EncodedPart(
        tokens=tokens[keep],
        starts=starts[keep],
        document_tokens=np.bincount(document, lengths + keep[line_end], documents).astype(np.int64),
        document_hashes=hashes,
        line_starts=np.flatnonzero(is_line[keep]),
        continues=np.array(part.continues),
    )


def _lines(part: Part) -> list[str]:
    """Return the stripped lines, with one empty line after each document that ends in the part."""
    lines = [line.strip() for line in part.text.split("\n")]
    kept = [line for line, before in zip(lines, [part.continues and "x", *lines], strict=False) if line or before]
    if part.ends and (kept or part.continues) and (not kept or kept[-1]):
        kept.append("")
    if not part.ends:
        while kept and not kept[-1]:
            kept.pop()
    return kept

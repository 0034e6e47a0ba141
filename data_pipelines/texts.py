"""Read texts one by one, each with its place and its id, for commands that write one result a text; survey a text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from data_pipelines.readers import Errors, JsonLinesFile, ParquetFile, TextFile
from data_pipelines.sources import DOCUMENT_END, Source, Unit, sample_lines
from data_pipelines.tokenizer import EOD, SAMPLE_LINES, Survey, Tokenizer
from xlnet_jax.errors import InputError

LINES = 64  # lines tokenized at once
TextUnit = Literal["line", "document"]
Id = str | int


class TextRecord(NamedTuple):
    """One text, with its place and its id."""

    text: str
    where: str  # file and line or row, for messages
    id: Id | None = None


def read_texts(
    sources: Sequence[Source], unit: TextUnit, id_field: str | None = None, errors: Errors = "strict"
) -> Iterator[TextRecord]:
    """Yield the texts of these sources in order; one at a time is in memory.

    unit: in text files, line = every line that is not blank is a text, document = the lines up to a blank one, joined
    by spaces, are a text. An object of JSON Lines or a row of Parquet is always one text. id_field: the field with its
    id, a string or a whole number. errors: as in `sources.read_lines`.

    Raises InputError, with file and line or row, if a text is empty or a field is missing.
    """
    for source in sources:
        for part in source.units:
            for record in _texts(part, unit, id_field, errors):
                if not record.text:
                    raise InputError(f"{record.where} is empty: leave it out")
                yield record


def _texts(part: Unit, unit: TextUnit, id_field: str | None, errors: Errors) -> Iterator[TextRecord]:
    if isinstance(part, JsonLinesFile | ParquetFile):
        for where, text, value in part.rows(errors, id_field):
            if isinstance(value, bool) or not isinstance(value, Id | None):
                raise InputError(f"{where}: its id {value!r} is neither a string nor a whole number")
            yield TextRecord(text.strip(), where, value)
        return
    if id_field is not None:
        raise InputError(f"`id_field` {id_field}: only JSON Lines and Parquet have fields, and the text is neither")
    one_a_line = unit == "line" and isinstance(part, TextFile)
    lines = (line.strip() for chunk in part.chunks(errors) for line in chunk.split("\n")[:-1])
    document: list[str] = []
    for number, line in enumerate(itertools.chain(lines, [""]), start=1):
        if line:
            document.append(line)
        if document and (one_a_line or not line):
            first = number if line else number - len(document)
            yield TextRecord(" ".join(document), f"text {part.path}: line {first}")
            document = []


def survey(sources: Sequence[Source], errors: Errors) -> Survey:
    """Return what decides the normalisation of a text. Raises InputError on bytes that are not text."""
    return Survey.of(sample_lines(sources, errors, SAMPLE_LINES))


def first_pieces(lines: Iterator[str], tokenizer: Tokenizer, count: int) -> np.ndarray:
    """Return the first token ids of a text, at most `count`, with <eod> after each document: int32 [E].

    lines: as `sources.read_lines` yields them.
    """
    found = [np.zeros(0, np.int32)]
    while sum(map(len, found)) < count and (chunk := list(itertools.islice(lines, LINES))):
        encoded = zip(chunk, tokenizer.encode_lines(chunk), strict=True)
        found += [np.array([EOD], np.int32) if line == DOCUMENT_END else ids for line, ids in encoded]
    return np.concatenate(found)[:count]

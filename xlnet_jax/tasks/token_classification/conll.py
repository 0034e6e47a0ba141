"""Read sentences in CoNLL form: a word a line with its columns, a blank line after each sentence."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from data_pipelines.readers import numbered_lines
from xlnet_jax.errors import InputError

DOCUMENT_START = "-DOCSTART-"
WORD, LABEL = 0, -1  # columns, where the settings name none


@dataclass(frozen=True)
class Sentence:
    """Words of a sentence, in order."""

    words: tuple[str, ...]
    labels: tuple[str, ...] | None
    # The hash of the training examples counts words and labels only, so that files may move.
    rows: tuple[str, ...] = field(repr=False)
    """the lines as they are in the file"""
    place: str = field(repr=False)
    """file, or row"""
    numbers: tuple[int, ...] = field(default=(), repr=False)
    """lines of the file, from 1"""

    def where(self, word: int) -> str:
        """Return the file and line of a word, for messages."""
        return f"{self.place}: line {self.numbers[word]}" if self.numbers else f"{self.place}, word {word}"


def read_conll(path: str, word: int, label: int | None) -> Iterator[Sentence]:
    """Yield the sentences of a file.

    word, label: columns from 0, or from the end, -1 the last; label None = it is not read. A tab separates columns
    where the first line of a file has one, else spaces or tabs do. Raises InputError, with file and line, on a line
    with another number of columns.
    """
    rows: list[tuple[int, str, list[str]]] = []
    width, by_tab = 0, False
    for number, line in [*numbered_lines(path), (0, "")]:
        fields = line.split("\t") if by_tab and line.strip(" \t") else re.split("[ \t]+", line.strip(" \t"))
        if fields == [""] or fields[0] == DOCUMENT_START:
            if rows:
                numbers, lines, of_lines = zip(*rows, strict=True)
                labels = None if label is None else tuple(f[label] for f in of_lines)
                yield Sentence(tuple(f[word] for f in of_lines), labels, lines, path, numbers)
                rows = []
            continue
        if not width:
            by_tab = "\t" in line
            fields = line.split("\t") if by_tab else fields
            width, first = len(fields), number
            _demand_columns(f"{path}: line {number}", width, word, label)
        if len(fields) != width:
            raise InputError(
                f"{path}: line {number} has {_fields(len(fields))}, and line {first} has {width}: {line!r:.60}; every "
                f"word needs the same columns, divided by {'a tab' if by_tab else 'spaces'}"
            )
        if label is not None and not fields[label]:
            raise InputError(f"{path}: line {number} has a word without a label: {line!r:.60}")
        rows.append((number, line, fields))


def _demand_columns(where: str, width: int, word: int, label: int | None) -> None:
    if label == LABEL and width == 1:
        raise InputError(f"{where} has only a word: put its label after it, except in `predict`")
    for name, column in (("text", word), ("label", label)):
        if column is not None and not -width <= column < width:
            raise InputError(f"{where} has {_fields(width)}, and `columns.{name}` is {column}; they count from 0")


def _fields(count: int) -> str:
    return "1 field" if count == 1 else f"{count} fields"

"""Read sentences in CoNLL form: a word a line with its columns, a blank line behind each sentence."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from data_pipelines.readers import numbered_lines
from xlnet_jax.errors import InputError
from xlnet_jax.tasks.readers import files

DOCUMENT_START = "-DOCSTART-"
WORD, LABEL = 0, -1  # columns, where the settings name none


@dataclass(frozen=True)
class Sentence:
    """Words of a sentence, in order."""

    words: tuple[str, ...]
    labels: tuple[str, ...] | None
    # A run knows what it learns from by its words and labels, wherever they lie.
    rows: tuple[str, ...] = field(repr=False)
    """the lines as they stand in the file"""
    path: str = field(repr=False)
    numbers: tuple[int, ...] = field(repr=False)
    """lines of the file, from 1"""

    def where(self, word: int) -> str:
        """Return the file and line of a word, for messages."""
        return f"{self.path}: line {self.numbers[word]}"


def read_conll(names: Sequence[str], labelled: bool, word: int = WORD, label: int = LABEL) -> list[Sentence]:
    """Read the sentences of files, globs and folders.

    word, label: columns from 0, or from the end, -1 the last. A tab separates columns where the first line of a file
    has one, else spaces or tabs do. Raises InputError, with file and line, on a line with another number of columns,
    and on a file without sentences.
    """
    sentences: list[Sentence] = []
    for path in files(names, "sentences"):
        found = list(_sentences(path, word, label if labelled else None))
        if not found:
            raise InputError(f"{path}: no sentences are in it; CoNLL form is a word a line, with its label behind it")
        sentences += found
    return sentences


def divider(row: str) -> str:
    """Return the separator between the columns of a line."""
    return "\t" if "\t" in row else " "


def _sentences(path: str, word: int, label: int | None) -> Iterator[Sentence]:
    rows: list[tuple[int, str, list[str]]] = []
    width, by_tab = 0, False
    for number, line in [*numbered_lines(path), (0, "")]:
        fields = line.split("\t") if by_tab and line.strip(" \t") else re.split("[ \t]+", line.strip(" \t"))
        if fields == [""] or fields[0] == DOCUMENT_START:
            if rows:
                yield _sentence(path, rows, word, label)
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
        raise InputError(f"{where} has a word alone; a label must stand behind it, except in `predict`")
    for name, column in (("text", word), ("label", label)):
        if column is not None and not -width <= column < width:
            raise InputError(f"{where} has {_fields(width)}, and `columns.{name}` is {column}; they count from 0")


def _fields(count: int) -> str:
    return "1 field" if count == 1 else f"{count} fields"


def _sentence(path: str, rows: list[tuple[int, str, list[str]]], word: int, label: int | None) -> Sentence:
    numbers, lines, fields = zip(*rows, strict=True)
    labels = None if label is None else tuple(f[label] for f in fields)
    return Sentence(tuple(f[word] for f in fields), labels, lines, path, numbers)

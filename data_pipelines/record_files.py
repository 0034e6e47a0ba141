"""Read records from files and from memory, as the lines of `records`, with one record or group in memory.

The end of a name gives the format: FASTA, a table (CSV, TSV), JSON Lines or Parquet. In other files each line is a
record or a row of a table (`RecordFile`).
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import operator
import re
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_pipelines import formats
from data_pipelines.faults import Faults, TextRow
from data_pipelines.readers import (
    CHUNK_BYTES,
    JSON_LINES,
    ONE_A_LINE,
    PARQUET,
    WITH_RECORDS,
    TextFile,
    blocks_of_lines,
    kind_of,
    lack_of,
    numbered_lines,
    open_parquet,
    whole,
)  # fmt: skip
from data_pipelines.records import RecordFormat
from xlnet_jax.errors import InputError
from xlnet_jax.storage.reading import decode_json

FASTA = (".fasta", ".fas", ".fa", ".fsa", ".faa", ".fna", ".ffn", ".frn", ".mpfa")
TABLES = (".csv", ".tsv", ".tab", ".psv")
SMILES = (".smi", ".smiles")
RECORD_ENDS = (*FASTA, *TABLES, *SMILES, ".txt", *WITH_RECORDS)
"""Extensions of the files of records in a folder"""
ID = "id"  # the column of FASTA with the first word of a header
PARQUET_ROWS = 1024  # records read at once
NUMBERS = "a table without a header has the columns 1, 2, …, as in `fields` 2:item"
OR_UNKNOWN = "; fix it, or read it as unknown with `unknown` count"

Blocks = Iterator[tuple[int, str]]
"""As `readers.blocks_of_lines`"""

Row = tuple[str, Sequence[Any], str]
"""A row: its place for messages, cells of the wanted columns, and what is wrong with it (then it may have no cells)"""


class RecordUnit:
    """A unit of `sources` whose rows are records."""

    records: RecordFormat

    @property
    def has_records(self) -> bool:
        return True

    @abstractmethod
    def _rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the rows in order."""

    @property
    def _id_column(self) -> str | None:
        """The column with the ids of records if nobody names one."""
        return None

    def chunks(self, faults: Faults) -> Iterator[str]:
        """Yield chunks of lines, with a blank line after each record. Raises InputError for the first fault."""
        parts: list[str] = []
        size = 0
        for row, remedy in self._records(self.records, None):
            if row.fault:
                raise InputError(f"{row.where} {row.fault}{remedy}")
            parts.append(row.text)
            size += len(row.text)
            if size >= CHUNK_BYTES:
                yield "\n\n".join(parts) + "\n\n"
                parts, size = [], 0
        if parts:
            yield "\n\n".join(parts) + "\n\n"

    def rows(self, id_field: str | None = None) -> Iterator[TextRow]:
        """Yield every record; a faulty one has no text. Raises InputError for a missing id."""
        if id_field is not None and self.records.group_by:
            raise InputError("id_field", id_field, ": the id of a group is its value of `group_by`")
        for row, _ in self._records(dataclasses.replace(self.records, key=None), id_field):
            if row.fault and row.id is None and id_field is not None:
                raise InputError(f"{row.where} {row.fault}")
            yield row._replace(text="") if row.fault else row

    def _records(self, records: RecordFormat, id_field: str | None) -> Iterator[tuple[TextRow, str]]:
        """Yield each record, and what to do about its fault."""
        count, id_column = len(records.parsed), records.group_by or id_field or self._id_column
        columns = [*dict.fromkeys([*records.columns, *filter(None, [id_column])])]
        id_at, key_at = (columns.index(name) if name else None for name in (id_column, records.key))
        rows = self._rows(columns)
        if records.group_by and id_at is not None:
            rows = self._grouped(rows, id_at, count)
        lenient = dataclasses.replace(records, unknown="count", key=None)
        for where, cells, fault in rows:
            id_, values = None if id_at is None or not cells else cells[id_at], cells[:count]
            where = where if id_ is None else f"{where} ({id_})"
            if fault:
                yield TextRow(where, "", id_, fault), "; fix or remove it"
                continue
            line, fault = records.line_of(values, None if key_at is None else cells[key_at])
            if "\0" in line or not line.isascii():
                whole(line, where)
            is_unknown = fault and records.unknown == "refuse" and not lenient.line_of(values)[1]
            yield TextRow(where, line, id_, fault), OR_UNKNOWN if is_unknown else "; fix or remove it"

    def _grouped(self, rows: Iterator[Row], at: int, count: int) -> Iterator[Row]:
        """Join consecutive rows with equal cells at this index. Raises InputError for rows without it, and if a group
        is not contiguous."""
        group_by, seen = self.records.group_by, set[int]()

        def group_of(row: Row) -> Any:
            where, cells, fault = row
            if fault or cells[at] == "" or type(cells[at]) not in (str, int):
                raise InputError(f"{where} {fault or f'has {cells[at]!r} in {group_by!r}, which cannot name a group'}")
            return cells[at]

        for value, group in itertools.groupby(rows, group_of):
            (where, first, _), *others = group
            if hash(value) in seen:
                raise InputError(
                    f"{where}: the group {value!r} of {group_by!r} began before, and is not contiguous: sort the file "
                    f"by {group_by!r}"
                )
            seen.add(hash(value))
            columns = ([first[i], *(cells[i] for _, cells, _ in others)] for i in range(count))
            yield where, [*map(_flat, columns), *first[count:]], ""


def _flat(values: list[Any]) -> list[Any]:
    if list not in {*map(type, values)}:
        return values
    return [one for value in values for one in (value if isinstance(value, list) else [value])]


@dataclass(frozen=True, kw_only=True)
class RecordFile(RecordUnit, TextFile):
    """A file of records.

    FASTA has one field, of any name, and the columns `id` (first word of a header) and OS, GN, … (`OS=Homo sapiens`).
    The first line of a table names its columns; numbers from 1 stand for the columns of a table without such a line. A
    file with another end is a table if several columns or a number are asked for, or if its first line names the field
    among others. Else each line is a record.
    """

    records: RecordFormat

    @property
    def _id_column(self) -> str | None:
        return ID if kind_of(self.path) in FASTA else None

    def _rows(self, columns: Sequence[str]) -> Iterator[Row]:
        end = kind_of(self.path)
        if end == PARQUET:
            return self._table_rows(columns)
        if end in JSON_LINES:
            return self._objects_rows(columns)
        blocks = blocks_of_lines(self.path, self.errors, formats.require_records)
        return self._fasta_rows(blocks, columns) if end in FASTA else self._line_rows(blocks, columns, end)

    def _fasta_rows(self, blocks: Blocks, columns: Sequence[str]) -> Iterator[Row]:
        for name in columns[1:]:
            if name != ID and not re.fullmatch("[A-Z]{2}", name):
                raise InputError(
                    f"text {self.path}: FASTA has no column {name!r}, only one field of any name, its sequences; "
                    f"{ID}, the first word of a header; and two letters of it, as OS in OS=Homo sapiens"
                )
        header, parts, number = None, list[str](), 0
        for first, text in blocks:
            for place, line in enumerate(text.split("\n"), first):
                if line.startswith(">"):
                    if header is not None:
                        yield self._sequence(number, header, parts, columns)
                    header, parts, number = line[1:], [], number + 1
                elif line and not line.startswith(";"):
                    if header is None:
                        raise InputError(
                            f"text {self.path}: line {place} is not a header, > and a name, with which each sequence "
                            "of FASTA begins; if it has one sequence on each line, let its name end in .txt"
                        )
                    parts.append(line)
        if header is not None:
            yield self._sequence(number, header, parts, columns)

    def _sequence(self, number: int, header: str, parts: list[str], columns: Sequence[str]) -> Row:
        cells: list[Any] = ["".join("".join(parts).split()).removesuffix("*")]
        for name in columns[1:]:
            found = re.match(r"\s*(\S*)" if name == ID else rf".*?(?<!\S){name}=(.*?)(\s+\w+=|\s*$)", header)
            cells.append(found[1] if found else None)
        return f"text {self.path}: record {number}", cells, ""

    def _line_rows(self, blocks: Blocks, columns: Sequence[str], end: str) -> Iterator[Row]:
        beginning = next(blocks, (1, ""))
        blocks = itertools.chain([beginning], blocks)
        lines = [line for line in beginning[1].split("\n") if line.strip()]
        if not lines:
            lines = [""]
        elif formats.is_fasta(lines[:100]):
            raise InputError(f"text {self.path}: it is FASTA by another name; let its name end in .fasta")
        separator = _separator_of(lines[0], end)
        rows = self._cells(blocks, separator) if separator else _words(blocks)
        (name, *others), names = columns, [cell.strip(' "') for cell in lines[0].split(separator)]
        if end in TABLES or others or name.isdecimal() or (separator and name in names):
            yield from self._columns(rows, columns, is_strict=bool(separator))
            return
        for number, line in _numbered(blocks):
            if number > 1 or line != name:
                text = line.split()[0] if end in SMILES else line  # a name may follow
                yield f"text {self.path}: line {number}", (text,), ""

    def _cells(self, blocks: Blocks, separator: str) -> Iterator[tuple[int, list[str]]]:
        csv.field_size_limit(sys.maxsize)  # a sequence may be a chromosome
        lines = itertools.chain.from_iterable(io.StringIO(text, newline="\n") for _, text in blocks)
        reader = csv.reader(lines, delimiter=separator, strict=True)
        try:
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
        except csv.Error as error:
            raise InputError(
                f"text {self.path}: line {reader.line_num} cannot be read as a row ({error}); in a cell that begins "
                "with a quote, write quotes twice"
            ) from None

    def _columns(self, rows: Iterator[tuple[int, list[str]]], columns: Sequence[str], is_strict: bool) -> Iterator[Row]:
        """Yield the cells of these columns. is_strict: all rows must have as many cells as the first line."""
        begin = next(rows, None)
        if begin is None:
            return
        names = [name.strip() for name in begin[1]]
        if all(name.isdecimal() and 0 < int(name) <= len(names) for name in columns):
            at, rows = [int(name) - 1 for name in columns], itertools.chain([begin], rows)
        elif missing := [name for name in columns if name not in names]:
            raise InputError(f"text {self.path}: its first line {lack_of(missing[0], names, 'column')}; {NUMBERS}")
        else:
            at = [names.index(name) for name in columns]
        pick = operator.itemgetter(*at) if len(at) > 1 else lambda cells: (cells[at[0]],)
        fewest, most = (len(names), len(names)) if is_strict else (max(at) + 1, sys.maxsize)
        for number, cells in rows:
            where = f"text {self.path}: line {number}"
            if fewest <= len(cells) <= most:
                yield where, pick(cells), ""
            else:
                yield where, (), f"has {len(cells)} cells, not {fewest}"

    def _objects_rows(self, columns: Sequence[str]) -> Iterator[Row]:
        for number, line in numbered_lines(self.path, self.errors):
            if line.strip():
                where = f"text {self.path}: line {number}"
                try:
                    values = decode_json(line, "", ONE_A_LINE)
                except InputError as error:
                    yield where, (), str(error).strip()
                else:
                    yield _row_of(where, values, columns, self.records, f"is not a JSON object; {ONE_A_LINE}")

    def _table_rows(self, columns: Sequence[str]) -> Iterator[Row]:
        with open_parquet(self.path) as file:
            names = file.schema_arrow.names
            for name in columns:
                if name not in names:
                    raise InputError(f"text {self.path}: it {lack_of(name, names, 'column')}")
            numbers = itertools.count(1)
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=list(columns)):
                for cells in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                    yield f"text {self.path}: row {next(numbers)}", cells, ""


def _separator_of(line: str, end: str) -> str | None:
    """Return the separator of the cells of a first line; None = white space."""
    if end in TABLES:
        return {".csv": max(",;\t|", key=line.count), ".psv": "|"}.get(end, "\t")
    return "\t" if "\t" in line else "," if "," in line and " " not in line else None


def _numbered(blocks: Blocks) -> Iterator[tuple[int, str]]:
    """Yield (number, line) of the lines that are not blank, stripped."""
    for first, text in blocks:
        for number, line in enumerate(text.split("\n"), first):
            if line := line.strip():
                yield number, line


def _words(blocks: Blocks) -> Iterator[tuple[int, list[str]]]:
    """Yield (number, words) of the lines that are not blank."""
    for first, text in blocks:
        for number, line in enumerate(text.split("\n"), first):
            if words := line.split():
                yield number, words


def _row_of(where: str, values: Any, columns: Sequence[str], records: RecordFormat, fault: str) -> Row:
    """Return the row of an object. fault: what is wrong if it is none."""
    if not isinstance(values, dict):
        return where, (), fault
    allowed = () if records.unknown == "refuse" else [field.name for field in records.parsed]
    missing = [name for name in columns if name not in values and name not in allowed]
    return where, [*map(values.get, columns)], lack_of(missing[0], values) if missing else ""


# ---- records from Python --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryRecords(RecordUnit):
    """Records from Python: of each one the value of its only field, or {field: value}. A value is a string, a number,
    or a list or an array of them."""

    sequences: Sequence[Any]
    records: RecordFormat
    path: str = "sequences"  # the name of the argument, which no other unit has

    def _rows(self, columns: Sequence[str]) -> Iterator[Row]:
        for number, values in enumerate(map(_plain, self.sequences), 1):
            if len(columns) == 1 and not isinstance(values, dict):
                values = {columns[0]: values}
            fault = f"is not a dictionary of {', '.join(columns)}"
            yield _row_of(f"{self.path}: sequence {number}", values, columns, self.records, fault)


def fields_of(sequences: Sequence[Any]) -> tuple[str, ...]:
    """Return the fields of records from Python, by the first of them: a string is read by character, else a symbol is
    an item. Raises InputError if there is none."""
    if not len(sequences):
        raise InputError("sequences", "", "has no records")
    values = first if isinstance(first := _plain(sequences[0]), dict) else {"symbols": first}
    return tuple(f"{name}:{'character' if isinstance(value, str) else 'item'}" for name, value in values.items())


def _plain(value: Any) -> Any:
    """Return a value without arrays and scalars of NumPy."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [one if type(one) in (str, int) else _plain(one) for one in value]
    return value.tolist() if hasattr(value, "tolist") else value

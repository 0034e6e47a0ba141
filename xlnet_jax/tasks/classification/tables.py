"""Read tables of examples row by row: TSV, CSV, JSON Lines, Parquet and TFDS, on a disk or in a bucket."""

import csv
import dataclasses
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etils import epath

from data_pipelines.readers import JSON_LINES, PARQUET, numbered_lines, parquet_rows
from data_pipelines.remote import is_remote
from data_pipelines.sources import TFDS, kind_of
from data_pipelines.tfds_text import dataset_rows
from xlnet_jax.errors import InputError
from xlnet_jax.tasks.readers import Role, Row, files, json_lines

Groups = tuple[tuple[str, ...], ...]
_ENDS = (".tsv", ".csv", ".jsonl", ".parquet")  # in messages
TABLES = (".tsv", ".csv", ".txt", *JSON_LINES, PARQUET)
SHARD = re.compile(r"-\d+-of-\d+$")  # as Hugging Face and TFDS divide a table
DIVIDERS = (",", ";", "\t", "|")
SHOWN = 12  # columns, in a message


@dataclass(frozen=True)
class Published:
    """How a task is published by its owners, TFDS and Hugging Face. The defaults describe any other table."""

    text: tuple[str, ...] = ("text",)
    """possible names of the column, or its number in a file without a header"""
    text_pair: tuple[str, ...] = ()
    label: tuple[str, ...] = ("label",)
    id: tuple[str, ...] = ()
    """id column of files without labels; without one, examples are numbered"""
    labels: tuple[str, ...] = ()
    """in the original's order; none = those of the training examples"""
    numbered: tuple[str, ...] = ()
    """labels in the order of their numbers in TFDS and Hugging Face, if it differs"""
    metrics: tuple[str, ...] = ("accuracy",)
    """official metrics; if there are two, their average counts"""
    submission: str = ""
    """name of the submission file: of GLUE without its extension, of CLUE with .json"""
    reshape: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """turns a published row into one whose columns are texts; None = they are"""
    stems: dict[Role, Groups] = dataclasses.field(default_factory=dict)
    parts: bool = False
    """the evaluation set has a matched and a mismatched part"""
    headless: bool = False
    """some published files have no header"""
    escaped: bool = False
    """line ends and quotes in texts are escaped with backslashes"""
    flawed: bool = False
    """the published files have incomplete lines and empty texts"""

    @property
    def metric(self) -> str:
        """Metric that chooses the best checkpoint."""
        return self.metrics[0] if len(self.metrics) == 1 else "average"


ANY = Published()


def read_table(name: str, published: Published = ANY, header: bool = True) -> Iterator[Row]:
    """Yield the rows of a file, a glob (its files in order), a folder of texts, a URL, or tfds:NAME[SPLIT].

    The extension gives the format: .jsonl and .json with one object per line, .parquet, .csv with quotes; any other
    file is read as TSV, where quotes have no meaning. If the first line names the text's column only between other
    `DIVIDERS`, the file is read as CSV with these. Names of columns lose the spaces around them. A folder of texts has
    one folder per label, with one file per text. header: the first line of TSV and CSV names the columns. Raises
    InputError, with file and line, for what cannot be read.
    """
    if name.startswith(TFDS):
        rows = dataset_rows(name.removeprefix(TFDS), not published.labels)
        yield from (Row(fields, f"{name}: example {i}") for i, fields in enumerate(rows, start=1))
        return
    if not is_remote(name) and epath.Path(name).expanduser().is_dir():
        yield from _texts_of_folders(name, published.labels)
        return
    for path in files([name], "table", f"a table ({', '.join(_ENDS)}), a glob in quotes, or tfds:NAME"):
        kind = kind_of(path)
        if kind in JSON_LINES:
            yield from json_lines(path)
        elif kind == PARQUET:
            yield from (Row(fields, f"{path}: row {i}") for i, fields in enumerate(parquet_rows(path), start=1))
        else:
            yield from _with_columns(_fields_of_lines(path, kind, published), path, published, header)


def files_of_role(name: str, stems: Groups) -> list[str]:
    """Return the files for a role in a folder, or the splits for it of a TFDS dataset; any other name is returned as it
    is.

    stems: groups of names of files or folders, without extensions and shard numbers. The first group that exists is
    used, with all its names; for TFDS the first group with the names of splits. Raises InputError if a folder has no
    such file.
    """
    if name.startswith(TFDS) and not name.endswith("]"):
        splits = next((group for group in stems if group[0].startswith(("train", "validation", "test"))), stems[0])
        return [f"{name}[{split}]" for split in splits]
    folder = epath.Path(name).expanduser()
    if name.startswith(TFDS) or is_remote(name) or not folder.is_dir():
        return [name]
    there: dict[str, list[str]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir() or kind_of(path) in TABLES:
            there.setdefault(SHARD.sub("", path.name.partition(".")[0]), []).append(str(path))
    for group in stems:
        if found := [path for stem in group for path in there.get(stem, [])]:
            return found
    wanted = " or ".join(stem for group in stems for stem in group)
    raise InputError(f"{name}: this folder has no table named {wanted} ({', '.join(_ENDS)}): name a file")


def _fields_of_lines(path: str, kind: str, published: Published) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, fields) of each row, without fields for a blank line."""
    lines = numbered_lines(path)
    first = next(lines, None)
    if first is None:
        return
    lines = itertools.chain([first], lines)
    own = "," if kind == ".csv" else "\t"
    divider = _divider(first[1], own, published.text)
    if divider == "\t" == own:
        yield from ((number, line.split("\t") if line else []) for number, line in lines)
    else:
        yield from _csv(path, lines, divider)


def _divider(header: str, own: str, names: Sequence[str]) -> str:
    """Return the character between the columns: the one of the format, or else one that gives the text's column."""
    for divider in (own, *DIVIDERS):
        if not {field.strip(' "') for field in header.split(divider)}.isdisjoint(names):
            return divider
    return own


def _csv(path: str, lines: Iterable[tuple[int, str]], divider: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(sys.maxsize)  # a text may be a book
    reader = csv.reader((line + "\n" for _, line in lines), delimiter=divider, strict=True)
    begin = 1
    try:
        for fields in reader:
            yield begin, fields
            begin = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}: line {begin} is not CSV ({error})") from None


def _with_columns(
    records: Iterator[tuple[int, list[str]]], path: str, published: Published, header: bool
) -> Iterator[Row]:
    columns: list[str] = []
    names = {name for name in (*published.text, *published.label) if not name.isdecimal()}
    incomplete = 0
    for number, fields in records:
        if not fields:
            if len(columns) != 1:
                continue
            fields = [""]  # of texts alone, a blank line is a text
        if not columns:
            stripped = [field.strip() for field in fields]
            named = header and not (published.headless and names.isdisjoint(stripped))
            columns = stripped if named else [str(i) for i in range(len(fields))]
            if len(set(columns)) < len(columns):
                raise InputError(
                    f"{path}: line {number} has two columns with one name; if it is not a header: `columns.no_header`"
                )
            if named:
                continue
        if len(fields) < len(columns) and published.flawed:
            incomplete += 1
        elif len(fields) != len(columns):
            fault = f"has {len(fields)} fields, and the first line has {len(columns)}"
            yield Row({}, f"{path}: line {number}", fault)
        else:
            yield Row(dict(zip(columns, fields, strict=True)), f"{path}: line {number}")
    if incomplete:
        print(f"{path}: {incomplete} incomplete lines left out", file=sys.stderr)


def _texts_of_folders(path: str, labels: Sequence[str]) -> Iterator[Row]:
    folders = [epath.Path(path).expanduser() / label for label in labels]
    if not any(folder.is_dir() for folder in folders):
        raise InputError(f"{path}: a folder; name a table in it ({', '.join(_ENDS)})")
    for folder in folders:
        for file in sorted(folder.iterdir()):
            text = "\n".join(line for _, line in numbered_lines(str(file)))
            yield Row({"text": text, "label": folder.name}, str(file))


def field(row: Row, names: Sequence[str], setting: str) -> Any:
    """Return the value in the first of these columns that exists; None if it is empty.

    setting: the setting in `columns` that names another column. Raises InputError, with the existing columns, if none
    of these exists.
    """
    for name in names:
        if name in row.content:
            return row.content[name]
    there, wanted = (list(map(repr, columns)) for columns in (row.content, names))
    shown = ", ".join(there[:SHOWN]) + (f" and {len(there) - SHOWN} more" if len(there) > SHOWN else "")
    raise InputError(
        f"{row.where}: there is no column {' or '.join(wanted)}, only {shown}: name it by `columns.{setting}`, or if "
        "the first line is an example, give `columns.no_header`; a .csv file has commas between columns, any other tabs"
    )


def text_field(row: Row, names: Sequence[str], setting: str) -> str:
    """Return a text as `field` does; "" if it is missing or blank. Raises InputError if it is not text."""
    value = field(row, names, setting)
    if value is None or (isinstance(value, str) and not value.strip()):
        return ""
    if not isinstance(value, str):
        raise InputError(f"{row.where}: its {setting} is not text, but {value!r:.60}")
    return value

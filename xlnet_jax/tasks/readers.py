"""Rows of examples, found and read in one way by all tasks: files on a disk or in a bucket, and values of Python.

A file whose name ends in .gz, .zst, .xz or .bz2 is decompressed. Every InputError names the file, and the line or the
record in it.
"""

import glob
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from etils import epath

from data_pipelines import remote
from data_pipelines.readers import numbered_lines, read_text, whole
from data_pipelines.remote import is_remote
from data_pipelines.sources import TFDS, DatasetSlice, find, match_glob
from xlnet_jax.errors import InputError, shown
from xlnet_jax.storage.reading import decode_json

_KINDS = {str: "text", list: "a list", dict: "an object", int: "a number", bool: "true or false"}
_SHOWN = 60  # characters of a wrong value, in a message
V = TypeVar("V")


@dataclass(frozen=True)
class Record:
    """Row of a table or a JSON object, and its place: file, and line or path of records."""

    content: Mapping[str, Any]
    """values by name; by number of the column, from 0, where a table has no header"""
    where: str
    header: str = ""
    """place of the line that names the columns, for messages; "" = there is none"""
    id: str = ""
    """id where the content has none; "" = its number in the run"""

    def get(self, key: str, kind: type[V]) -> V:
        """Return the value of a key. Raises InputError where there is none, or one of another kind."""
        if key not in self.content:
            raise InputError(f"{self.where} has no {key!r}, only {', '.join(map(repr, self.content)) or 'nothing'}")
        return demand_kind(self.content[key], kind, f"{self.where}: {key!r}")

    def records(self, key: str, name: str) -> Iterator["Record"]:
        """Yield the objects in the list of a key; their place is `name` and their number from 0."""
        return records(self.get(key, list), f"{self.where}, {name}")


def records(values: Sequence[Any], where: str) -> Iterator[Record]:
    """Yield the objects of a list, each with its number from 0 after `where`."""
    for number, value in enumerate(values):
        yield Record(demand_kind(value, dict, f"{where} {number}"), f"{where} {number}")


def demand_kind(value: Any, kind: type[V], where: str) -> V:
    """Return the value. Raises InputError where it is of another kind, or a text that UTF-8 cannot hold."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(f"{where} is not {_KINDS[kind]}, but {shown(value, _SHOWN)}")
    if isinstance(value, str):
        whole(value, where)
    return value


def files(names: Sequence[str], what: str, wanted: str = "a file, a folder, or a glob in quotes") -> list[str]:
    """Return the files that names, globs, URLs and folders (their files at any depth) stand for, each sorted.

    what, wanted: for messages, such as "questions". Raises InputError where a name stands for no file.
    """
    found: list[str] = []
    for name in names:
        if is_remote(name):
            found += [file.url for file in remote.find(name)]
            continue
        path = epath.Path(name).expanduser()
        if path.is_dir():
            units = [unit for source in find([name]) for unit in source.units]
            there = [unit.path for unit in units if not isinstance(unit, DatasetSlice)]
        else:
            there = list(map(str, match_glob(path) if glob.has_magic(name) else [path] if path.exists() else []))
        if not there:
            reason = "a TFDS dataset" if name.startswith(TFDS) or path.is_dir() else "no such file"
            raise InputError(f"{what} {name}: {reason}; give {wanted}")
        found += there
    return found


def lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line) of those that are not blank."""
    return ((number, line) for number, line in numbered_lines(path) if line.strip())


def json_file(path: str) -> Any:
    """Return the value of a JSON file."""
    return decode_json(read_text(path), path, "mend the file, or fetch it again")


def json_lines(path: str, name: str = "") -> Iterator[tuple[int, Record]]:
    """Yield (line from 1, object) of a file with an object on each line. name: of the file in messages, else its
    path."""
    for number, line in lines(path):
        where = f"{name or path}: line {number}"
        value = decode_json(line, where, wanted := "an example is one JSON object on one line")
        if not isinstance(value, dict):
            raise InputError(f"{where} is not a JSON object; {wanted}")
        yield number, Record(value, where)


def rows_of(value: Any) -> list[dict[str, Any]] | None:
    """Return the rows of a list of dictionaries or a table of pandas, with lists and numbers of Python in place of
    NumPy's and None in place of NaN, which a table has where nothing is; None of anything else, as paths."""
    if hasattr(value, "columns") and hasattr(value, "to_dict"):
        found = list(value.to_dict("records"))
    else:
        is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
        found = list(value) if is_list else []
        if not found or not all(isinstance(row, Mapping) for row in found):
            return None
    return [{str(name): _plain(of_row) for name, of_row in row.items()} for row in found]


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and value != value else value

"""Find and read rows of examples, for all tasks: from files on disk or in a bucket, and from Python values.

Files that end in .gz, .zst, .xz or .bz2 are decompressed. Every InputError names the file, and the line or record.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from etils import epath

from data_pipelines import remote
from data_pipelines.readers import numbered_lines, read_text, whole
from data_pipelines.remote import is_remote
from data_pipelines.sources import DatasetSlice, find, match_glob
from xlnet_jax.errors import InputError
from xlnet_jax.storage.reading import decode_json

Role = Literal["train", "eval", "predict"]  # use of the examples; the setting with this name lists their files


@dataclass(frozen=True)
class Row:
    """Row of a table or a JSON object, and where it is: the file, and the line or record."""

    content: Mapping[str, Any]
    """values by column name, or by column number from 0 if the table has no header"""
    where: str
    fault: str = ""
    """why there is no content, as the end of a sentence that begins with `where`"""

    def get(self, key: str, form: Any) -> Any:
        """Return the value of a key. Raises InputError if there is none, or it has the wrong type."""
        if self.fault:
            raise InputError(f"{self.where} {self.fault}")
        if key not in self.content:
            raise InputError(f"{self.where} has no {key!r}, only {', '.join(map(repr, self.content)) or 'nothing'}")
        return require_form(self.content[key], form, f"{self.where}: {key!r}")

    def text(self, key: str) -> str:
        """Return the text of a key, "" for null. Raises InputError as `get` does."""
        return self.get(key, str | None) or ""


class _Nulls(dict[str, Any]):
    """Has every key, with the value None."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> None:
        return None


NO_CONTENT = _Nulls()
"""Content of a row in which everything is missing"""


def require_form(value: Any, form: Any, where: str) -> Any:
    """Return the value, converted to a type such as list[str] or a TypedDict (`msgspec.convert`). Raises InputError if
    it has the wrong type, or has text that is not valid UTF-8."""
    whole(json.dumps(value, ensure_ascii=False, default=str), where)
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {str(error).replace('`', '')}") from None


def files(names: Sequence[str], what: str, wanted: str = "a file, a folder, or a glob in quotes") -> list[str]:
    """Return the files of names, globs, URLs and folders (files at any depth), each sorted.

    what, wanted: for messages, such as "questions". Raises InputError if a name matches no file.
    """
    found: list[str] = []
    for name in names:
        if is_remote(name):
            there = [url for url, *_ in remote.find(name)]
        elif (path := epath.Path(name).expanduser()).is_dir():
            units = [unit for source in find([name]) for unit in source.units]
            there = [unit.path for unit in units if not isinstance(unit, DatasetSlice)]
        else:
            there = list(map(str, [path] if path.exists() else match_glob(path)))
        if not there:
            raise InputError(f"{what} {name}: no such file; give {wanted}")
        found += there
    return found


def lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line) of all lines that are not blank."""
    return ((number, line) for number, line in numbered_lines(path) if line.strip())


def json_file(path: str, form: Any = Any) -> Any:
    """Return the value of a JSON file. Raises InputError if it has the wrong type."""
    return require_form(decode_json(read_text(path), path, "fix the file, or fetch it again"), form, path)


def json_lines(path: str) -> Iterator[Row]:
    """Yield the objects of a JSON Lines file."""
    wanted = "an example is one JSON object on one line"
    for number, line in lines(path):
        where = f"{path}: line {number}"
        try:
            value = decode_json(line, where, wanted)
        except InputError as error:
            yield Row({}, where, str(error).removeprefix(where).strip())
            continue
        if isinstance(value, dict):
            yield Row(require_form(value, dict[str, Any], where), where)
        else:
            yield Row({}, where, f"is not a JSON object; {wanted}")


def rows_of(value: Any) -> list[dict[str, Any]] | None:
    """Return the rows of a list of dictionaries or a pandas DataFrame; None for anything else, such as paths. NumPy
    values become Python lists and numbers, and NaN, which marks a missing value in a DataFrame, becomes None."""
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

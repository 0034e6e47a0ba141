"""Read documents and queries of a test collection: texts by their ids.

The first line of a file tells its form: `.I 7` begins SMART, the form of Cranfield; `{` begins JSON lines, as BEIR has
them; a tab separates id and text, as in MS MARCO.
"""

import re
from collections.abc import Iterator, Sequence

from data_pipelines.readers import whole
from xlnet_jax.errors import InputError
from xlnet_jax.tasks.readers import files, json_lines, lines

IDS = ("_id", "id")
SMART_ID = re.compile(r"\.I\s+(\S+)\s*")
SMART_FIELD = re.compile(r"\.([A-Z])\s*")
FORMS = "SMART (.I ID, .T, .W), JSON lines (id, title, text) or TSV (ID<tab>TEXT)"

_Text = tuple[int, str, str, str]  # line, id, title, text


def read_collection(paths: Sequence[str], what: str) -> dict[str, str]:
    """Return text by id, in the order of the files: the title, unless the text begins with it, and the text, with white
    space reduced to single spaces.

    TSV has id, text; or id, title, text; or id, url, title, text. what: "documents" or "queries", for messages. Raises
    InputError, with file and line, on what cannot be read and on an id that occurs twice.
    """
    texts: dict[str, str] = {}
    for path in files(paths, what):
        for line, name, title, text in _records(path, what):
            where = f"{what} {path}: line {line}"
            if not name or name.split() != [name]:
                raise InputError(
                    f"{where}: the id {name!r} is empty or has spaces, which divide the fields of TREC files"
                )
            if name in texts:
                raise InputError(f"{where}: the id {name} is there already; an id names one text")
            texts[whole(name, f"{where}: the id")] = whole(_joined(title, text), f"{where}: the text")
    return texts


def _records(path: str, what: str) -> Iterator[_Text]:
    _, first = next(lines(path), (0, ""))
    if SMART_ID.fullmatch(first):
        return _smart(path)
    if first.lstrip().startswith("{"):
        return _json_lines(path, what)
    if "\t" in first:
        return _tsv(path, what)
    raise InputError(f"{what} {path}: {'nothing is in it' if not first else 'its form is unknown'}; give {FORMS}")


def _smart(path: str) -> Iterator[_Text]:
    line, name, field = 0, "", ""
    parts: dict[str, list[str]] = {}
    for number, text in lines(path):
        if begins := SMART_ID.fullmatch(text):
            if line:
                yield line, name, " ".join(parts.get("T", ())), " ".join(parts.get("W", ()))
            line, name, field, parts = number, begins[1], "", {}
        elif begins := SMART_FIELD.fullmatch(text):
            field = begins[1]
        else:
            parts.setdefault(field, []).append(text)
    yield line, name, " ".join(parts.get("T", ())), " ".join(parts.get("W", ()))


def _json_lines(path: str, what: str) -> Iterator[_Text]:
    for number, record in json_lines(path, f"{what} {path}"):
        values = record.content
        name = next((values[key] for key in IDS if key in values), None)
        if name is None or not isinstance(values.get("text"), str):
            raise InputError(
                f"{record.where} has no id or no text; a text is an object with id (or _id), text and maybe title"
            )
        yield number, str(name), str(values.get("title") or ""), values["text"]


def _tsv(path: str, what: str) -> Iterator[_Text]:
    for number, line in lines(path):
        fields = line.split("\t")
        if not 2 <= len(fields) <= 4:
            raise InputError(
                f"{what} {path}: line {number} has {len(fields)} fields between tabs; wanted are id, text; or id, "
                "title, text; or id, url, title, text"
            )
        yield number, fields[0].strip(), "" if len(fields) == 2 else fields[-2], fields[-1]


def _joined(title: str, text: str) -> str:
    title, text = " ".join(title.split()), " ".join(text.split())
    return text if text.startswith(title) else f"{title} {text}".strip()

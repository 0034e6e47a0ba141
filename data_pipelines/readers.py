"""Open and read text files, compressed or not, from beginning to end, with memory independent of the file size."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import itertools
import lzma
import os
import re
import reprlib
import shutil
import tempfile
from _compression import DecompressReader
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Literal

from backports import zstd
from etils import epath

from data_pipelines import formats
from data_pipelines.faults import Faults, TextRow
from data_pipelines.remote import explaining_read_errors, file_name, is_remote, on_web, open_file
from xlnet_jax.errors import InputError
from xlnet_jax.storage.reading import decode_json, require_regular

OPENERS: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".zst": zstd.open,
    # lzma.open and bz2.open would take a damaged second stream for the end of the file.
    ".xz": lambda raw: io.BufferedReader(DecompressReader(raw, lzma.LZMADecompressor)),
    ".bz2": lambda raw: io.BufferedReader(DecompressReader(raw, bz2.BZ2Decompressor)),
}
CHUNK_BYTES = 2**20
MAX_LINE_BYTES = 2**24
JSON_LINES = (".jsonl", ".ndjson", ".json")
PARQUET = ".parquet"
WITH_RECORDS = (PARQUET, *JSON_LINES)
"""Extensions of files whose records are documents"""
PARQUET_ROWS = 16  # documents read at once, as each may hold megabytes
ROWS = 256  # examples read at once
SHOWN_NAMES = 8  # fields or columns that a message lists
MARKS = (  # the mark of UTF-32LE begins with that of UTF-16LE
    (codecs.BOM_UTF32_LE, "UTF-32"), (codecs.BOM_UTF32_BE, "UTF-32"), (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)  # fmt: skip
ONE_A_LINE = "write one object on each line, as with jq -c '.[]' x.json > x.jsonl"
NAME_FIELD = "name the text field with `text_field`"
OR_REPLACE = ", or read it with `corpus_errors` replace"

Errors = Literal["strict", "replace"]
"""What to do with bytes that are not UTF-8: raise InputError with file and line, or read U+FFFD instead"""


@dataclass(frozen=True)
class TextFile:
    """A file of text. JSON Lines and Parquet hold a document in each object or row. Any other file has one sentence or
    paragraph per line, and a blank line ends a document; files that are not prose are refused (`formats`)."""

    path: str  # its extension gives the format
    text_field: str  # of an object or row
    errors: Errors
    size: int | None = None  # bytes, and the version, of a file behind a URL (`remote.Listed`)
    version: str | None = None

    @property
    def has_records(self) -> bool:
        """True if the format is one of `WITH_RECORDS`."""
        return kind_of(self.path) in WITH_RECORDS

    def chunks(self, faults: Faults) -> Iterator[str]:
        """Yield chunks of lines. Raises InputError, with file and line or row, for what cannot be read."""
        if self.has_records:
            return chunk_documents(faults.texts(self.rows()))
        return (lines for _, lines in blocks_of_lines(self.path, self.errors, formats.require_prose))

    def rows(self, id_field: str | None = None) -> Iterator[TextRow]:
        """Yield every line, non-blank object or row. Raises InputError as `chunks`, for a record without this id, and
        for an `id_field` of a file without records."""
        if kind_of(self.path) == PARQUET:
            return self._parquet_rows(id_field)
        if self.has_records:
            return self._objects(id_field)
        if id_field is not None:
            raise InputError("id_field", id_field, ": works only with JSON Lines and Parquet")
        lines = numbered_lines(self.path, self.errors, formats.require_prose)
        return (TextRow(f"text {self.path}: line {number}", line) for number, line in lines)

    def _objects(self, id_field: str | None) -> Iterator[TextRow]:
        for number, line in numbered_lines(self.path, self.errors):
            if line.strip():
                row = self._object(f"text {self.path}: line {number}", line, id_field)
                yield row._replace(text=whole(row.text, f"{row.where}: a document", self.errors))

    def _object(self, where: str, line: str, id_field: str | None) -> TextRow:
        wanted = "each line must be one JSON object"
        try:
            values = decode_json(line, "", wanted)
        except InputError as error:
            values, fault = {}, str(error).strip()
        else:
            fault = "" if isinstance(values, dict) else f"is not a JSON object; {wanted}"
        if id_field is not None and (fault or id_field not in values):
            raise InputError(f"{where} {fault or lack_of(id_field, values)}: name the id field with `id_field`")
        if fault:
            return TextRow(where, "", None, fault, ONE_A_LINE)
        id_, text = values.get(id_field), values.get(self.text_field)
        if self.text_field not in values:
            return TextRow(where, "", id_, lack_of(self.text_field, values), NAME_FIELD)
        if not isinstance(text, str):
            shown = "null" if text is None else reprlib.repr(text)
            return TextRow(where, "", id_, f"has {shown} in its field {self.text_field!r}, not text", NAME_FIELD)
        return TextRow(where, text, id_)

    def _parquet_rows(self, id_field: str | None) -> Iterator[TextRow]:
        import pyarrow as pa

        number = 0
        with open_parquet(self.path) as file:
            names = file.schema_arrow.names
            for name, remedy in ((self.text_field, NAME_FIELD), (id_field, "name the id field with `id_field`")):
                if name is not None and name not in names:
                    raise InputError(f"text {self.path}: it {lack_of(name, names, 'column')}: {remedy}")
            columns = [self.text_field] if id_field is None else [self.text_field, id_field]
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=columns):
                # Text is read as bytes: a column of strings may hold bytes that are not UTF-8.
                texts = batch.column(self.text_field).cast(pa.large_binary()).to_pylist()
                ids = [None] * len(texts) if id_field is None else batch.column(id_field).to_pylist()
                for text, value in zip(texts, ids, strict=True):
                    number += 1
                    where = f"text {self.path}: row {number}"
                    fault = f"has null in its column {self.text_field!r}" if text is None else ""
                    yield TextRow(where, decode_document(text or b"", where, self.errors), value, fault)


def lack_of(name: str, there: Collection[str], kind: str = "field") -> str:
    """Return, for a message, that a field is missing among those that are there."""
    shown = ", ".join(map(reprlib.repr, itertools.islice(there, SHOWN_NAMES))) or "nothing"
    more = f" and {len(there) - SHOWN_NAMES} more" if len(there) > SHOWN_NAMES else ""
    return f"has no {kind} {name!r}, only {shown}{more}"


def parquet_rows(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file as {column: value}. Raises InputError if the file is damaged."""
    with open_parquet(path) as file:
        for batch in file.iter_batches(batch_size=ROWS):
            yield from batch.to_pylist()


@contextlib.contextmanager
def open_parquet(path: str) -> Iterator[Any]:
    """Open a table. A table on the web or in gs:// is copied to a temporary file for the time of the body."""
    import pyarrow.parquet as pq

    with explaining_read_errors(path), contextlib.ExitStack() as stack:
        file = stack.enter_context(_open_raw(path))
        if on_web(path) or path.startswith("gs://"):
            copy = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(file, copy)
            file = copy
        yield stack.enter_context(pq.ParquetFile(file, buffer_size=CHUNK_BYTES, pre_buffer=False))


def numbered_lines(
    path: str, errors: Errors | None = None, require: formats.Check = formats.require_readable
) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line) of a UTF-8 file, without line ends, byte-order mark and carriage returns.

    errors: None = strict, and the message does not mention the setting. require: refuses other kinds of files. Raises
    InputError, with file and line, for bytes that are not text.
    """
    for first, lines in blocks_of_lines(path, errors, require):
        yield from enumerate(lines.split("\n")[:-1], first)


def read_text(path: str) -> str:
    """Return the text of a UTF-8 file, without a byte-order mark. Raises InputError, with file and line, for bytes that
    are not text."""
    with open_text(path) as file:
        content = file.read()
    formats.require_readable(path, kind_of(path), content)
    _require_utf8(content, path)
    return _decode(content.removeprefix(codecs.BOM_UTF8), 1, path, None)


def kind_of(path: epath.PathLike) -> str:
    """Return the extension of a file name, in lower case, ignoring a compression suffix: .txt, .jsonl, …"""
    name = file_name(os.fspath(path)).lower()
    for end in OPENERS:
        name = name.removesuffix(end)
    return os.path.splitext(name)[1]


@contextlib.contextmanager
def open_text(path: str) -> Iterator[IO[bytes]]:
    """Open a file, and decompress it if its extension says so. Raises InputError if it cannot be read to the end."""
    opener = OPENERS.get(os.path.splitext(file_name(path))[1].lower(), contextlib.nullcontext)
    with explaining_read_errors(path), _open_raw(path) as raw, opener(raw) as file:
        yield file


def _open_raw(path: str) -> Any:
    if is_remote(path):
        return open_file(path)
    if "://" not in path:
        require_regular(path)  # a pipe or a device has no end
    return epath.Path(path).open("rb")


def blocks_of_lines(path: str, errors: Errors | None, require: formats.Check) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text of whole lines), about CHUNK_BYTES at a time. The rest as in
    `numbered_lines`."""
    number, rest = 1, b""
    with open_text(path) as file:
        first = file.read(CHUNK_BYTES)
        require(path, kind_of(path), first)
        _require_utf8(first, path)
        for chunk in itertools.chain([first.removeprefix(codecs.BOM_UTF8)], iter(lambda: file.read(CHUNK_BYTES), b"")):
            lines, newline, rest = (rest + chunk).rpartition(b"\n")
            if newline:
                yield number, _decode(lines + newline, number, path, errors)
                number += lines.count(b"\n") + 1
            elif len(rest) > MAX_LINE_BYTES:
                raise InputError(
                    f"text {path}: line {number} is longer than {MAX_LINE_BYTES >> 20} MB; a line should be a sentence "
                    "or a paragraph: split it, or name a text file"
                )
        if rest:
            yield number, _decode(rest + b"\n", number, path, errors)


def _decode(lines: bytes, number: int, path: str, errors: Errors | None) -> str:
    """Decode UTF-8 lines, with newlines as line ends. number: number of the first line, for messages."""
    try:
        text = lines.decode("utf-8", errors or "strict")
    except UnicodeDecodeError as error:
        number += lines.count(b"\n", 0, error.start)
        raise InputError(
            f"text {path}: line {number} is not UTF-8 (0x{lines[error.start]:02x}); convert the file, as with "
            f"iconv -f CP1252 -t UTF-8{OR_REPLACE if errors else ''}"
        ) from None
    if "\0" in text:
        number += lines.count(b"\n", 0, lines.index(0))
        text = whole(text, f"text {path}: line {number}", errors)
    return text.replace("\r\n", "\n")


def _require_utf8(beginning: bytes, path: str) -> None:
    """Raise InputError if the beginning of a file is that of UTF-16 or UTF-32: by its mark, or by its zero bytes."""
    found = next((name for mark, name in MARKS if beginning.startswith(mark)), None)
    if found is None:
        zeros = [beginning[place:1000:2].count(0) / max(len(beginning[place:1000:2]), 1) for place in (0, 1)]
        if max(zeros) > 0.25 > min(zeros):
            found = "UTF-16BE" if zeros[0] > zeros[1] else "UTF-16LE"
    if found:
        raise InputError(f"text {path}: it is {found}, not UTF-8; convert it, as with iconv -f {found} -t UTF-8")


def decode_document(document: bytes, where: str, errors: Errors) -> str:
    """Decode a UTF-8 document. Raises InputError for other bytes if `errors` is strict."""
    try:
        return whole(document.decode("utf-8", errors), f"{where}: a document", errors)
    except UnicodeDecodeError as error:
        byte = f"0x{error.object[error.start]:02x}"
        raise InputError(f"{where}: a document is not UTF-8 ({byte}); fix it{OR_REPLACE}") from None


def chunk_documents(documents: Iterable[str]) -> Iterator[str]:
    """Turn documents into chunks of lines: drop the blank lines inside each document, and add one after it."""
    parts: list[str] = []
    size = 0
    for document in documents:
        if text := re.sub(r"\n\s*\n", "\n", document.replace("\r\n", "\n").strip()):
            parts.append(text)
            size += len(text)
        if size >= CHUNK_BYTES:
            yield "\n\n".join(parts) + "\n\n"
            parts, size = [], 0
    if parts:
        yield "\n\n".join(parts) + "\n\n"


def whole(text: str, where: str, errors: Errors | None = None) -> str:
    r"""Return the text. If it has a zero character or half a character, raise InputError, or read U+FFFD instead if
    `errors` is "replace".

    Half a character is a lone surrogate, which JSON can escape (\ud83d) but UTF-8 cannot encode. where: location for
    the message. errors: as in `numbered_lines`.
    """
    what = "a zero byte" if "\0" in text else ""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        what = f"half a character, \\u{ord(text[error.start]):04x}"
    if what and errors != "replace":
        raise InputError(f"{where} contains {what}; fix it{OR_REPLACE if errors else ''}")
    return re.sub("[\0\ud800-\udfff]", "\ufffd", text) if what else text

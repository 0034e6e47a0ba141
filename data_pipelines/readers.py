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

from data_pipelines.remote import file_name, in_one_line, is_remote, on_web, open_file
from xlnet_jax.errors import InputError
from xlnet_jax.storage.reading import decode_json, demand_regular

OPENERS: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".zst": zstd.open,
    # lzma.open and bz2.open would take a damaged second stream for the end of the file.
    ".xz": lambda raw: io.BufferedReader(DecompressReader(raw, lzma.LZMADecompressor)),
    ".bz2": lambda raw: io.BufferedReader(DecompressReader(raw, bz2.BZ2Decompressor)),
}
CHUNK_BYTES = 2**20
MAX_LINE_BYTES = 2**24
PARQUET_ROWS = 16  # documents read at once, as each may hold megabytes
ROWS = 256  # examples read at once
SHOWN_NAMES = 8  # fields or columns that a message lists
OR_REPLACE = ", or read it with `corpus_errors` replace"

Errors = Literal["strict", "replace"]
"""What to do with bytes that are not UTF-8: raise InputError with file and line, or read U+FFFD instead"""


@dataclass(frozen=True)
class TextFile:
    """A text file with one sentence or paragraph per line. A blank line ends a document."""

    path: str
    errors: Errors

    def chunks(self) -> Iterator[str]:
        """Yield chunks of lines. Raises InputError, with file and line, for bytes that are not text."""
        return (lines for _, lines in _blocks_of_lines(self.path, self.errors))


@dataclass(frozen=True)
class JsonLinesFile:
    """A file with one JSON object per line. One field of the object is the text of a document."""

    path: str
    text_field: str
    errors: Errors

    def chunks(self) -> Iterator[str]:
        """Yield chunks of lines. Raises InputError, with file and line, for a line that is not such an object."""
        return chunk_documents(text for _, text, _ in self.rows())

    def rows(self, id_field: str | None = None) -> Iterator[tuple[str, str, Any]]:
        """Yield (file and line for messages, text, value of `id_field`) for every non-blank line."""
        for number, line in numbered_lines(self.path, self.errors):
            if not line.strip():
                continue
            where = f"text {self.path}: line {number}"
            values = decode_json(line, where, wanted := "each line must be one JSON object")
            if not isinstance(values, dict):
                raise InputError(f"{where} is not a JSON object; {wanted}")
            _demand_fields(values, self.text_field, id_field, f"{where} has no field")
            text = values[self.text_field]
            if not isinstance(text, str | None):
                raise InputError(f"{where}: its field {self.text_field!r} must be text, not {reprlib.repr(text)}")
            yield where, whole(text or "", f"{where}: a document", self.errors), values.get(id_field)


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet table. One column is the text of a document."""

    path: str
    text_field: str
    errors: Errors

    def chunks(self) -> Iterator[str]:
        """Yield chunks of lines. Raises InputError if the column is missing or the file is damaged."""
        return chunk_documents(text for _, text, _ in self.rows())

    def rows(self, id_field: str | None = None) -> Iterator[tuple[str, str, Any]]:
        """Yield (file and row for messages, text, value of `id_field`) for every row."""
        import pyarrow as pa

        number = 0
        with _open_parquet(self.path) as file:
            _demand_fields(file.schema_arrow.names, self.text_field, id_field, f"text {self.path}: it has no column")
            columns = [self.text_field] if id_field is None else [self.text_field, id_field]
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=columns):
                # Text is read as bytes: a column of strings may hold bytes that are not UTF-8.
                texts = batch.column(self.text_field).cast(pa.large_binary()).to_pylist()
                ids = [None] * len(texts) if id_field is None else batch.column(id_field).to_pylist()
                for text, value in zip(texts, ids, strict=True):
                    number += 1
                    where = f"text {self.path}: row {number}"
                    yield where, decode_document(text, where, self.errors), value


def _demand_fields(there: Collection[str], text_field: str, id_field: str | None, lack: str) -> None:
    """Raise InputError if a field that is read is missing."""
    for name, setting in ((text_field, "the text field with `text_field`"), (id_field, "the id field with `id_field`")):
        if name is not None and name not in there:
            shown = ", ".join(map(reprlib.repr, itertools.islice(there, SHOWN_NAMES))) or "nothing"
            more = f" and {len(there) - SHOWN_NAMES} more" if len(there) > SHOWN_NAMES else ""
            raise InputError(f"{lack} {name!r}, only {shown}{more}: name {setting}")


def parquet_rows(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file as {column: value}. Raises InputError if the file is damaged."""
    with _open_parquet(path) as file:
        for batch in file.iter_batches(batch_size=ROWS):
            yield from batch.to_pylist()


@contextlib.contextmanager
def _open_parquet(path: str) -> Iterator[Any]:
    """Open a table. A table on the web or in gs:// is copied to a temporary file for the time of the body."""
    import pyarrow.parquet as pq

    with in_one_line(path), contextlib.ExitStack() as stack:
        file = stack.enter_context(_open_raw(path))
        if on_web(path) or path.startswith("gs://"):
            copy = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(file, copy)
            file = copy
        yield stack.enter_context(pq.ParquetFile(file, buffer_size=CHUNK_BYTES, pre_buffer=False))


def numbered_lines(path: str, errors: Errors | None = None) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line) of a UTF-8 file, without line ends, byte-order mark and carriage returns.

    errors: None = strict, and the message does not mention the setting. Raises InputError, with file and line, for
    bytes that are not text.
    """
    for first, lines in _blocks_of_lines(path, errors):
        yield from enumerate(lines.split("\n")[:-1], first)


def read_text(path: str) -> str:
    """Return the text of a UTF-8 file, without a byte-order mark. Raises InputError, with file and line, for bytes that
    are not text."""
    with open_text(path) as file:
        return _decode(file.read().removeprefix(codecs.BOM_UTF8), 1, path, None)


@contextlib.contextmanager
def open_text(path: str) -> Iterator[IO[bytes]]:
    """Open a file, and decompress it if its extension says so. Raises InputError if it cannot be read to the end."""
    opener = OPENERS.get(os.path.splitext(file_name(path))[1].lower(), contextlib.nullcontext)
    with in_one_line(path), _open_raw(path) as raw, opener(raw) as file:
        yield file


def _open_raw(path: str) -> Any:
    if is_remote(path):
        return open_file(path)
    if "://" not in path:
        demand_regular(path)  # a pipe or a device has no end
    return epath.Path(path).open("rb")


def _blocks_of_lines(path: str, errors: Errors | None) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text of whole lines), about CHUNK_BYTES at a time."""
    number = 1
    with open_text(path) as file:
        rest = file.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)
        while chunk := file.read(CHUNK_BYTES):
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
        raise InputError(
            f"text {path}: line {number} has a zero byte: the file is UTF-16 or binary, not UTF-8 text; convert it, "
            "or name another file"
        )
    return text.replace("\r\n", "\n")


def decode_document(document: bytes | None, where: str, errors: Errors) -> str:
    """Decode a UTF-8 document. Raises InputError for other bytes if `errors` is strict."""
    try:
        return (document or b"").decode("utf-8", errors)
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
    r"""Return the text. If it has half a character, raise InputError, or replace it if `errors` is "replace".

    Half a character is a lone surrogate, which JSON can escape (\ud83d) but UTF-8 cannot encode. where: location for
    the message. errors: as in `numbered_lines`.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if errors != "replace":
            half = f"\\u{ord(text[error.start]):04x}"
            raise InputError(
                f"{where} contains half a character, {half}; fix it{OR_REPLACE if errors else ''}"
            ) from None
        return text.encode(errors="replace").decode()
    return text

"""Open and read files of text from beginning to end, compressed or not, in memory that does not grow with the file."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import itertools
import lzma
import os
import re
import reprlib
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Literal

from etils import epath

from data_pipelines.remote import Unreachable, file_name, is_remote, open_file
from xlnet_jax.errors import InputError
from xlnet_jax.storage.reading import decode_json, demand_regular

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COMPRESSED_BYTES = 2**16
COPIED_BYTES = 2**20
DAMAGED = (gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstd.ZstdError)


class _Streams:
    """Consecutive compressed streams, with nothing but zeros between them. lzma.open and bz2.open would silently skip
    everything after a damaged header."""

    def __init__(self, raw: IO[bytes], new: Callable[[], Any]):
        self._raw, self._new = raw, new
        self._stream = new()

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes, none at the end. Raises EOFError if a stream is cut short."""
        data = b""
        while not data:
            given = b""
            if self._stream.eof:
                given = self._stream.unused_data.lstrip(b"\0")
                while not given:
                    if not (more := self._raw.read(COMPRESSED_BYTES)):
                        return b""
                    given = more.lstrip(b"\0")
                self._stream = self._new()
            elif self._stream.needs_input and not (given := self._raw.read(COMPRESSED_BYTES)):
                raise EOFError
            data = self._stream.decompress(given, size)
        return data


OPENERS: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".xz": lambda raw: contextlib.nullcontext(_Streams(raw, lzma.LZMADecompressor)),
    ".zst": zstd.open,
    ".bz2": lambda raw: contextlib.nullcontext(_Streams(raw, bz2.BZ2Decompressor)),
}


@contextlib.contextmanager
def open_text(path: str) -> Iterator[IO[bytes]]:
    """Open a file, decompressing it by the end of its name. Raises InputError if it cannot be read to the end."""
    opener = next((opener for end, opener in OPENERS.items() if file_name(path).lower().endswith(end)), None)
    try:
        with _raw(path) as raw, opener(raw) if opener else contextlib.nullcontext(raw) as file:
            yield file
    except EOFError:
        raise InputError(f"text {path}: the compressed data ends too soon; fetch it again") from None
    except DAMAGED as error:
        raise InputError(f"text {path}: the compressed data is damaged ({error}); fetch it again") from None
    except FileNotFoundError:
        raise missing_file(path) from None
    except OSError as error:
        if error.errno is None:  # bz2 raises OSError for damaged data
            raise InputError(f"text {path}: the compressed data is damaged ({error}); fetch it again") from None
        raise InputError(f"text {path} cannot be read: {error.strerror or error}") from None


def _raw(path: str) -> Any:
    if is_remote(path):
        return open_file(path, in_order=True)
    _demand_no_pipe(path)
    return epath.Path(path).open("rb")


def _demand_no_pipe(path: str) -> None:
    """Raise InputError where a pipe or a device, which has no end, stands in the place of a file on a disk."""
    if os.path.exists(path):
        demand_regular(path)


@contextlib.contextmanager
def seekable(path: str) -> Iterator[Any]:
    """Yield what is read out of order: a path on disk, or a file that fetches ranges of a URL.

    A file in gs://, or on a web server that knows no ranges, is copied to this machine while the body works.
    """
    if "://" not in path:
        _demand_no_pipe(path)
        yield path
        return
    if is_remote(path):
        with open_file(path, in_order=False) as file:
            if _gives_ranges(file):
                yield file
                return
    with tempfile.TemporaryFile() as copy:
        with _raw(path) as raw:
            shutil.copyfileobj(raw, copy, COPIED_BYTES)
        copy.seek(0)
        yield copy


def _gives_ranges(file: Any) -> bool:
    """Return whether any part of a remote file can be read by itself; some web servers send whole files only."""
    try:
        file.seek(-1, os.SEEK_END)
        file.read(1)
        file.seek(0)
    except Unreachable:
        raise
    except ValueError:  # InputError too
        return False
    return True


def missing_file(path: str) -> InputError:
    """Return the error for a file that was deleted after it was listed."""
    return InputError(
        f"text {path}: it was there when the text was listed, and is gone; bring it back, or leave it out"
    )


CHUNK_BYTES = 2**20
MAX_LINE_BYTES = 2**24
PARQUET_ROWS = 16  # documents read at once, as each may hold megabytes
ROWS = 256  # examples read at once
SHOWN_NAMES = 8  # fields or columns that a message lists

OR_REPLACE = ", or read it with `corpus_errors` replace"

Errors = Literal["strict", "replace"]


@dataclass(frozen=True)
class TextFile:
    """A text file with a sentence or a paragraph a line; a blank line ends a document."""

    path: str

    def chunks(self, errors: Errors) -> Iterator[str]:
        """Yield chunks of lines. Raises InputError, with file and offset, on bytes that are not text."""
        for lines, offset in _blocks_of_lines(self.path):
            yield _decode(lines, offset, self.path, errors).replace("\r\n", "\n")


@dataclass(frozen=True)
class JsonLinesFile:
    """A file with a JSON object a line; one field of the object is the text of a document."""

    path: str
    text_field: str

    def chunks(self, errors: Errors) -> Iterator[str]:
        """Yield chunks of lines. Raises InputError, with file and line, on a line that is no such object."""
        return chunk_documents(text for _, text, _ in self.rows(errors))

    def rows(self, errors: Errors, id_field: str | None = None) -> Iterator[tuple[str, str, Any]]:
        """Yield (file and line for messages, text, value of `id_field`) of every line that is not blank."""
        number = 0
        for lines, offset in _blocks_of_lines(self.path):
            for line in _decode(lines, offset, self.path, errors).split("\n")[:-1]:
                number += 1
                if line.isspace() or not line:
                    continue
                where = f"text {self.path}: line {number}"
                values = decode_json(line, where, wanted := "a document is one JSON object on one line")
                if not isinstance(values, dict):
                    raise InputError(f"{where} is not a JSON object; {wanted}")
                for name, setting in _settings_of(self.text_field, id_field).items():
                    if name not in values:
                        raise InputError(f"{where} has no field {name!r}, only {_some_of(values)}: name {setting}")
                text = values[self.text_field]
                if not isinstance(text, str | None):
                    raise InputError(f"{where}: its field {self.text_field!r} is not text but {reprlib.repr(text)}")
                yield where, whole(text or "", f"{where}: a document", errors, OR_REPLACE), values.get(id_field)


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet table; one column is the text of a document."""

    path: str
    text_field: str

    def chunks(self, errors: Errors) -> Iterator[str]:
        """Yield chunks of lines. Raises InputError if the column is missing or the file is damaged."""
        return chunk_documents(text for _, text, _ in self.rows(errors))

    def rows(self, errors: Errors, id_field: str | None = None) -> Iterator[tuple[str, str, Any]]:
        """Yield (file and row for messages, text, value of `id_field`) of every row."""
        import pyarrow as pa

        number = 0
        with _open_parquet(self.path) as file:
            schema = file.schema_arrow
            columns = _settings_of(self.text_field, id_field)
            for name, setting in columns.items():
                if name not in schema.names:
                    raise InputError(
                        f"text {self.path}: it has no column {name!r}, only {_some_of(schema.names)}: name {setting}"
                    )
            _refuse_twins([name for name in schema.names if name in columns], self.path)
            # Text is read as bytes: a column of strings may hold bytes that are not UTF-8.
            kind = schema.field(self.text_field).type
            as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(kind, kind)
            if as_bytes not in (pa.binary(), pa.large_binary()):
                raise InputError(f"text {self.path}: its column {self.text_field!r} is not text but {kind}")
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=list(columns)):
                texts = batch.column(self.text_field).cast(as_bytes).to_pylist()
                ids = [None] * len(texts) if id_field is None else batch.column(id_field).to_pylist()
                for text, value in zip(texts, ids, strict=True):
                    number += 1
                    where = f"text {self.path}: row {number}"
                    yield where, decode_document(text, where, errors), value


def _settings_of(text_field: str, id_field: str | None) -> dict[str, str]:
    """Return what names each field that is read, for messages."""
    found = {text_field: "the one with the text by `text_field`"}
    if id_field is not None:
        found.setdefault(id_field, "the one with the ids by `id_field`")
    return found


def parquet_rows(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file as {column: value}. Raises InputError if the file is damaged."""
    with _open_parquet(path) as file:
        _refuse_twins(file.schema_arrow.names, path)
        for batch in file.iter_batches(batch_size=ROWS):
            yield from batch.to_pylist()


@contextlib.contextmanager
def _open_parquet(path: str) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with seekable(path) as there, pq.ParquetFile(there, buffer_size=CHUNK_BYTES, pre_buffer=False) as file:
            yield file
    except FileNotFoundError:
        raise missing_file(path) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"text {path}: damaged, or not a Parquet file ({why})") from None


def _refuse_twins(columns: Sequence[str], path: str) -> None:
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise InputError(f"text {path}: {columns.count(twice)} of its columns are called {twice!r}; rename all but one")


def decode_document(document: bytes | None, where: str, errors: Errors) -> str:
    """Decode a document from UTF-8. Raises InputError on other bytes if `errors` is strict."""
    try:
        return (document or b"").decode("utf-8", errors)
    except UnicodeDecodeError as error:
        byte = f"0x{error.object[error.start]:02x}"
        raise InputError(f"{where}: a document is not UTF-8 ({byte}); mend it{OR_REPLACE}") from None


def chunk_documents(documents: Iterable[str]) -> Iterator[str]:
    """Turn documents into chunks of lines: drop the blank lines inside a document, and put one after it."""
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


def whole(text: str, where: str, errors: Errors = "strict", instead: str = "") -> str:
    r"""Return the text, or raise InputError or replace ("replace") where it has half a character.

    JSON can escape a lone surrogate (\ud83d), which UTF-8 cannot encode. where: for the message. instead: what to do
    other than to mend it.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if errors == "strict":
            half = f"\\u{ord(text[error.start]):04x}"
            raise InputError(f"{where} holds half a character, {half}; mend it{instead}") from None
        return text.encode(errors="replace").decode()
    return text


def _blocks_of_lines(path: str) -> Iterator[tuple[bytes, int]]:
    """Yield (whole lines with newlines, their offset in the decompressed file), about CHUNK_BYTES at a time."""
    with open_text(path) as file:
        head = file.read(CHUNK_BYTES)
        offset = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
        rest = head[offset:]
        line_parts: list[bytes] = []  # of a line that is longer than a chunk
        length = 0
        while rest:
            lines, newline, tail = rest.rpartition(b"\n")
            if newline:
                block = b"".join([*line_parts, lines, newline])
                yield block, offset
                offset += len(block)
                line_parts, length = [], 0
            line_parts.append(tail)
            length += len(tail)
            if length > MAX_LINE_BYTES:
                raise InputError(
                    f"text {path}: the line at byte {offset} is longer than {MAX_LINE_BYTES >> 20} MB; a line is a "
                    "sentence or a paragraph: break it up, or name a file of text"
                )
            rest = file.read(CHUNK_BYTES)
        if last := b"".join(line_parts):
            yield last + b"\n", offset


def _decode(lines: bytes, offset: int, path: str, errors: Errors) -> str:
    try:
        text = lines.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise InputError(
            f"text {path}: byte {offset + error.start} is not UTF-8 (0x{lines[error.start]:02x}); convert the file, or "
            "read it with `corpus_errors` replace"
        ) from None
    if "\0" in text:
        raise InputError(
            f"text {path}: byte {offset + lines.index(0)} is zero, so this is UTF-16 or binary, and not UTF-8 text; "
            "convert the file, or name another"
        )
    return text


def numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line without its end) of a UTF-8 file, without a byte-order mark and carriage returns.

    Raises InputError, with file and line, on bytes that are not text.
    """
    number = 0
    for lines, _ in _blocks_of_lines(path):
        for line in lines.split(b"\n")[:-1]:
            number += 1
            try:
                text = line.removesuffix(b"\r").decode()
            except UnicodeDecodeError as error:
                byte = f"0x{line[error.start]:02x}"
                raise InputError(
                    f"text {path}: line {number} is not UTF-8 ({byte}); convert it, as by iconv -f CP1252 -t UTF-8"
                ) from None
            if "\0" in text:
                raise InputError(
                    f"text {path}: line {number} has a zero byte, so this is UTF-16 or binary, and not UTF-8 text; "
                    "convert the file, or name another"
                )
            yield number, text


def read_text(path: str) -> str:
    """Return the text of a file of UTF-8, without a byte-order mark. Raises InputError, with file and byte."""
    with open_text(path) as file:
        content = b"".join(iter(lambda: file.read(CHUNK_BYTES), b""))
    try:
        return content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"text {path}: byte {error.start} is not UTF-8; convert the file") from None


def _some_of(names: Collection[str]) -> str:
    shown = ", ".join(map(reprlib.repr, itertools.islice(names, SHOWN_NAMES)))
    return f"{shown} and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else shown or "none at all"

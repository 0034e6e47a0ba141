"""Text on disk: UTF-8, one paragraph or sentence a line; a blank line, or the end of a file, ends a document."""

import codecs
import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from xlnet_jax.config import InputError

DOCUMENT_END = ""


@dataclass(frozen=True)
class Text:
    """The files of a run."""

    name: str  # short, fit for a file name
    train: list[Path]
    validation: list[Path] | None  # None = held out from train


def find(corpus: str | None, validation: str | None) -> Text:
    """What `--corpus` and `--validation` name. Without a corpus, the embedded novels."""
    name = "austen" if corpus is None else describe(corpus)
    if corpus is None:
        corpus, embedded_validation = embedded()
        validation = validation or embedded_validation
    return Text(name, expand(corpus), expand(validation) if validation else None)


def embedded() -> tuple[str, str]:
    """(train, validation): the novels that come with the package (corpora/austen/ORIGIN.txt)."""
    folder = resources.files("data_pipelines") / "corpora" / "austen"
    return str(folder / "train.txt"), str(folder / "validation.txt")


def describe(source: str) -> str:
    """A short name for a source: 'news' for 'texts/news.txt', 'texts' for 'texts/*.txt'."""
    path = Path(source).expanduser()
    while glob.has_magic(path.name) and path.parent != path:
        path = path.parent
    return path.resolve().stem or "corpus"


def expand(source: str) -> list[Path]:
    """The files that a file name, a glob (`**` descends) or a folder names, sorted.

    A folder stands for its *.txt files at any depth, or, where it has none, for all its files; hidden ones are left
    out. Raises InputError where that is no file at all.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return _readable([path])
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.is_file() and not _is_hidden(p.relative_to(path)))
        texts = [p for p in found if p.suffix == ".txt"]
        wanted = "the folder holds no files"
    else:
        texts = found = sorted(p for p in map(Path, glob.glob(str(path), recursive=True)) if p.is_file())
        wanted = "no file matches" if glob.has_magic(source) else "no such file or folder"
    if not found:
        raise InputError(f"text {source}: {wanted}; give a text file, a glob in quotes, or a folder of *.txt files")
    return _readable(texts or found)


def _readable(paths: list[Path]) -> list[Path]:
    for path in paths:
        if not os.access(path, os.R_OK):
            raise InputError(f"text {path}: you may not read it; change its permissions, or give another")
    return paths


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def read_lines(paths: Sequence[Path], errors: Literal["strict", "replace"]) -> Iterator[str]:
    """The lines of the documents, stripped and not empty, and DOCUMENT_END once after each document.

    A line is all that is held in memory. `errors`: bytes that are not UTF-8 raise an InputError with file and offset,
    or become U+FFFD. Files without any text raise an InputError.
    """
    any_text = False
    for path in paths:
        in_document = False
        for line in _decoded(path, errors):
            if line:
                any_text = in_document = True
                yield line
            elif in_document:
                in_document = False
                yield DOCUMENT_END
        if in_document:
            yield DOCUMENT_END
    if not any_text:
        raise InputError(f"text {name_of(paths)}: there is no text in it, only blank lines or nothing at all")


def _decoded(path: Path, errors: Literal["strict", "replace"]) -> Iterator[str]:
    with path.open("rb") as file:
        offset = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
        file.seek(offset)
        for line in file:
            try:
                yield line.decode("utf-8", errors).strip()
            except UnicodeDecodeError as error:
                raise InputError(
                    f"text {path}: byte {offset + error.start} is not UTF-8 (0x{line[error.start]:02x}); convert the "
                    "file, or read it with --corpus-errors replace"
                ) from None
            offset += len(line)


def name_of(paths: Sequence[Path]) -> str:
    """Files as an error message names them."""
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def fingerprint(paths: Sequence[Path]) -> str:
    """SHA-256, in hex, of the files' contents in order; their names do not count, their boundaries do."""
    whole = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()

"""Find the text that a run names, and read it by lines or text by text: files, globs, folders, datasets; on disk, in
the cloud, on the web, on the Hub.

A name stands for *units*: files or slices of a dataset. `readers` or `tfds_text` reads each unit by itself.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

import numpy as np
from etils import epath

from data_pipelines import remote
from data_pipelines.corpus import MANIFEST_FILE
from data_pipelines.readers import OPENERS, Errors, JsonLinesFile, ParquetFile, TextFile
from data_pipelines.remote import HUB, RemoteFile, file_name, find_dataset, in_one_line, is_remote, on_web
from data_pipelines.tfds_text import DATASET_INFO, DatasetSlice, open_dataset
from data_pipelines.tokenizer import EOD, SAMPLE_LINES, Normalization, Tokenizer
from data_pipelines.tokenizer.normalization import Survey
from xlnet_jax.errors import InputError
from xlnet_jax.printing import tell
from xlnet_jax.storage.files import in_bucket

TFDS = "tfds:"
COMPRESSED = tuple(OPENERS)
JSON_LINES = (".jsonl", ".ndjson", ".json")
PARQUET = ".parquet"
DOCUMENT_END = ""
LINES_AT_ONCE = 64  # tokenized
SAMPLED_FILES = 100
WANTED = "give a text file, a glob in quotes, a folder of *.txt files, a URL, tfds:NAME or hf:NAME"

TextUnit = Literal["line", "document"]
Id = str | int
Unit = TextFile | JsonLinesFile | ParquetFile | DatasetSlice


@dataclass(frozen=True)
class Source:
    """The text that one name stands for."""

    name: str  # short, fit for a file name
    given: str  # as the user wrote it
    units: tuple[Unit, ...]  # in reading order
    remote: tuple[RemoteFile, ...] = ()  # what its server says of each unit, of a text behind a URL


@dataclass(frozen=True, kw_only=True)
class TextSourceSettings:
    """Settings of every command that reads text: how named texts are read."""

    text_field: str = "text"
    """field that holds the text in JSON, Parquet, TFDS and on the Hub"""
    tfds_data_dir: str | None = None
    """folder of prepared TFDS datasets; None = TFDS's default"""
    corpus_errors: Errors = "strict"
    """bytes that are not UTF-8: stop and say where, or read U+FFFD"""

    def find(self, names: Sequence[str], split: str = "train") -> list[Source]:
        """Return the sources that files, globs, folders, URLs, tfds:NAME or hf:NAME stand for; `split`: of a dataset.

        Raises InputError where a name stands for nothing.
        """
        return find(names, self.text_field, self.tfds_data_dir, split, self.corpus_errors)


def find(
    names: Sequence[str],
    text_field: str = "text",
    tfds_data_dir: str | None = None,
    split: str = "train",
    errors: Errors = "strict",
) -> list[Source]:
    """Find the sources that these names stand for: a file, a glob (`**` descends, on disk), a folder, `tfds:NAME`.

    The end of a file's name says how it is read: .jsonl, .ndjson and .json as an object a line, .parquet as a table,
    anything else as text; .gz, .xz, .zst or .bz2 may follow. A folder stands for its .txt, JSON and Parquet files at
    any depth or, if it has none, for all its files, without hidden ones. Links are followed, and each file is read
    once. A folder that TFDS prepared stands for its dataset. Files and folders may lie on disk, in gs://, s3:// or
    hf://, and files on the web (https://).
    `hf:NAME/CONFIG:SPLIT` is a dataset of the Hugging Face Hub (`remote.find_dataset`).

    text_field: field with the text of a document in JSON, Parquet, TFDS and on the Hub. tfds_data_dir: folder of
    prepared TFDS datasets; None = TFDS's default. split: split of datasets whose name has none, unlike
    tfds:c4/en[validation] and hf:wikitext/wikitext-2-raw-v1:validation. errors: for bytes that are not UTF-8.

    Raises InputError if a name stands for nothing, and Unreachable where a network fails.
    """
    found = []
    for name in names:
        if not name:
            raise InputError(f"a text has an empty name; {WANTED}")
        listed: list[RemoteFile] = []
        paths: list[str] = []
        dataset = name.removeprefix(TFDS) if name.startswith(TFDS) else None
        with in_one_line(name):
            if is_remote(name):
                listed = _remote_files(name)
            elif name.startswith(HUB):
                listed = find_dataset(name, split)
            elif dataset is None:
                dataset, paths = _local_files(name)
        units: Sequence[Unit]
        if dataset is not None:
            units = open_dataset(dataset, tfds_data_dir, split, text_field, errors)
        else:
            units = [_reader(path, text_field, errors) for path in (*paths, *(file.url for file in listed))]
        found.append(Source(describe(name), name, tuple(units), tuple(listed)))
    return found


def embedded() -> tuple[str, str]:
    """Return the files (train, validation) of the novels that come with the package (corpora/austen/ORIGIN.txt)."""
    folder = resources.files("data_pipelines") / "corpora" / "austen"
    return str(folder / "train.txt"), str(folder / "validation.txt")


def describe(name: str) -> str:
    """Return a short name for a source: news for texts/news.txt.gz, texts for texts/*.txt, c4-en for tfds:c4/en."""
    if name.startswith(TFDS):
        name = name.removeprefix(TFDS)
        if not os.path.isabs(name):
            return "-".join(name.partition("[")[0].replace(":", "/").split("/"))
    if name.startswith(HUB) and not is_remote(name):
        return re.sub(r"@[^/]*", "", name.removeprefix(HUB).partition(":")[0]).strip("/").replace("/", "-")
    if on_web(name):
        stem = file_name(name)
    else:
        path = PurePosixPath(name.partition("://")[2]) if is_remote(name) else epath.Path(name).expanduser().resolve()
        stem = next((part for part in (path, *path.parents) if not glob.has_magic(part.name)), path).name
    while (end := os.path.splitext(stem)[1]) in (*COMPRESSED, *JSON_LINES, PARQUET, ".txt") and end != stem:
        stem = stem.removesuffix(end)
    return stem or "corpus"


def demand_distinct(train: Sequence[Source], validation: Sequence[Source] = ()) -> None:
    """Raise InputError where two sources share a file, whatever links lead to it, or a slice of a dataset."""
    seen: dict[str, Source] = {}
    for source in (*train, *validation):
        for unit in source.units:
            other = seen.setdefault(_place(unit.path), source)
            if other is not source:
                raise InputError(
                    f"text {source.given}: {unit.path} is in text {other.given} too; leave it out of one of the two"
                )


def read_lines(sources: Sequence[Source]) -> Iterator[str]:
    """Yield the lines of the documents, stripped and not empty, and DOCUMENT_END once after each document.

    Raises InputError if the sources hold no text at all, and as `Errors` says.
    """
    any_text = False
    for source in sources:
        for unit in source.units:
            in_document = False
            for chunk in unit.chunks():
                for line in map(str.strip, chunk.split("\n")[:-1]):
                    if line:
                        any_text = in_document = True
                        yield line
                    elif in_document:
                        in_document = False
                        yield DOCUMENT_END
            if in_document:
                yield DOCUMENT_END
    if not any_text:
        raise no_text(sources)


def survey(sources: Sequence[Source]) -> Survey:
    """Return what decides the normalisation of a text: counts of `sample_lines`. Raises InputError on bytes that are
    not text."""
    return Survey.of(sample_lines(sources))


def sample_lines(sources: Sequence[Source]) -> Iterator[str]:
    """Return SAMPLE_LINES lines, from the beginnings of up to SAMPLED_FILES files or slices all over the sources."""
    units = [unit for source in sources for unit in source.units]
    chosen = units[:: -(-len(units) // SAMPLED_FILES) or 1]

    def sample(unit: Unit) -> Iterator[str]:
        lines = (line.strip() for chunk in unit.chunks() for line in chunk.split("\n"))
        return itertools.islice(filter(None, lines), -(-SAMPLE_LINES // len(chosen)))

    return itertools.chain.from_iterable(map(sample, chosen))


def choose_normalization(sources: Sequence[Source]) -> Normalization:
    """Return the normalisation that suits a text, and print it with its reason. Raises InputError as `survey`."""
    found = survey(sources)
    print(f"chosen      normalization {found.normalization}, {found.reason}")
    return found.normalization


def no_text(sources: Sequence[Source]) -> InputError:
    """Return the error for sources without text."""
    return InputError(f"text {name_of(sources)}: there is no text in it, only blank lines or nothing at all")


def name_of(sources: Sequence[Source]) -> str:
    """Return the words for these sources in a message."""
    return sources[0].given if len(sources) == 1 else f"{sources[0].given} and {len(sources) - 1} more"


# ---- texts one by one, for commands that write one result a text ----------------------------------------------------


class TextRecord(NamedTuple):
    """One text, with its place and its id."""

    text: str
    where: str  # file and line or row, for messages
    id: Id | None = None


def read_texts(sources: Sequence[Source], unit: TextUnit, id_field: str | None = None) -> Iterator[TextRecord]:
    """Yield the texts of these sources in order; one at a time is in memory.

    unit: in text files, line = every line that is not blank is a text, document = the lines up to a blank one, joined
    by spaces, are a text. An object of JSON Lines or a row of Parquet is always one text. id_field: the field with its
    id, a string or a whole number.

    Raises InputError, with file and line or row, if a text is empty or a field is missing.
    """
    for source in sources:
        for part in source.units:
            for record in _texts(part, unit, id_field):
                if not record.text:
                    raise InputError(f"{record.where} is empty: leave it out")
                yield record


def _texts(part: Unit, unit: TextUnit, id_field: str | None) -> Iterator[TextRecord]:
    if isinstance(part, JsonLinesFile | ParquetFile):
        for where, text, value in part.rows(id_field):
            if isinstance(value, bool) or not isinstance(value, Id | None):
                raise InputError(f"{where}: its id {value!r} is neither a string nor a whole number")
            yield TextRecord(text.strip(), where, value)
        return
    if id_field is not None:
        raise InputError(f"`id_field` {id_field}: only JSON Lines and Parquet have fields, and the text is neither")
    one_a_line = unit == "line" and isinstance(part, TextFile)
    lines = (line.strip() for chunk in part.chunks() for line in chunk.split("\n")[:-1])
    document: list[str] = []
    for number, line in enumerate(itertools.chain(lines, [""]), start=1):
        if line:
            document.append(line)
        if document and (one_a_line or not line):
            first = number if line else number - len(document)
            yield TextRecord(" ".join(document), f"text {part.path}: line {first}")
            document = []


def first_pieces(lines: Iterator[str], tokenizer: Tokenizer, count: int) -> np.ndarray:
    """Return the first token ids of a text, at most `count`, with <eod> after each document: int32 [E].

    lines: as `sources.read_lines` yields them.
    """
    found = [np.zeros(0, np.int32)]
    while sum(map(len, found)) < count and (chunk := list(itertools.islice(lines, LINES_AT_ONCE))):
        encoded = zip(chunk, tokenizer.encode_lines(chunk), strict=True)
        found += [np.array([EOD], np.int32) if line == DOCUMENT_END else ids for line, ids in encoded]
    return np.concatenate(found)[:count]


# ---- what a name stands for -----------------------------------------------------------------------------------------


def _reader(path: str, text_field: str, errors: Errors) -> Unit:
    kind = kind_of(path)
    if kind == PARQUET:
        return ParquetFile(path, text_field, errors)
    return JsonLinesFile(path, text_field, errors) if kind in JSON_LINES else TextFile(path, errors)


def kind_of(path: epath.PathLike) -> str:
    """Return the extension of a file name, in lower case and without that of a compression: .txt, .jsonl, …"""
    name = file_name(os.fspath(path)).lower()
    for end in COMPRESSED:
        name = name.removesuffix(end)
    return os.path.splitext(name)[1]


def _local_files(name: str) -> tuple[str | None, list[str]]:
    """Return the folder of the one TFDS dataset inside a folder, at any depth, or None and the files that a file name,
    a glob or a folder stands for, sorted. In a folder, links are followed, and hidden files are left out."""
    path = epath.Path(name).expanduser()
    if path.is_dir():
        folders = list(_walk(path))
        datasets = sorted(folder for folder, files in folders if DATASET_INFO in files)
        if len(datasets) > 1:
            raise InputError(f"text {name}: it holds several TFDS datasets, such as {datasets[0]}; name one")
        if datasets:
            return str(datasets[0]), []
        there = [folder / file for folder, files in folders for file in files]
        texts = list(filter(_is_text, there))
        if texts and len(texts) < len(there):
            tell(
                f"text {name}: {len(there) - len(texts):,} of its {len(there):,} files are left out, as their names "
                "are not those of texts; a glob in quotes names others"
            )
        found = _once(texts or there)
    else:
        found = [path] if path.exists() else match_glob(path)
    if not found:
        raise InputError(f"text {name}: no such file or folder, or nothing in it; {WANTED}")
    return None, list(map(str, found))


def _walk(top: epath.Path) -> Iterator[tuple[epath.Path, list[str]]]:
    """Yield the folders at any depth, each once whatever links lead to it, and the names of their files: without hidden
    ones and without corpora that `prepare` made. Raises OSError for a folder that cannot be read."""

    def refuse(error: OSError) -> None:
        raise error

    seen = set[str]()
    walk = top.walk() if in_bucket(top) else os.walk(top, onerror=refuse, followlinks=True)
    for root, folders, files in walk:
        is_corpus = {MANIFEST_FILE, DATASET_INFO} <= set(files) and str(root) != str(top)
        if is_corpus or _place(root) in seen:
            folders.clear()
            continue
        seen.add(_place(root))
        folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
        yield epath.Path(root), [file for file in files if not file.startswith(".")]


def _place(path: epath.PathLike) -> str:
    """Return the one path of a file or folder on a disk, whatever links lead to it; a URL as it is."""
    return str(path) if "://" in str(path) else os.path.realpath(path)


def _once(files: Sequence[epath.Path]) -> list[epath.Path]:
    """Return each file by its shortest path, sorted."""
    longest_first = sorted(files, key=lambda file: (len(str(file)), str(file)), reverse=True)
    return sorted({_place(file): file for file in longest_first}.values())


def match_glob(pattern: epath.Path) -> list[epath.Path]:
    """Return the files that a glob stands for, each by one path, sorted; `**` descends, on disk."""
    if not in_bucket(pattern):
        found = (file for file in glob.glob(str(pattern), recursive=True) if not os.path.isdir(file))
        return _once(list(map(epath.Path, found)))
    if "**" in pattern.parts:
        raise InputError(f"text {pattern}: ** descends on disk only; name the folder, which stands for all its files")
    base = pattern
    while glob.has_magic(str(base)):
        base = base.parent
    return sorted(p for p in base.glob(str(pattern.relative_to(base))) if not p.is_dir())


def _remote_files(name: str) -> list[RemoteFile]:
    """Return the files behind a URL, sorted, as `_local_files` does of a folder on disk."""
    found = [file for file in remote.find(name) if not file_name(file.url).startswith(".")]
    if {MANIFEST_FILE, DATASET_INFO} & {file_name(file.url) for file in found}:
        raise InputError(
            f"text {name}: a prepared corpus or a TFDS dataset, which are read on a disk or in gs://; copy it there"
        )
    if not found:
        raise InputError(f"text {name}: no files are there; {WANTED}")
    texts = [file for file in found if _is_text(file.url)]
    return found if glob.has_magic(name) else texts or found


def _is_text(file: epath.PathLike) -> bool:
    return kind_of(file) in (".txt", PARQUET, *JSON_LINES)

"""Find text by name, and read it line by line or text by text: files, globs, folders and datasets, on disk, in the
cloud, on the web and on the Hub.

A name refers to *units*: files or slices of a dataset. `readers` or `tfds_text` reads each unit separately.
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
from typing import Literal

import numpy as np
from etils import epath

from data_pipelines import remote
from data_pipelines.corpus import MANIFEST_FILE
from data_pipelines.faults import Faults, TextRow
from data_pipelines.readers import OPENERS, WITH_RECORDS, TextFile, kind_of
from data_pipelines.record_files import RECORD_ENDS, MemoryRecords, RecordFile
from data_pipelines.records import RecordFormat
from data_pipelines.remote import HUB, Listed, explaining_read_errors, file_name, find_dataset, is_remote, on_web
from data_pipelines.tfds_text import DATASET_INFO, DatasetSlice, open_dataset
from data_pipelines.tokenizer import EOD, SAMPLE_LINES, Normalization, Tokenizer
from data_pipelines.tokenizer.normalization import Survey
from xlnet_jax.errors import InputError
from xlnet_jax.printing import tell
from xlnet_jax.settings.common import TextSourceSettings
from xlnet_jax.storage.files import in_bucket

TFDS = "tfds:"
COMPRESSED = tuple(OPENERS)
TEXT_ENDS = (".txt", *WITH_RECORDS)
DOCUMENT_END = ""
LINES_AT_ONCE = 64  # tokenized
SAMPLED_FILES = 100
WANTED = "give a text file, a glob in quotes, a folder of *.txt files, a URL, tfds:NAME or hf:NAME"

TextUnit = Literal["line", "document"]
Id = str | int
Unit = TextFile | DatasetSlice | MemoryRecords


@dataclass(frozen=True)
class Source:
    """The text behind one name."""

    name: str  # short, usable as a file name
    argument: str  # as the user wrote it
    units: tuple[Unit, ...]  # in reading order


def find(
    names: Sequence[str],
    settings: TextSourceSettings = TextSourceSettings(),
    split: str = "train",
    records: RecordFormat | None = None,
) -> list[Source]:
    """Find the sources with these names: files, globs (`**` matches any depth, on disk only), folders, `tfds:NAME`.

    A file's extension gives its format: .jsonl, .ndjson and .json are one object per line, .parquet is a table, and
    everything else is text. .gz, .xz, .zst or .bz2 may follow. A folder means its .txt, JSON and Parquet files at any
    depth or, if there are none, all its files except hidden ones. Links are followed, and each file is read once. A
    folder prepared by TFDS means its dataset. Files and folders can be on disk, in gs://, s3:// or hf://, and files
    also on the web (https://). `hf:NAME/CONFIG:SPLIT` is a dataset on the Hugging Face Hub (`remote.find_dataset`).

    split: split of datasets named without one (with one: tfds:c4/en[validation],
    hf:wikitext/wikitext-2-raw-v1:validation). records: read files as records (`record_files`), and in a folder also
    those of RECORD_ENDS; None = read prose.

    Raises InputError if nothing is found for a name, and Unreachable if the network fails.
    """
    found, ends = [], TEXT_ENDS if records is None else RECORD_ENDS
    for name in names:
        if not name:
            raise InputError(f"the name of a text is empty; {WANTED}")
        dataset = name.removeprefix(TFDS) if name.startswith(TFDS) else None
        files: list[Listed] = []
        with explaining_read_errors(name):
            if is_remote(name):
                files = _remote_files(name, ends)
            elif name.startswith(HUB):
                files = find_dataset(name, split)
            elif dataset is None:
                dataset, paths = _local_files(name, ends)
                files = [(path, None, None) for path in paths]
        form = settings.text_field, settings.corpus_errors
        units: Sequence[Unit] = [TextFile(path, *form, size, version) for path, size, version in files]
        if records is not None:
            units = [RecordFile(path, *form, size, version, records=records) for path, size, version in files]
        if dataset is not None and records is not None:
            raise InputError("fields", records.fields, f": works with files, not with {name}; write it as Parquet")
        if dataset is not None:
            units = open_dataset(dataset, split, *form)
        found.append(Source(describe(name), name, tuple(units)))
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
    while (end := os.path.splitext(stem)[1]) in (*COMPRESSED, *RECORD_ENDS) and end != stem:
        stem = stem.removesuffix(end)
    return stem or "corpus"


def require_distinct(train: Sequence[Source], validation: Sequence[Source] = ()) -> None:
    """Raise InputError if two sources share a file, even through links, or a slice of a dataset."""
    seen: dict[str, Source] = {}
    for source in (*train, *validation):
        for unit in source.units:
            other = seen.setdefault(_place(unit.path), source)
            if other is not source:
                raise InputError(
                    f"text {source.argument}: {unit.path} is also in text {other.argument}; remove it from one of them"
                )


def chunks_of(units: Sequence[Unit]) -> Iterator[str]:
    """Yield chunks of lines to train on, with a blank line at the end of each unit. Records without text are skipped as
    `Faults.skip` says."""
    faults = Faults()
    for unit in units:
        yield from unit.chunks(faults)
        yield "\n"
    faults.skip()


def read_lines(sources: Sequence[Source]) -> Iterator[str]:
    """Yield the non-empty lines of the documents, stripped, and DOCUMENT_END after each document.

    Raises InputError if the sources have no text, for records without text as `Faults.skip` says, and for invalid bytes
    as `Errors` says.
    """
    any_text = in_document = False
    for source in sources:
        for chunk in chunks_of(source.units):
            for line in map(str.strip, chunk.split("\n")[:-1]):
                if line:
                    any_text = in_document = True
                    yield line
                elif in_document:
                    in_document = False
                    yield DOCUMENT_END
    if not any_text:
        raise no_text(sources)


def survey(sources: Sequence[Source]) -> Survey:
    """Return the counts of `sample_lines`, which decide the normalization of a text. Raises InputError for bytes that
    are not text."""
    return Survey.of(sample_lines(sources))


def sample_lines(sources: Sequence[Source]) -> Iterator[str]:
    """Return SAMPLE_LINES lines, from the beginnings of up to SAMPLED_FILES files or slices across the sources."""
    units = [unit for source in sources for unit in source.units]
    chosen = units[:: -(-len(units) // SAMPLED_FILES) or 1]

    def sample(unit: Unit) -> Iterator[str]:
        lines = (line.strip() for chunk in unit.chunks(Faults()) for line in chunk.split("\n"))
        return itertools.islice(filter(None, lines), -(-SAMPLE_LINES // len(chosen)))

    return itertools.chain.from_iterable(map(sample, chosen))


def choose_normalization(sources: Sequence[Source]) -> Normalization:
    """Choose the normalization for a text, and print it with the reason. Raises InputError as `survey` does."""
    found = survey(sources)
    print(f"chosen      normalization {found.normalization}, {found.reason}")
    return found.normalization


def no_text(sources: Sequence[Source]) -> InputError:
    """Return the error for sources without text."""
    return InputError(f"text {name_of(sources)}: no text in it: it is empty or has only blank lines")


def name_of(sources: Sequence[Source]) -> str:
    """Return the name of these sources for a message."""
    return sources[0].argument if len(sources) == 1 else f"{sources[0].argument} and {len(sources) - 1} more"


# ---- texts one by one, for commands with one result per text --------------------------------------------------------


def read_texts(sources: Sequence[Source], unit: TextUnit, id_field: str | None = None) -> Iterator[TextRow]:
    """Yield the texts of these sources in order, with one at a time in memory. A blank text and a faulty record keep
    their place, without text (`Faults.keep`).

    unit: what counts as one text in a text file: line = each line, document = the lines up to a blank line, joined by
    spaces. A JSON Lines object, a Parquet row or a TFDS example is always one text. id_field: field with the text's id,
    a string or an integer.

    Raises InputError, with file and line or row, if an id is missing.
    """
    for part in (part for source in sources for part in source.units):
        is_document = unit == "document" and isinstance(part, TextFile) and not part.has_records
        for row in _documents(part.rows(id_field)) if is_document else part.rows(id_field):
            if isinstance(row.id, bool) or not isinstance(row.id, Id | None):
                raise InputError(f"{row.where}: its id {row.id!r} is neither a string nor a whole number")
            yield row._replace(text=row.text.strip())


def _documents(lines: Iterator[TextRow]) -> Iterator[TextRow]:
    """Join the lines up to a blank one."""
    for is_blank, group in itertools.groupby(lines, lambda row: row.is_blank):
        if not is_blank:
            rows = list(group)
            yield rows[0]._replace(text=" ".join(row.text.strip() for row in rows))


def first_pieces(lines: Iterator[str], tokenizer: Tokenizer, count: int) -> np.ndarray:
    """Return the first token ids of a text, at most `count`, with <eod> after each document: int32 [E].

    lines: from `sources.read_lines`.
    """
    found = [np.zeros(0, np.int32)]
    while sum(map(len, found)) < count and (chunk := list(itertools.islice(lines, LINES_AT_ONCE))):
        encoded = zip(chunk, tokenizer.encode_lines(chunk), strict=True)
        found += [np.array([EOD], np.int32) if line == DOCUMENT_END else ids for line, ids in encoded]
    return np.concatenate(found)[:count]


# ---- what a name refers to ------------------------------------------------------------------------------------------


def _local_files(name: str, ends: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return (folder of the TFDS dataset, []) if the name is a folder with one TFDS dataset at any depth, else (None,
    sorted files) for a file name, a glob or a folder. In a folder, links are followed, hidden files are skipped, and if
    any file has one of these ends, also all others."""
    path = epath.Path(name).expanduser()
    if path.is_dir():
        folders = list(_walk(path))
        datasets = sorted(folder for folder, files in folders if DATASET_INFO in files)
        if len(datasets) > 1:
            raise InputError(f"text {name}: it contains several TFDS datasets, such as {datasets[0]}; name one of them")
        if datasets:
            return str(datasets[0]), []
        there = [folder / file for folder, files in folders for file in files]
        texts = [file for file in there if kind_of(file) in ends]
        if texts and len(texts) < len(there):
            tell(
                f"text {name}: skipped {len(there) - len(texts):,} of {len(there):,} files, whose extensions are not "
                "those of text; to read them, name them with a glob in quotes"
            )
        found = _once(texts or there)
    else:
        found = [path] if path.exists() else match_glob(path)
    if not found:
        raise InputError(f"text {name}: no such file or folder, or it is empty; {WANTED}")
    return None, list(map(str, found))


def _walk(top: epath.Path) -> Iterator[tuple[epath.Path, list[str]]]:
    """Yield the folders at any depth and the names of their files. Each folder comes once, even if several links lead
    to it. Hidden files and prepared corpora are skipped. Raises OSError for a folder that cannot be read."""

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
    """Return the path of a local file or folder with all links resolved; a URL unchanged."""
    return str(path) if "://" in str(path) else os.path.realpath(path)


def _once(files: Sequence[epath.Path]) -> list[epath.Path]:
    """Return each file by its shortest path, sorted."""
    longest_first = sorted(files, key=lambda file: (len(str(file)), str(file)), reverse=True)
    return sorted({_place(file): file for file in longest_first}.values())


def match_glob(pattern: epath.Path) -> list[epath.Path]:
    """Return the files that match a glob, sorted, each once. `**` matches any depth, on disk only."""
    if not in_bucket(pattern):
        found = (file for file in glob.glob(str(pattern), recursive=True) if not os.path.isdir(file))
        return _once(list(map(epath.Path, found)))
    if "**" in pattern.parts:
        raise InputError(f"text {pattern}: ** works only on disk; name the folder instead, to read all files in it")
    base = pattern
    while glob.has_magic(str(base)):
        base = base.parent
    return sorted(p for p in base.glob(str(pattern.relative_to(base))) if not p.is_dir())


def _remote_files(name: str, ends: Sequence[str]) -> list[Listed]:
    """Return the files behind a URL, sorted, like `_local_files` for a folder on disk."""
    found = [file for file in remote.find(name) if not file_name(file[0]).startswith(".")]
    if {MANIFEST_FILE, DATASET_INFO} & {file_name(url) for url, *_ in found}:
        raise InputError(f"text {name}: a prepared corpus or TFDS dataset must be on disk or in gs://; copy it there")
    if not found:
        raise InputError(f"text {name}: no files found; {WANTED}")
    texts = [file for file in found if kind_of(file[0]) in ends]
    return found if glob.has_magic(name) else texts or found

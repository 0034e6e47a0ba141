"""Clean crawled text before it is encoded: `prepare --clean`.

1. Every part is read once: markup is removed, and each document gets a MinHash signature and each line a hash.
2. A line whose letters are in REPEATS documents that are not near duplicates is boilerplate. Such lines are removed,
   and then the documents that break a rule of `quality`. What is left gets a new signature.
3. Of documents with similar signatures, the first stays; those of the validation text come first.

A part depends only on the text, so any number of processes gives the same result. Memory holds the signatures, 4 bytes
for each of the PERMUTATIONS of a document, and the hashes of the lines, LINES_AT_ONCE at a time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import itertools
import json
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from etils import epath

from data_pipelines.faults import Faults
from data_pipelines.prepare.duplicates import MIX, PERMUTATIONS, find_first, signature_of
from data_pipelines.prepare.encoding import (
    TextPart,
    groups_of,
    join_fingerprints,
    lines_of,
    save,
    unfinished_parts,
)
from data_pipelines.prepare.quality import OF_LINES, SOURCES, find_fault, is_notice, normalize_line, plain_lines
from data_pipelines.prepare.runners import Runner, itself
from data_pipelines.readers import TextFile
from data_pipelines.sources import Source
from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import complete_file
from xlnet_jax.storage.reading import read_arrays, read_json

VERSION = 1
"""Version of the rules and of the files between the passes"""
REPEATS, LONG = 3, 150  # documents that share a line; characters of a paragraph
EXAMPLES, SHOWN = 10, 300  # of each rule, and characters of an example
LANGUAGE_CHARS = 1000
LINES_AT_ONCE = 2**26  # hashes of 8 bytes
FIELDS: dict[str, tuple[type[np.generic], int]] = {
    "text": (np.uint8, 1),  # the lines, in UTF-8, with a newline between them
    "documents": (np.int64, 1),  # index of the document of each line
    "signatures": (np.uint32, 2),  # of each document
    "hashes": (np.uint64, 1),  # of the letters of each line
    "dropped": (np.bool_, 1),  # True for documents that a rule has dropped
    "ends": (np.bool_, 0),  # the last document ends with this part
}
"""Arrays of a part between the passes: dtype and rank"""

Texts = Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class CleanedText(TextFile):
    """What cleaning leaves of a group of units."""

    parts: tuple[tuple[str, bytes], ...]
    """file, and a byte for each document, 1 if it is kept"""

    def chunks(self, faults: Faults) -> Iterator[str]:
        """Yield chunks of lines, with a blank line after each document."""
        for file, kept in self.parts:
            documents, ends = _read_documents(file), bool(_load(file, "ends")[0])
            last = len(kept) - 1
            yield "".join(
                "\n".join(lines) * is_kept + ("\n\n" if ends or number < last else "\n")
                for number, (lines, is_kept) in enumerate(zip(documents, kept, strict=True))
            )


def require_cleaning(languages: Sequence[str]) -> None:
    """Raise InputError if the libraries are missing, or do not know a language."""
    try:
        import datasketch  # noqa: F401
        import py3langid
    except ImportError:
        raise InputError(
            "clean", "", "needs datasketch and py3langid: pip install -e '.[clean]' in the clone"
        ) from None
    known = dict(py3langid.rank(""))
    if unknown := [language for language in languages if language not in known]:
        raise InputError(
            "clean", unknown[0], f"is none of the {len(known)} languages of py3langid, such as en, de or zh"
        )


def clean_text(
    text: Sequence[Source], languages: Sequence[str], work: epath.Path, runner: Runner
) -> tuple[list[Source], list[str], dict[str, Any]]:
    """Return the cleaned sources, whose files are in `work`, the fingerprint of each as it was, and a report.

    languages: codes of those to keep; empty = all. Raises InputError for a source of which nothing is left.
    """
    read, lists = work / f"read-{VERSION}", work / "clean-lists"
    for folder in (read, lists):
        folder.mkdir(parents=True, exist_ok=True)
    seeds = [
        [(lists / f"{number}-{place}.json", group) for place, group in enumerate(groups_of(source))]
        for number, source in enumerate(text)
    ]
    runner(
        [seed for of_source in seeds for seed in of_source], partial(_read_part, read), partial(unfinished_parts, read)
    )
    listed = [[read_json(file, list[str]) if file.exists() else [] for file, _ in of_source] for of_source in seeds]
    names = [name for of_source in listed for of_group in of_source for name in of_group]
    repeated = _find_repeated([str(read / f"{name}.npz") for name in dict.fromkeys(names)])
    key = hashlib.sha256(repr((VERSION, sorted(languages))).encode() + repeated.tobytes()).hexdigest()[:16]
    cleaned = work / f"clean-{key}"
    cleaned.mkdir(exist_ok=True)
    save({"hashes": repeated}, table := work / f"repeated-{key}.npz")
    waiting = [name for name in dict.fromkeys(names) if not (cleaned / f"{name}.json").exists()]
    runner(waiting, partial(_clean_part, read, cleaned, table, tuple(languages)), itself)
    files = [str(cleaned / f"{name}.npz") for name in names]
    kept, report = _drop_duplicates(files)
    masks, units = zip(files, (mask.tobytes() for mask in kept), strict=True), []
    for source, of_source in zip(text, listed, strict=True):
        groups = [tuple(itertools.islice(masks, len(group))) for group in of_source]
        if not any(any(mask) for group in groups for _, mask in group):
            rules = {name: rule["count"] for name, rule in report["rules"].items() if name not in OF_LINES}
            most = max(rules, key=lambda name: rules[name])
            why = f"of all texts most for {most} ({SOURCES[most]})"
            raise InputError(f"text {source.argument}: `clean` drops all of its documents, {why}")
        made = (CleanedText(group[0][0], "text", "strict", parts=group) for group in groups if group)
        units.append(dataclasses.replace(source, units=tuple(made)))
    return units, [join_fingerprints(name for group in of for name in group) for of in listed], report


def _load(file: str, *names: str) -> list[np.ndarray]:
    return list(read_arrays(epath.Path(file), {name: FIELDS[name] for name in names}).values())


def _read_documents(file: str) -> list[list[str]]:
    """Return the lines of each document of a part."""
    text, documents, dropped = _load(file, "text", "documents", "dropped")
    found: list[list[str]] = [[] for _ in dropped]
    for document, line in zip(documents.tolist(), bytes(text).decode().split("\n"), strict=len(documents) > 0):
        found[document].append(line)
    return found


def _write_documents(file: epath.Path, documents: Texts, compared: Texts, dropped: Sequence[bool], ends: bool) -> None:
    """Write a part. compared: lines of each document for its signature."""
    lines = list(itertools.chain.from_iterable(documents))
    hashed = (hashlib.blake2b(normalize_line(line).encode(), digest_size=8).digest() for line in lines)
    part = {
        "text": np.frombuffer("\n".join(lines).encode(), np.uint8),
        "documents": np.repeat(np.arange(len(documents)), [len(document) for document in documents]),
        "hashes": np.frombuffer(b"".join(hashed), "<u8").astype(np.uint64),
        "signatures": np.array([signature_of(lines) for lines in compared], np.uint32).reshape(-1, PERMUTATIONS),
        "dropped": np.array(dropped, bool),
        "ends": np.array(ends),
    }
    save(part, file)


def _read_part(folder: epath.Path, part: TextPart) -> None:
    """First pass: remove the markup of a part."""
    documents: list[list[str]] = [[]]
    for line in lines_of(part):
        documents[-1].append(line) if line else documents.append([])
    plain = [plain_lines("\n".join(document)) for document in documents[: len(documents) - part.ends]]
    _write_documents(folder / f"{part.sha256}.npz", plain, plain, [False] * len(plain), part.ends)


def _find_repeated(files: Sequence[str]) -> np.ndarray:
    """Return the hashes of the lines that are in REPEATS documents or more, without near duplicates: uint64, sorted."""
    signatures = [_load(file, "signatures")[0] for file in files]
    first = find_first(np.concatenate(signatures)) if files else np.zeros(0, np.int64)
    is_first = np.split(first == np.arange(len(first)), np.cumsum([len(of_part) for of_part in signatures])[:-1])
    ranges = -(-sum(len(_load(file, "hashes")[0]) for file in files) // LINES_AT_ONCE)
    found = [np.zeros(0, np.uint64)]
    for number in range(ranges):
        each = []
        for file, firsts in zip(files, is_first, strict=True):
            hashes, documents = _load(file, "hashes", "documents")
            taken = firsts[documents] & (hashes % np.uint64(ranges) == number)
            in_document = hashes[taken] + documents[taken].astype(np.uint64) * MIX
            each.append(hashes[taken][np.unique(in_document, return_index=True)[1]])
        different, counts = np.unique(np.concatenate(each), return_counts=True)
        found.append(different[counts >= REPEATS])
    return np.sort(np.concatenate(found))


class Notes:
    """What the rules drop: counts, and examples with the lowest hash, so that they are a sample."""

    def __init__(self) -> None:
        self.counts, self.languages = Counter[str](), Counter[str]()
        self.examples: dict[str, list[tuple[str, str]]] = {rule: [] for rule in SOURCES}

    def add(self, rule: str, *examples: tuple[str, str], count: int = 1) -> None:
        self.counts[rule] += count
        self.examples[rule] = heapq.nsmallest(EXAMPLES, {*self.examples[rule], *examples})

    def drop(self, rule: str, text: str) -> None:
        self.add(rule, (hashlib.sha256(text.encode()).hexdigest()[:16], text[:SHOWN]))


def _clean_part(read: epath.Path, folder: epath.Path, table: epath.Path, languages: Sequence[str], name: str) -> None:
    """Second pass: remove repeated lines and notices from a part, and empty the documents that break a rule. A file
    beside it holds the notes."""
    import py3langid

    hashes, ends = _load(file := str(read / f"{name}.npz"), "hashes", "ends")
    is_repeated, number, notes = np.isin(hashes, _read_table(str(table))).tolist(), itertools.count(), Notes()
    kept, compared, dropped = [], [], []
    for lines in _read_documents(file):
        rules = ["repeated line" if is_repeated[next(number)] else "notice" * is_notice(line) for line in lines]
        own = [place for place, rule in enumerate(rules) if not rule]
        for place in range(own[0], own[-1]) if own else ():  # a paragraph that others quote, within a text of its own
            rules[place] *= len(lines[place]) <= LONG or rules[place] == "notice"
        left = [line for line, rule in zip(lines, rules, strict=True) if not rule]
        for line, rule in zip(lines, rules, strict=True):
            if rule:
                notes.drop(rule, line)
        language = py3langid.classify("\n".join(left)[:LANGUAGE_CHARS])[0] if left else ""
        fault = "language" if languages and left and language not in languages else find_fault(left, language)
        if fault:
            notes.drop(fault, "\n".join(lines))
        notes.languages.update([] if fault else [language])
        dropped.append(fault is not None)
        kept.append([] if fault else left)
        # A paragraph that a copy has changed is no repeated line there, so both are compared with it.
        long = (not rule or len(line) > LONG for line, rule in zip(lines, rules, strict=True))
        compared.append([] if fault else list(itertools.compress(lines, long)))
    _write_documents(folder / f"{name}.npz", kept, compared, dropped, bool(ends))
    content = {"counts": notes.counts, "languages": notes.languages, "examples": notes.examples}
    with complete_file(folder / f"{name}.json", writer=uuid.uuid4().hex) as made:
        made.write_text(json.dumps(content))


@cache
def _read_table(file: str) -> np.ndarray:
    return _load(file, "hashes")[0]


def _drop_duplicates(files: Sequence[str]) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Return which documents of each part are kept, bool [documents], and the report. files: of the second pass."""
    notes = Notes()
    for file in files:
        of_part = read_json(epath.Path(file).with_suffix(".json"))
        notes.languages.update(of_part["languages"])
        for rule, examples in of_part["examples"].items():
            notes.add(rule, *map(tuple, examples), count=of_part["counts"].get(rule, 0))
    parts = [_load(file, "signatures", "dropped") for file in files]
    kept = ~np.concatenate([np.zeros(0, bool), *(dropped for _, dropped in parts)])
    begins = np.append(0, np.cumsum([len(dropped) for _, dropped in parts]))
    there = np.flatnonzero(kept)
    signatures = np.concatenate([np.zeros((0, PERMUTATIONS), np.uint32), *(s[~dropped] for s, dropped in parts)])
    first = find_first(signatures)
    copies = np.flatnonzero(first != np.arange(len(first)))
    kept[there[copies]] = False

    def text_of(number: int) -> str:
        part = int(np.searchsorted(begins, number, "right")) - 1
        return "\n".join(_read_documents(files[part])[number - begins[part]])[:SHOWN]

    for copy in sorted(copies.tolist(), key=lambda copy: signatures[copy].tobytes())[:EXAMPLES]:
        shown = f"{text_of(there[copy])}\n=== a near duplicate of ===\n{text_of(there[first[copy]])}"
        notes.drop("near duplicate", shown)
    notes.counts["near duplicate"] = len(copies)
    rules = {
        rule: {
            "count": notes.counts[rule], "drops": "lines" if rule in OF_LINES else "documents", "source": source,
            "examples": [text for _, text in notes.examples[rule]],
        }
        for rule, source in SOURCES.items()
    }  # fmt: skip
    counts = {"documents": len(kept), "kept": int(kept.sum()), "languages": dict(notes.languages.most_common())}
    return np.split(kept, begins[1:-1]), {**counts, "rules": rules}


def describe_cleaning(report: dict[str, Any]) -> Iterator[str]:
    """Yield lines that summarize a report."""
    yield f"cleaned     {report['kept']:,} of {report['documents']:,} documents kept"
    for name, rule in report["rules"].items():
        if rule["count"]:
            yield f"  {name:16} {rule['count']:,} {rule['drops']} ({rule['source']})"

"""Turn text into a prepared corpus (`data_pipelines.corpus` describes it) in two passes, on one machine or many.

1. Encode the parts of the text, each into a file of its own (`parts`, `encoding`). Then list the documents of all
   parts of a group in one file.
2. Choose the held-out text and the contents of each shard from these lists (`holdout`, `layout`), and cut the shards
   from the encoded parts (`shards`, `writing`).

Both passes reuse the files that an interrupted run left in the folder beside `out`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from etils import epath

from data_pipelines import sources
from data_pipelines.corpus import Corpus, Manifest, SplitName, is_corpus
from data_pipelines.notes import tell
from data_pipelines.prepare.encoding import documents_in, encode
from data_pipelines.prepare.holdout import ALL, NONE, Documents, Rule, choose, count_cut_copies, places_of
from data_pipelines.prepare.layout import Content, Contents, EncodedSource, count
from data_pipelines.prepare.origins import fingerprints, origins
from data_pipelines.prepare.parts import Group, Part, cut_parts, fingerprint_of, groups_of
from data_pipelines.prepare.runners import LocalRunner, Runner
from data_pipelines.prepare.writing import write_corpus
from data_pipelines.readers import Errors
from data_pipelines.sources import Source
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import demand_place
from xlnet_jax.storage.folders import drop_leftovers, resumable_folder
from xlnet_jax.storage.reading import read_arrays, read_json

# Keys of Manifest.made_from, and the words of the error for a corpus that differs in them.
MADE_FROM = {
    "train": "its training text differs",
    "validation": "its validation text differs",
    "validation_fraction": "its share of held-out text differs",
    "weights": "its weights differ",
    "tokenizer": "its tokenizer differs",
    "block_len": "the length of its blocks differs",
}
REMEDY = "give more text, or lower `data.windows_per_block` or `data.seq_len` (prepare: `block_len`)"


def prepare(
    train: Sequence[Source],
    validation: Sequence[Source] | None,
    tokenizer: Tokenizer,
    out: epath.PathLike,
    *,
    block_len: int,
    validation_fraction: float,
    errors: Errors = "strict",
    weights: Sequence[float] = (),
    runner: Runner | None = None,
) -> Corpus:
    """Write the corpus folder `out`, complete or not at all; open it if it was made from the same text and settings.

    validation: text of the validation split; None = hold out about `validation_fraction` of the documents of `train`,
    by their content (`holdout`). block_len: tokens in a block. errors: as in `sources.read_lines`. weights: share of
    the rows that read each source of `train`; empty = by size. runner: None = the cores of this machine.

    Raises InputError if text is missing, too short, not text or given twice, or if `out` was made from something else,
    and OSError if `out` cannot be written. The next call reuses the parts that were encoded by then.
    """
    sources.demand_distinct(train, validation or ())
    out = epath.Path(out).expanduser()
    made_from: dict[str, Any] = {
        "validation_fraction": None if validation else validation_fraction,
        "weights": list(weights),
        "tokenizer": tokenizer.sha256,
        "block_len": block_len,
    }
    if out.exists():
        drop_leftovers(out)
        demand_corpus(out)  # before reading the text, which may take hours
        manifest = Manifest.load(out)
        made_from["train"] = fingerprints("train", train, errors, manifest)
        made_from["validation"] = fingerprints("validation", validation, errors, manifest) if validation else None
        return open_same(out, made_from)
    demand_place(out)
    with resumable_folder(out) as (folder, work):
        job = Job(folder, work, tokenizer, block_len, errors, runner or LocalRunner())
        encoded = job.encode({"train": train, "validation": validation or ()})
        _demand_other_text(encoded["train"], encoded["validation"])
        job.write(encoded, validation_fraction, tuple(weights), made_from)
    return Corpus(out)


def prepare_to_measure(
    text: Sequence[Source], tokenizer: Tokenizer, out: epath.PathLike, *, block_len: int, errors: Errors = "strict"
) -> Corpus:
    """Write a corpus folder whose splits both hold this text, to measure a model on all of it.

    Arguments and errors as `prepare`.
    """
    out = epath.Path(out).expanduser()
    demand_place(out)
    made_from: dict[str, Any] = {
        "validation_fraction": None,
        "weights": [],
        "tokenizer": tokenizer.sha256,
        "block_len": block_len,
    }
    with resumable_folder(out) as (folder, work):
        job = Job(folder, work, tokenizer, block_len, errors, LocalRunner())
        encoded = job.encode({"train": (), "validation": text})["validation"]
        job.write({"train": encoded, "validation": encoded}, 0.0, (), made_from)
    return Corpus(out)


def demand_corpus(out: epath.Path) -> None:
    """Raise InputError if `out` is not a prepared corpus."""
    if not is_corpus(out):
        raise InputError(f"{out} exists and is not a prepared corpus; name a folder that does not exist yet")


def open_same(folder: epath.Path, made_from: Mapping[str, Any]) -> Corpus:
    """Open the corpus in `folder`. Raises InputError, with the differences, if it was not made from `made_from`."""
    corpus = Corpus(folder)
    found = corpus.manifest.made_from
    if differences := [what for key, what in MADE_FROM.items() if found.get(key) != made_from[key]]:
        raise InputError(f"corpus {folder}: {', and '.join(differences)}; give another `out` or `workdir`")
    return corpus


@dataclass(frozen=True)
class Encoded(EncodedSource):
    """A source and its encoded parts."""

    given: Source
    fingerprint: str

    @property
    def documents(self) -> Documents:
        return Documents.of(self.places)


def _demand_other_text(train: Sequence[Encoded], validation: Sequence[Encoded]) -> None:
    """Raise InputError where two sources hold the same text, or the training text holds all of a validation text.

    Print how many documents of a validation text the training text holds.
    """
    seen: dict[str, Encoded] = {}
    for source in (*train, *validation):
        other = seen.setdefault(source.fingerprint, source)
        if other is not source and source.tokens:
            raise InputError(
                f"text {source.given.given} is the same text as {other.given.given}; leave one of the two out"
            )
    if not validation:
        return
    hashes = np.concatenate([source.documents.hashes for source in train])
    for source in validation:
        documents = source.documents.hashes
        if copies := int(np.isin(documents, hashes).sum()):
            name, all_of_it = f"validation text {source.given.given}", len(documents)
            if copies == all_of_it:
                raise InputError(f"{name}: the training text holds all of its documents; give text that it lacks")
            tell(f"{name}: the training text holds {copies:,} of its {all_of_it:,} documents")


@dataclass(frozen=True)
class Job:
    """The work of making one corpus in `folder`; files that a later call can reuse are kept in `work`."""

    folder: epath.Path
    work: epath.Path
    tokenizer: Tokenizer
    block_len: int
    errors: Errors
    runner: Runner

    def encode(self, text: Mapping[SplitName, Sequence[Source]]) -> dict[SplitName, list[Encoded]]:
        """Encode the text of both splits (the first pass)."""
        # Validation first: mistakes in the shorter text are found sooner.
        order = [*text["validation"], *text["train"]]
        encoded = self.work / f"encoded-{self.tokenizer.sha256[:16]}"
        lists = self.work / "lists"
        for folder in (encoded, lists):
            folder.mkdir(parents=True, exist_ok=True)
        groups = groups_of(order, self.errors)
        self.runner.run(
            groups,
            partial(_unfinished_parts, encoded=str(encoded), lists=str(lists)),
            partial(_encode_part, encoded=str(encoded), tokenizer=self.tokenizer),
        )
        self.runner.run(groups, _itself, partial(_list_documents, encoded=str(encoded), lists=str(lists)))
        listed: list[list[_Listed]] = [[] for _ in order]
        for group in groups:
            listed[group.source] += _read_list(group, str(encoded), str(lists))
        results = [
            Encoded(places_of(part.documents for part in own), source, fingerprint_of(part.name for part in own))
            for source, own in zip(order, listed, strict=True)
        ]
        cut = len(text["validation"])
        return {"train": results[cut:], "validation": results[:cut]}

    def write(
        self,
        encoded: Mapping[SplitName, Sequence[Encoded]],
        fraction: float,
        weights: tuple[float, ...],
        made_from: Mapping[str, Any],
    ) -> None:
        """Write the corpus of the encoded text (the second pass). made_from: `Manifest.made_from` without the
        fingerprints of the text."""
        text = {
            "train": [e.fingerprint for e in encoded["train"]],
            "validation": [e.fingerprint for e in encoded["validation"]] or None,
        }
        names = tuple(source.given.name for source in encoded["train"])
        came_from = origins({split: [source.given for source in given] for split, given in encoded.items()})
        write_corpus(
            self.folder, self._contents(encoded, fraction), self.tokenizer, self.block_len, names, weights,
            {**made_from, **text}, self.runner, came_from,
        )  # fmt: skip

    def _contents(self, encoded: Mapping[SplitName, Sequence[Encoded]], fraction: float) -> Contents:
        """Divide each source between the splits."""
        if not encoded["validation"]:
            return self._held_out(encoded["train"], fraction)
        rules: dict[SplitName, Rule] = {"train": NONE, "validation": ALL}
        return {
            split: [Content(source, rule, self._enough(source, split)) for source in encoded[split]]
            for split, rule in rules.items()
        }

    def _enough(self, source: Encoded, split: SplitName) -> int:
        """Count the tokens of a source, or refuse it if they do not fill a block."""
        if (tokens := source.tokens) < self.block_len:
            if not tokens:
                raise sources.no_text([source.given])
            raise InputError(
                f"{split} text {source.given.given} has {tokens} tokens, but a block needs {self.block_len}: {REMEDY}"
            )
        return tokens

    def _held_out(self, encoded: Sequence[Encoded], fraction: float) -> Contents:
        contents: Contents = {"train": [], "validation": []}
        for source in encoded:
            total = source.tokens
            if not total:
                raise sources.no_text([source.given])
            if total < 2 * self.block_len:
                raise InputError(
                    f"text {source.given.given} has {total} tokens, but one block needs {self.block_len} for training "
                    f"and {self.block_len} for validation: {REMEDY}"
                )
        texts = [source.documents for source in encoded]
        rules = choose(texts, fraction, self.block_len)
        if copies := count_cut_copies(texts, rules):
            tell(
                f"{copies:,} of the held-out documents are in the training text too, as it has too few different ones; "
                "give a validation text of its own"
            )
        for source, rule in zip(encoded, rules, strict=True):
            for split, given in contents.items():
                given.append(Content(source, rule, count(source, rule, split)))
        return contents


def _unfinished_parts(group: Group, encoded: str, lists: str) -> Iterator[Part]:
    """Yield the parts of a group that are not encoded yet, then write the list of all its parts."""
    seen = []
    for part in cut_parts(group):
        seen.append(part.sha256)
        if not _file_of(part.sha256, encoded).exists():
            yield part
    file = _list_of(group, lists)
    file.write_text(json.dumps(seen)) if seen else file.unlink(missing_ok=True)


def _encode_part(part: Part, encoded: str, tokenizer: Tokenizer) -> None:
    encode(part, tokenizer).save(_file_of(part.sha256, encoded))


def _itself(group: Group) -> Sequence[Group]:
    return (group,)


def _list_documents(group: Group, encoded: str, lists: str) -> None:
    """Write what the encoded parts of a group say of their documents into one file, as later steps read them often."""
    if not (names := _parts_of(group, lists)):
        return
    with ThreadPoolExecutor() as pool:
        parts = list(pool.map(lambda name: documents_in(str(_file_of(name, encoded))), names))
    tokens, hashes, continues = zip(*parts, strict=True)
    content = io.BytesIO()
    np.savez(
        content,
        documents=np.array([len(of_part) for of_part in tokens], np.int64),
        document_tokens=np.concatenate(tokens),
        document_hashes=np.concatenate(hashes),
        continues=np.array(continues, bool),
    )
    _list_of(group, lists, ".npz").write_bytes(content.getvalue())


@dataclass(frozen=True)
class _Listed:
    name: str  # SHA-256 of the part
    documents: tuple[str, np.ndarray, np.ndarray, bool]  # as `places_of` takes them


def _read_list(group: Group, encoded: str, lists: str) -> list[_Listed]:
    """Read the lists of a group that this call wrote."""
    if not (names := _parts_of(group, lists)):
        return []
    forms: dict[str, tuple[type[np.generic], int]] = {
        "documents": (np.int64, 1), "document_tokens": (np.int64, 1), "document_hashes": (np.uint64, 1),
        "continues": (np.bool_, 1),
    }  # fmt: skip
    found = read_arrays(_list_of(group, lists, ".npz"), forms)
    ends = np.cumsum(found["documents"])[:-1]
    tokens, hashes = (np.split(found[name], ends) for name in ("document_tokens", "document_hashes"))
    return [
        _Listed(name, (str(_file_of(name, encoded)), *of_part))
        for name, *of_part in zip(names, tokens, hashes, found["continues"].tolist(), strict=True)
    ]


def _parts_of(group: Group, lists: str) -> list[str]:
    file = _list_of(group, lists)  # missing for a group without text
    return read_json(file, list[str]) if file.exists() else []


def _file_of(part: str, encoded: str) -> epath.Path:
    return epath.Path(encoded) / f"{part}.npz"


def _list_of(group: Group, lists: str, end: str = ".json") -> epath.Path:
    return epath.Path(lists) / f"{group.source:04d}-{group.index:06d}{end}"

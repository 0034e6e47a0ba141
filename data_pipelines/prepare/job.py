"""Turn text into a prepared corpus (`data_pipelines.corpus` describes it) in two passes, on one machine or many.

1. Encode the parts of the text, each into a file of its own (`parts`, `encoding`).
2. Choose the held-out text and the contents of each shard from the sizes of documents (`holdout`, `layout`), and cut
   the shards from the encoded parts (`shards`, `writing`).

Both passes reuse the files that an interrupted run left in the folder beside `out`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from etils import epath

from data_pipelines import sources
from data_pipelines.corpus import Corpus, Manifest, SplitName, is_corpus
from data_pipelines.prepare.encoding import encode
from data_pipelines.prepare.holdout import ALL, NONE, Rule, choose
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
from xlnet_jax.storage.reading import read_json

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

    validation: text of the validation split; None = hold out about `validation_fraction` of the documents of each
    source of `train`, or its last blocks where it can spare no document. block_len: tokens in a block. errors: as in
    `sources.read_lines`. weights: share of the rows that read each source of `train`; empty = by size. runner: None =
    the cores of this machine.

    Raises InputError if text is missing, too short or not text, or if `out` was made from something else, and OSError
    if `out` cannot be written. The next call reuses the parts that were encoded by then.
    """
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
        job.write(encoded, validation_fraction, tuple(weights), made_from)
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
        parts: list[list[str]] = [[] for _ in order]
        for group in groups:
            file = _list_of(group, str(lists))  # missing for a group without text
            parts[group.source] += read_json(file, list[str]) if file.exists() else []
        results = [
            Encoded(tuple(str(_file_of(part, str(encoded))) for part in own), source, fingerprint_of(iter(own)))
            for source, own in zip(order, parts, strict=True)
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
            rule = choose(source.places(), total, fraction, self.block_len)
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


def _file_of(part: str, encoded: str) -> epath.Path:
    return epath.Path(encoded) / f"{part}.npz"


def _list_of(group: Group, lists: str) -> epath.Path:
    return epath.Path(lists) / f"{group.source:04d}-{group.index:06d}.json"

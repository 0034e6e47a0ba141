"""Text into a prepared corpus (`data_pipelines.corpus` describes it), in two passes, on one machine or many.

1. Parts of the text are encoded, each into a file of its own (`parts`, `encoding`).
2. What is held out and what goes into which shard follows from the sizes of documents (`holdout`, `layout`); the shards
   are cut from the encoded parts (`shards`, `writing`).

Both passes find what an interrupted run has left in the folder beside `out`, and go on from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from etils import epath

from data_pipelines import sources
from data_pipelines.corpus import Corpus, SplitName, is_corpus
from data_pipelines.prepare.encoding import encode
from data_pipelines.prepare.holdout import ALL, NONE, Rule, choose
from data_pipelines.prepare.layout import Content, Contents, EncodedSource, count
from data_pipelines.prepare.parts import Group, Part, cut_parts, fingerprint, fingerprint_of, groups_of
from data_pipelines.prepare.runners import LocalRunner, Runner
from data_pipelines.prepare.writing import write_corpus
from data_pipelines.readers import Errors
from data_pipelines.sources import Source
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import demand_place
from xlnet_jax.storage.folders import resumable_folder

# What a corpus is made from, and how an error says that it differs.
MADE_FROM = {
    "train": "its training text is another",
    "validation": "its validation text is another",
    "validation_fraction": "its share of held-out text is another",
    "weights": "its weights are others",
    "tokenizer": "its tokenizer is another",
    "block_len": "its blocks have another length",
}
REMEDY = "give more text, or lower --data.windows-per-block or --data.seq-len (prepare: --block-len)"


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
    """Writes the corpus folder `out`, complete or not at all, or opens it where it is already there.

    block_len: tokens in a block. validation: text of the validation split; None = of each source of `train` about
    `validation_fraction` of its documents, or, where no documents can be spared, its last blocks. errors: as in
    `sources.read_lines`. weights: shares of the rows that read each source of `train`; none = by size. runner: None =
    the cores of this machine.

    Raises InputError where text is missing, too short or no text, or `out` was made from something else, and OSError
    where it cannot be written. What is encoded by then is found by the next call.
    """
    out = epath.Path(out).expanduser()
    made_from: dict[str, Any] = {
        "validation_fraction": None if validation else validation_fraction,
        "weights": list(weights),
        "tokenizer": tokenizer.sha256,
        "block_len": block_len,
    }
    if out.exists():
        demand_corpus(out)  # before the text is read
        for split, given in (("train", train), ("validation", validation)):
            made_from[split] = [fingerprint(source, errors) for source in given] if given else None
        return open_same(out, made_from)
    demand_place(out)
    with resumable_folder(out) as (folder, work):
        job = Job(folder, work, tokenizer, block_len, errors, runner or LocalRunner())
        encoded = job.encode({"train": train, "validation": validation or ()})
        job.write(encoded, validation_fraction, tuple(weights), made_from)
    return Corpus(out)


def demand_corpus(out: epath.Path) -> None:
    """InputError where something else stands there."""
    if not is_corpus(out):
        raise InputError(f"{out}: it exists and is not a prepared corpus; name a folder that is not there yet")


def open_same(folder: epath.Path, made_from: Mapping[str, Any]) -> Corpus:
    """The corpus that is there. InputError names in what it was made from something else."""
    corpus = Corpus(folder)
    found = corpus.manifest.made_from
    if differences := [what for key, what in MADE_FROM.items() if found.get(key) != made_from[key]]:
        raise InputError(f"corpus {folder}: {', and '.join(differences)}; give another --out or --workdir")
    return corpus


@dataclass(frozen=True)
class Encoded(EncodedSource):
    """A source and its encoded parts."""

    given: Source
    fingerprint: str


@dataclass(frozen=True)
class Job:
    """One corpus to be written into `folder`; what is of use to a later call is kept in `work`."""

    folder: epath.Path
    work: epath.Path
    tokenizer: Tokenizer
    block_len: int
    errors: Errors
    runner: Runner

    def encode(self, text: Mapping[SplitName, Sequence[Source]]) -> dict[SplitName, list[Encoded]]:
        """First pass."""
        # Validation first: a mistake in the shorter text is found sooner.
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
            file = _list_of(group, str(lists))  # a group without text has none
            parts[group.source] += json.loads(file.read_text()) if file.exists() else []
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
        """Second pass. made_from: all of it but the fingerprints of the text."""
        text = {
            "train": [e.fingerprint for e in encoded["train"]],
            "validation": [e.fingerprint for e in encoded["validation"]] or None,
        }
        names = tuple(source.given.name for source in encoded["train"])
        write_corpus(
            self.folder, self._contents(encoded, fraction), self.tokenizer, self.block_len, names, weights,
            {**made_from, **text}, self.runner,
        )  # fmt: skip

    def _contents(self, encoded: Mapping[SplitName, Sequence[Encoded]], fraction: float) -> Contents:
        """What each split holds of each source."""
        if not encoded["validation"]:
            return self._held_out(encoded["train"], fraction)
        rules: dict[SplitName, Rule] = {"train": NONE, "validation": ALL}
        return {
            split: [Content(source, rule, self._enough(source, split)) for source in encoded[split]]
            for split, rule in rules.items()
        }

    def _enough(self, source: Encoded, split: SplitName) -> int:
        """The tokens of a source that all go to a split."""
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
    """The parts of a group that are not encoded yet; when all have been seen, their list is written if there
    are any."""
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

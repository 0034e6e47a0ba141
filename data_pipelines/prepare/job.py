"""Turn text into a prepared corpus (`data_pipelines.corpus` describes it) in two passes, on one machine or many: encode
its parts, then choose the held-out text and cut the shards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from data_pipelines import sources
from data_pipelines.corpus import Corpus, Manifest, SplitName, is_corpus
from data_pipelines.prepare.encoding import EncodedSource, Encoder, fingerprint
from data_pipelines.prepare.holdout import choose
from data_pipelines.prepare.runners import LocalRunner, Runner
from data_pipelines.prepare.shards import Content, cut, stretches_of, write_corpus
from data_pipelines.readers import Errors
from data_pipelines.sources import Source
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.printing import tell, without_secrets
from xlnet_jax.storage.files import demand_place, drop_leftovers, resumable_folder

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
Text = Mapping[SplitName, Sequence[Source]]


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
    given: Text = {"train": train, "validation": validation or ()}
    sources.demand_distinct(train, given["validation"])
    out = epath.Path(out).expanduser()
    settings: dict[str, Any] = {
        "validation_fraction": None if validation else validation_fraction,
        "weights": list(weights),
        "tokenizer": tokenizer.sha256,
        "block_len": block_len,
    }
    if not out.exists():
        return _make(out, given, tokenizer, errors, runner or LocalRunner(), settings)
    drop_leftovers(out)
    if not is_corpus(out):
        raise InputError(f"{out} exists and is not a prepared corpus; name a folder that does not exist yet")
    corpus = Corpus(out)
    asked = settings | {s: _fingerprints(s, text, errors, corpus.manifest) or None for s, text in given.items()}
    found = corpus.manifest.made_from
    if differences := [what for key, what in MADE_FROM.items() if found.get(key) != asked[key]]:
        raise InputError(f"corpus {out}: {', and '.join(differences)}; give another `out` or `workdir`")
    return corpus


def prepare_to_measure(
    text: Sequence[Source], tokenizer: Tokenizer, out: epath.PathLike, *, block_len: int, errors: Errors = "strict"
) -> Corpus:
    """Write a corpus folder whose splits both hold this text, to measure a model on all of it.

    Arguments and errors as `prepare`.
    """
    settings: dict[str, Any] = {
        "validation_fraction": None,
        "weights": [],
        "tokenizer": tokenizer.sha256,
        "block_len": block_len,
    }
    given: Text = {"train": (), "validation": text}
    return _make(epath.Path(out).expanduser(), given, tokenizer, errors, LocalRunner(), settings)


def _make(
    out: epath.Path, asked: Text, tokenizer: Tokenizer, errors: Errors, runner: Runner, settings: Mapping[str, Any]
) -> Corpus:
    """Write the corpus of a text. Without training text, the training split holds the validation text too."""
    demand_place(out)
    block_len = settings["block_len"]
    with resumable_folder(out) as (folder, work):
        # Validation first: mistakes in the shorter text are found sooner.
        order = [*asked["validation"], *asked["train"]]
        encoded = Encoder(work, tokenizer).encode(order, errors, runner)
        validation, train = encoded[: len(asked["validation"])], encoded[len(asked["validation"]) :]
        if train:
            _refuse_copies(train, validation)
        text: dict[SplitName, list[EncodedSource]] = {"train": train or validation, "validation": validation}
        for split, given in text.items():
            for source in given:
                _demand_blocks(source, split, 1 if validation else 2, block_len)
        if validation:
            contents = {split: [(source, stretches_of(source)) for source in given] for split, given in text.items()}
        else:
            contents = _hold_out(train, settings["validation_fraction"], block_len)
        made_from = dict(settings)
        origins: dict[str, Any] = {}
        for split, given in text.items():
            made_from[split] = [source.fingerprint for source in given] or None
            if any(source.given.remote for source in given):
                origins[split] = [_origin(source.given) for source in given]
        write_corpus(folder, contents, tokenizer, block_len, settings["weights"], made_from, origins, runner)
    return Corpus(out)


def _fingerprints(split: SplitName, text: Sequence[Source], errors: Errors, made: Manifest) -> list[str]:
    """Return the fingerprint of each source: from the manifest of a corpus, if its record of the files shows that it
    was made of this source, else by reading the text.

    A dataset of the Hub that is named without a commit is the one at the commit of the record.
    """
    there = list(zip(made.origins.get(split) or (), made.made_from.get(split) or (), strict=False))
    return [
        there[number][1]
        if number < len(there) and _is_same(_origin(source), there[number][0])
        else fingerprint(source, errors)
        for number, source in enumerate(text)
    ]


def _origin(source: Source) -> dict[str, Any] | None:
    """Return where the text of a source came from; None for text on disk."""
    if not source.remote:
        return None
    commit = re.match(r"hf://[^@]+@([^/]+)/", source.remote[0].url)
    return {
        "name": without_secrets(source.given),
        "commit": commit and commit[1],
        "files": [[without_secrets(file.url), file.size, file.version] for file in source.remote],
    }


def _is_same(origin: dict[str, Any] | None, recorded: dict[str, Any] | None) -> bool:
    if origin is None or recorded is None:
        return False
    if recorded["commit"] and "@" not in recorded["name"] and origin["name"] == recorded["name"]:
        return True
    known = all(version for _, _, version in origin["files"])
    return known and [file[1:] for file in origin["files"]] == [list(file[1:]) for file in recorded["files"]]


def _refuse_copies(train: Sequence[EncodedSource], validation: Sequence[EncodedSource]) -> None:
    """Raise InputError where two sources hold the same text, or the training text holds all of a validation text.

    Print how many documents of a validation text the training text holds.
    """
    seen: dict[str, EncodedSource] = {}
    for source in (*train, *validation):
        other = seen.setdefault(source.fingerprint, source)
        if other is not source and source.tokens:
            raise InputError(
                f"text {source.given.given} is the same text as {other.given.given}; leave one of the two out"
            )
    for source in validation:
        documents = source.documents.hashes
        if copies := int(np.isin(documents, np.concatenate([other.hashes for other in train])).sum()):
            name = f"validation text {source.given.given}"
            if copies == len(documents):
                raise InputError(f"{name}: the training text holds all of its documents; give text that it lacks")
            tell(f"{name}: the training text holds {copies:,} of its {len(documents):,} documents")


def _demand_blocks(source: EncodedSource, split: SplitName, blocks: int, block_len: int) -> None:
    if not source.tokens:
        raise sources.no_text([source.given])
    if source.tokens < blocks * block_len:
        needed = f"a block of {block_len}" if blocks == 1 else f"a block of {block_len}, and another to hold out"
        raise InputError(f"{split} text {source.given.given} has {source.tokens} tokens, and needs {needed}: {REMEDY}")


def _hold_out(train: Sequence[EncodedSource], fraction: float, block_len: int) -> dict[SplitName, list[Content]]:
    """Divide each source between the splits."""
    contents: dict[SplitName, list[Content]] = {"train": [], "validation": []}
    rules = choose([source.documents for source in train], fraction, block_len)
    for source, rule in zip(train, rules, strict=True):
        if isinstance(rule, int):
            kept, held_out = cut(stretches_of(source), [rule, source.tokens - rule])
        else:
            is_held_out = rule.holds_out(source.hashes)[source.document]
            kept, held_out = stretches_of(source, ~is_held_out), stretches_of(source, is_held_out)
        contents["train"].append((source, kept))
        contents["validation"].append((source, held_out))
    return contents

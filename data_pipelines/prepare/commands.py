"""Prepare a corpus (see `data_pipelines.corpus`), from Python or with `python -m data_pipelines.prepare`.

There are two passes, on one machine or many: encode the parts of the text, then choose the held-out text and write the
shards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from etils import epath

from data_pipelines import sources, windows
from data_pipelines.corpus import Corpus, Manifest, SplitName, is_corpus
from data_pipelines.prepare import cleaning
from data_pipelines.prepare.encoding import EncodedSource, encode_text, fingerprint
from data_pipelines.prepare.holdout import choose, holds_out
from data_pipelines.prepare.packing import RecordWindows
from data_pipelines.prepare.runners import Runner, run_here, run_with_beam
from data_pipelines.prepare.shards import Content, cut, stretches_of, write_corpus
from data_pipelines.readers import TextFile
from data_pipelines.records import RecordFormat
from data_pipelines.remote import is_remote
from data_pipelines.sources import Source
from data_pipelines.tokenizer import Tokenizer, TokenizerSettings, VocabularyTooLarge
from xlnet_jax.errors import InputError
from xlnet_jax.printing import counted, progress, tell, without_secrets
from xlnet_jax.settings.common import RecordSettings
from xlnet_jax.settings.config import DataConfig
from xlnet_jax.settings.fields import at_least, between, check_bounds, setting, with_plain_paths
from xlnet_jax.storage.outputs import drop_leftovers, resumable_folder
from xlnet_jax.storage.reading import read_json

# Keys of Manifest.made_from, and the words of the error if an existing corpus differs in them.
MADE_FROM = {
    "train": "its training text differs",
    "validation": "its validation text differs",
    "validation_fraction": "its share of held-out text differs",
    "weights": "its weights differ",
    "tokenizer": "its tokenizer differs",
    "block_len": "the length of its blocks differs",
    "records": "the way its records are cut into windows or held out differs",
    "clean": "the way its text is cleaned differs",
}
CLEAN_FILE = "clean.json"
VOCABULARY = 32_000
REMEDY = "give more text, lower `data.windows_per_block` or `data.seq_len` (prepare: `block_len`), or use `preset` demo"


@dataclass(frozen=True)
class PrepareSettings(RecordSettings):
    """Text to prepare, and the output folder."""

    out: str
    """output folder, on disk or in the cloud (gs://)"""
    tokenizer: str | None = None
    """tokenizer folder (from python -m data_pipelines.tokenizer train), SentencePiece .model file (the normalization is
    chosen from the text), or the name of a model on the Hugging Face Hub, such as xlnet-base-cased; None = the symbols
    of the records; for prose train one of 32,000 pieces, or as many as the text has, on the text, after --clean"""
    source: tuple[str, ...] = ()
    """files, globs, folders, URLs, tfds:NAME or hf:NAME"""
    weights: tuple[float, ...] = ()
    """share of the training rows for each source; shares must sum to 1; none = in proportion to the sources' sizes"""
    validation: tuple[str, ...] = ()
    """held-out text, in the same forms as --source; none = hold out some documents of each source"""
    validation_fraction: float = setting(0.05, between(0, 1, "()"))
    """share of the documents to hold out; if a source is one document, its last blocks are held out"""
    clean: tuple[str, ...] | None = None
    """remove markup, repeated lines, pages that are not prose and near duplicates, and list examples in clean.json
    (docs/data.md); with codes of languages, such as en de, keep only those; None = take the text as it is"""
    block_len: int = setting(windows.block_len(DataConfig()), at_least(8))
    """tokens in a block, the unit of shuffling and of memory; the default holds 16 windows of 512 tokens; of records: a
    window and one token"""
    runner: str = "local"
    """local = all cores of this machine; Direct, Dataflow, Spark, Flink, … = the Apache Beam runner of that name"""
    beam_options: tuple[str, ...] = ()
    """options of the Beam runner, without dashes: project=mine region=europe-west4"""

    def check(self) -> None:
        """Raise InputError for settings that cannot work, before any text is read."""
        if not self.source:
            raise InputError("source", "", "names no text: give files, globs, folders, URLs, tfds:NAME or hf:NAME")
        if self.weights and len(self.weights) != len(self.source):
            raise InputError(
                "weights",
                "",
                f"has {counted(len(self.weights), 'number')}, but `source` names {counted(len(self.source), 'text')}",
            )
        if self.weights and not (min(self.weights) > 0 and abs(sum(self.weights) - 1) <= 1e-6):  # nan is refused too
            shares = ", ".join(map(str, self.weights))
            raise InputError("weights", shares, f": they must be above 0 and sum to 1, not {sum(self.weights):g}")
        check_bounds(self)
        if self.beam_options and self.runner == "local":
            raise InputError("beam_options", "", "needs a Beam runner: choose one with `runner`")


def prepare_corpus(settings: PrepareSettings, on_written: Callable[[int], None] = lambda files: None) -> Corpus:
    """Prepare a corpus, or open it if the same settings have already made it.

    on_written: called by the local runner with the number of files written so far. Raises InputError for settings or
    text that cannot work.
    """
    settings = with_plain_paths(settings)
    settings.check()
    tokenizer, records = None, RecordFormat.of(settings)
    train = sources.find(settings.source, settings, records=records)
    if settings.tokenizer:
        tokenizer = Tokenizer.load(settings.tokenizer, lambda: _usual_settings(train))
        if tokenizer.records and records is None:
            records = tokenizer.records
            train = sources.find(settings.source, settings, records=records)
    if records and settings.clean is not None:
        raise InputError("clean", "", "works on prose, not on records: leave it out")
    if tokenizer is None and records:
        lines, holds_out_last = sources.read_lines(train), settings.hold_out == "last"
        tokenizer = Tokenizer.of_symbols(lines, records, settings.min_count, holds_out_last)
    runner: Runner = partial(run_here, on_progress=on_written)
    if settings.runner != "local":
        options = [f"--{option}" for option in settings.beam_options]
        runner = partial(run_with_beam, runner=settings.runner, options=options)
    return prepare(
        train,
        sources.find(settings.validation, settings, "validation", records) if settings.validation else None,
        tokenizer,
        settings.out,
        block_len=settings.block_len,
        validation_fraction=settings.validation_fraction,
        weights=settings.weights,
        runner=runner,
        records=RecordWindows(settings.block_len - 1, long=settings.long) if records else None,
        holds_out_last=settings.hold_out == "last",
        clean=settings.clean,
    )


def _usual_settings(text: Sequence[Source]) -> TokenizerSettings:
    return TokenizerSettings.usual_for(sources.choose_normalization(text))


def _train_tokenizer(text: Sequence[Source]) -> Tokenizer:
    """Train a tokenizer of VOCABULARY pieces, or of as many as the text has."""
    normalization = sources.choose_normalization(text)
    try:
        return Tokenizer.train(sources.read_lines(text), VOCABULARY, normalization)
    except VocabularyTooLarge as error:
        return Tokenizer.train(sources.read_lines(text), error.largest, normalization)


def print_corpus(settings: PrepareSettings) -> None:
    """Prepare a corpus and print a summary."""
    begin = time.monotonic()
    was_there = epath.Path(settings.out).expanduser().exists()
    with progress() as show:
        corpus = prepare_corpus(settings, lambda done: show(f"{done:,} files written"))
    seconds = time.monotonic() - begin
    manifest = corpus.manifest
    count = sum(split.tokens for split in manifest.splits.values())
    took = "already there" if was_there else f"{seconds:.1f} s, {count / seconds:,.0f} tokens/s"
    print(f"corpus      {corpus.folder}, {took}")
    if "clean" in manifest.made_from:
        for line in cleaning.describe_cleaning(read_json(corpus.folder / CLEAN_FILE)):
            print(line)
        print(f"  ten examples of each are in {corpus.folder / CLEAN_FILE}")
    of_records, text, tokens = corpus.tokenizer.records, "document", "tokens"
    how = f"normalization {corpus.tokenizer.settings.normalization}"
    if of_records:
        how, text, tokens = f"symbols of {' '.join(of_records.fields)}", "record", "symbols"
    print(f"tokenizer   {corpus.tokenizer.vocab_size:,} pieces, {how}")
    for split_name, split in manifest.splits.items():
        dropped = f", {split.dropped_tokens:,} after the last block dropped" if split.dropped_tokens else ""
        print(
            f"{split_name:11} {counted(split.blocks, 'block')} of {corpus.block_len:,} from "
            f"{counted(split.documents, text)}, {split.tokens:,} tokens{dropped}"
        )
    train = manifest.splits["train"]
    weights = manifest.weights or tuple(blocks / train.blocks for blocks in train.source_blocks)
    width = max(9, *map(len, manifest.sources))
    for source, weight, blocks in zip(manifest.sources, weights, train.source_blocks, strict=True):
        print(f"  {source:{width}} {counted(blocks, 'training block')}, {weight:.1%} of the rows")
    print(f"unknown     {corpus.unknown_share:.2%} of the training {tokens} are <unk>")
    if not of_records:
        print(f"unigram     {manifest.unigram_entropy:.3f} nats, the entropy of the training tokens")
    # A block of records is one window.
    windows = ["--data.seq-len", str(corpus.block_len - 1)] if of_records else []
    print(f"next        {shlex.join(['python', '-m', 'xlnet_jax.train', '--corpus', str(corpus.folder), *windows])}")


def prepare(
    train: Sequence[Source],
    validation: Sequence[Source] | None,
    tokenizer: Tokenizer | None,
    out: epath.PathLike,
    *,
    block_len: int,
    validation_fraction: float,
    weights: Sequence[float] = (),
    runner: Runner = run_here,
    records: RecordWindows | None = None,
    holds_out_last: bool = False,
    clean: Sequence[str] | None = None,
) -> Corpus:
    """Write the corpus folder `out`, or open it if it was already made from the same text and settings. The folder
    appears only when it is complete.

    train: text of the training split; empty = both splits hold the validation text, to measure a model on all of it.
    validation: text of the validation split; None = hold out about `validation_fraction` of the documents of `train`,
    by their content (`holdout`). tokenizer: None = train one on the text. block_len: tokens in a block. weights: share
    of the rows that read each source of `train`; empty = in proportion to size. runner: where the work runs
    (`runners`). records: windows of records, if the sources hold records; blocks then have their length.
    holds_out_last: train on records without their last symbol, and hold out the whole records. clean: clean the text
    and keep only documents in these languages, empty = in all; None = take it as it is.

    Raises InputError if text is missing, too short, not text or given twice, or if `out` was made from something else,
    and OSError if `out` cannot be written. After an error, the next call reuses the parts that are already encoded.
    """
    given: dict[SplitName, Sequence[Source]] = {"train": train, "validation": validation or ()}
    sources.require_distinct(train, given["validation"])
    if validation and holds_out_last:
        raise InputError("hold_out", "last", "with `validation`: both say what is held out; leave one of them out")
    out = epath.Path(out).expanduser()
    made_from: dict[str, Any] = {
        "validation_fraction": None if validation else validation_fraction,
        "weights": list(weights),
        "block_len": block_len,
    }
    if tokenizer:
        made_from["tokenizer"] = tokenizer.sha256
    if clean is not None:
        cleaning.require_cleaning(clean)
        made_from["clean"] = {"version": cleaning.VERSION, "languages": sorted(clean)}
    if records:
        made_from["records"] = {**dataclasses.asdict(records), "holds_out_last": holds_out_last}
    if out.exists():
        return _reopen(out, made_from, given)
    with resumable_folder(out) as (folder, work):
        encoded, tokenizer, report = _encode(given, tokenizer, clean, work, runner)
        made_from["tokenizer"] = tokenizer.sha256
        for source in encoded:
            if len(source.documents) == 1 and not records:
                size = f"one document of {source.tokens:,} tokens"
                tell(f"text {source.text.argument} is {size}; a blank line ends a document")
        held_out, learned = encoded[: len(given["validation"])], encoded[len(given["validation"]) :]
        if learned:
            _refuse_copies(learned, held_out)
        text: dict[SplitName, list[EncodedSource]] = {"train": learned or held_out, "validation": held_out}
        contents: dict[SplitName, list[Content]] = {}
        origins: dict[str, Any] = {}
        for split, of_split in text.items():
            for source in of_split:
                name = f"{split} text" if learned else "text"
                blocks = 0 if records else 1 if held_out else 2  # windows of records are padded
                _require_blocks(source, name, blocks, block_len)
            everything = stretches_of if records is None else partial(_place_all, records)
            contents[split] = [(source, everything(source)) for source in of_split]
            made_from[split] = [source.fingerprint for source in of_split] or None
            if any(_origin(source.text) for source in of_split):
                origins[split] = [_origin(source.text) for source in of_split]
        if not held_out:
            contents = _hold_out(learned, validation_fraction, block_len, records, holds_out_last)
        write_corpus(folder, contents, tokenizer, block_len, weights, made_from, origins, runner)
        if report:
            (folder / CLEAN_FILE).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return Corpus(out)


def _encode(
    given: Mapping[SplitName, Sequence[Source]],
    tokenizer: Tokenizer | None,
    clean: Sequence[str] | None,
    work: epath.Path,
    runner: Runner,
) -> tuple[list[EncodedSource], Tokenizer, dict[str, Any] | None]:
    """Return the encoded text, the validation text first, its tokenizer, and the report of cleaning, None without it.
    tokenizer, clean: as for `prepare`."""
    # Validation first, to find errors in the shorter text sooner, and to drop its duplicates from training text.
    found, report, fingerprints = [*given["validation"], *given["train"]], None, list[str]()
    read = found
    if clean is not None:
        read, fingerprints, report = cleaning.clean_text(found, clean, work, runner)
    tokenizer = tokenizer or _train_tokenizer(read[len(given["validation"]) :] or read)
    for to_encode in read:
        tokenizer.require_known(_readable_lines(to_encode), f"text {to_encode.argument}")
    encoded = encode_text(read, tokenizer, work, runner)
    if report:  # the corpus is known by the text as it was
        as_found = zip(encoded, found, fingerprints, strict=True)
        encoded = [dataclasses.replace(made, text=text, fingerprint=name) for made, text, name in as_found]
    return encoded, tokenizer, report


def _reopen(out: epath.Path, made_from: Mapping[str, Any], given: Mapping[SplitName, Sequence[Source]]) -> Corpus:
    """Return the corpus that is in a folder. Raises InputError if it is none, or was made from something else."""
    drop_leftovers(out)
    if not is_corpus(out):
        raise InputError(f"{out} exists and is not a prepared corpus; name a folder that does not exist yet")
    corpus = Corpus(out)
    asked = {"tokenizer": corpus.manifest.made_from["tokenizer"], **made_from}
    asked.update((split, _fingerprints(split, text, corpus.manifest) or None) for split, text in given.items())
    found = corpus.manifest.made_from
    if differences := [what for key, what in MADE_FROM.items() if found.get(key) != asked.get(key)]:
        raise InputError(f"corpus {out}: {', and '.join(differences)}; give another `out` or `workdir`")
    return corpus


def _readable_lines(source: Source) -> Iterator[str]:
    """Yield a sample of lines, up to the first that cannot be read: encoding reports that one."""
    with contextlib.suppress(InputError):
        yield from sources.sample_lines([source])


def _fingerprints(split: SplitName, text: Sequence[Source], made: Manifest) -> list[str]:
    """Return the fingerprint of each source: from the manifest of a corpus if its record of the files matches the
    source, else by reading the text.

    A Hub dataset named without a commit matches the commit of the record.
    """
    there = list(zip(made.origins.get(split) or (), made.made_from.get(split) or (), strict=False))
    return [
        there[number][1] if number < len(there) and _is_same(_origin(source), there[number][0]) else fingerprint(source)
        for number, source in enumerate(text)
    ]


def _origin(source: Source) -> dict[str, Any] | None:
    """Return where the text of a source came from, or None for text on disk."""
    files = [unit for unit in source.units if isinstance(unit, TextFile) and is_remote(unit.path)]
    if not files:
        return None
    commit = re.match(r"hf://[^@]+@([^/]+)/", files[0].path)
    return {
        "name": without_secrets(source.argument),
        "commit": commit and commit[1],
        "files": [[without_secrets(file.path), file.size, file.version] for file in files],
    }


def _is_same(origin: dict[str, Any] | None, recorded: dict[str, Any] | None) -> bool:
    if origin is None or recorded is None:
        return False
    if recorded["commit"] and "@" not in recorded["name"] and origin["name"] == recorded["name"]:
        return True
    known = all(version for _, _, version in origin["files"])
    return known and [file[1:] for file in origin["files"]] == [list(file[1:]) for file in recorded["files"]]


def _refuse_copies(train: Sequence[EncodedSource], validation: Sequence[EncodedSource]) -> None:
    """Raise InputError if two sources have the same text, or the training text contains all of a validation text.

    Print how many documents of each validation text are also in the training text.
    """
    seen: dict[str, EncodedSource] = {}
    for source in (*train, *validation):
        other = seen.setdefault(source.fingerprint, source)
        if other is not source and source.tokens:
            raise InputError(
                f"text {source.text.argument} is the same text as {other.text.argument}; remove one of them"
            )
    for source in validation:
        documents = source.documents["hash"]
        if copies := int(np.isin(documents, np.concatenate([other.hashes for other in train])).sum()):
            name = f"validation text {source.text.argument}"
            if copies == len(documents):
                raise InputError(f"{name}: the training text contains all of its documents; give other text")
            tell(f"{name}: the training text contains {copies:,} of its {len(documents):,} documents")


def _require_blocks(source: EncodedSource, name: str, blocks: int, block_len: int) -> None:
    if not source.tokens:
        raise sources.no_text([source.text])
    if source.tokens < blocks * block_len:
        needed = f"one block of {block_len}" if blocks == 1 else f"one block of {block_len} and another to hold out"
        raise InputError(f"{name} {source.text.argument} has {source.tokens} tokens, but needs {needed}: {REMEDY}")


def _place_all(records: RecordWindows, source: EncodedSource) -> np.ndarray:
    return records.place(source, np.ones(len(source.pieces), bool))


def _hold_out(
    train: Sequence[EncodedSource],
    fraction: float,
    block_len: int,
    records: RecordWindows | None,
    holds_out_last: bool,
) -> dict[SplitName, list[Content]]:
    """Divide the text of each source between the splits."""
    contents: dict[SplitName, list[Content]] = {"train": [], "validation": []}
    if records and holds_out_last:
        for source in train:
            has_history = source.piece_tokens > 2  # symbols and <eod>
            learned = records.place(source, source.piece_tokens > 0, dropped_end=1, keeps_end=True)
            contents["train"].append((source, learned))
            contents["validation"].append((source, records.place(source, has_history, keeps_end=True)))
        return contents
    rules = choose([source.documents for source in train], fraction, block_len)
    for source, rule in zip(train, rules, strict=True):
        if records:
            if isinstance(rule, int):
                raise InputError(
                    f"text {source.text.argument} has too few different records to hold some out: give `validation`"
                )
            is_held_out = holds_out(source.hashes, fraction, rule)[source.document]
            kept, held_out = records.place(source, ~is_held_out), records.place(source, is_held_out)
        elif isinstance(rule, int):
            kept, held_out = cut(stretches_of(source), [rule, source.tokens - rule])
        else:
            is_held_out = holds_out(source.hashes, fraction, rule)[source.document]
            kept, held_out = stretches_of(source, ~is_held_out), stretches_of(source, is_held_out)
        contents["train"].append((source, kept))
        contents["validation"].append((source, held_out))
    return contents

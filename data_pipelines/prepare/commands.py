"""Settings to prepare a corpus from Python and by `python -m data_pipelines.prepare`, and what the command prints."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from etils import epath

from data_pipelines import texts, windows
from data_pipelines.corpus import Corpus
from data_pipelines.prepare.job import prepare
from data_pipelines.prepare.runners import BeamRunner, LocalRunner, Runner
from data_pipelines.sources import TextSourceSettings
from data_pipelines.tokenizer import Settings, Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.printing import progress
from xlnet_jax.settings import parser
from xlnet_jax.settings.bounds import at_least, between, check_bounds
from xlnet_jax.settings.config import DataConfig
from xlnet_jax.settings.fields import setting
from xlnet_jax.settings.parser import with_plain_paths
from xlnet_jax.storage.files import demand_place


@dataclass(frozen=True)
class PrepareSettings(TextSourceSettings):
    """Text to prepare, and the folder to write."""

    out: str
    """folder to write, on disk or in the cloud (gs://)"""
    tokenizer: str
    """folder of a tokenizer (python -m data_pipelines.tokenizer train), a SentencePiece .model file, which gets the
    normalisation that suits the text, or a model of the Hugging Face Hub by name, as xlnet-base-cased"""
    source: tuple[str, ...] = ()
    """files, globs, folders, URLs, tfds:NAME or hf:NAME"""
    weights: tuple[float, ...] = ()
    """share of the training rows that reads each source; they sum to 1; none = by the sizes of the sources"""
    validation: tuple[str, ...] = ()
    """held-out text, named as --source names text; none = some documents of each source"""
    validation_fraction: float = setting(0.05, between(0, 1, "()"))
    """share of the documents that is held out; where a source is one document, its last blocks"""
    block_len: int = setting(windows.block_len(DataConfig()), at_least(8))
    """tokens in a block, the unit of shuffling and of memory; the default holds 16 windows of 512 with a
    reuse_len of 256"""
    runner: str = "local"
    """local = the cores of this machine; Direct, Dataflow, Spark, Flink, … = this runner of Apache Beam"""
    beam_options: tuple[str, ...] = ()
    """options of Beam's runner, without dashes: project=mine region=europe-west4"""

    def check(self) -> None:
        """Raise InputError for what cannot work, before anything is read."""
        if not self.source:
            raise InputError("`source` names no text: give files, globs, folders, URLs, tfds:NAME or hf:NAME")
        if self.weights and len(self.weights) != len(self.source):
            raise InputError(f"`weights` has {len(self.weights)} numbers, and `source` names {len(self.source)} texts")
        if self.weights and not (min(self.weights) > 0 and abs(sum(self.weights) - 1) <= 1e-6):  # nan is refused too
            shares = ", ".join(map(str, self.weights))
            raise InputError(f"`weights` {shares}: they must be above 0 and sum to 1, not {sum(self.weights):g}")
        check_bounds(self)
        demand_place(epath.Path(self.out).expanduser())
        if self.beam_options and self.runner == "local":
            raise InputError("`beam_options` are for a runner of Beam: name it with `runner`")


@dataclass(frozen=True)
class CheckSettings:
    """Corpus to check."""

    check: str
    """folder that this command wrote, on disk or in the cloud (gs://)"""


def prepare_corpus(settings: PrepareSettings, on_written: Callable[[int], None] = lambda files: None) -> Corpus:
    """Prepare a corpus, or find the one that the same settings made before.

    on_written: called with the number of files written so far, by the local runner. Raises InputError for settings or
    text that cannot work.
    """
    settings = with_plain_paths(settings)
    settings.check()
    train = settings.find(settings.source)

    def choose_settings() -> Settings:
        survey = texts.survey(train, settings.corpus_errors)
        print(f"chosen      {survey.describe()}")
        return Settings.suited_to((), survey.normalization)

    runner: Runner = LocalRunner(on_progress=on_written)
    if settings.runner != "local":
        runner = BeamRunner(settings.runner, tuple(f"--{option}" for option in settings.beam_options))
    return prepare(
        train,
        settings.find(settings.validation, "validation") if settings.validation else None,
        Tokenizer.load(settings.tokenizer, choose_settings),
        settings.out,
        block_len=settings.block_len,
        validation_fraction=settings.validation_fraction,
        errors=settings.corpus_errors,
        weights=settings.weights,
        runner=runner,
    )


def parse_preparation(argv: Sequence[str], prog: str, description: str) -> PrepareSettings | CheckSettings:
    """Return the settings of `prepare`, or of `prepare --check`. Raises InputError; prints and exits on --help."""
    if any(word.partition("=")[0] == "--check" for word in argv):
        about = "python -m data_pipelines.prepare: compare every shard of a corpus with the checksums of its manifest."
        return parser.parse(CheckSettings, argv, prog, about)
    return parser.parse(PrepareSettings, argv, prog, description)


def print_corpus(settings: PrepareSettings | CheckSettings) -> None:
    """Prepare a corpus and describe it, or compare every shard of one with its checksum. Raises InputError for the
    first shard that differs."""
    if isinstance(settings, CheckSettings):
        corpus = Corpus(settings.check)
        corpus.check()
        shards = [shard for split in corpus.manifest.splits.values() for shard in split.shards]
        size = sum(shard.num_bytes for shard in shards)
        print(f"corpus      {corpus.folder}, {len(shards):,} shards, {size:,} bytes, as they were written")
        return
    begin = time.monotonic()
    was_there = epath.Path(settings.out).expanduser().exists()
    with progress() as show:
        corpus = prepare_corpus(settings, lambda done: show(f"{done:,} files written"))
    seconds = time.monotonic() - begin
    manifest = corpus.manifest
    tokens = sum(split.tokens for split in manifest.splits.values())
    took = "was there" if was_there else f"{seconds:.1f} s, {tokens / seconds:,.0f} tokens/s"
    print(f"corpus      {corpus.folder}, {took}")
    normalization = corpus.tokenizer.settings.normalization
    print(f"tokenizer   {corpus.tokenizer.vocab_size:,} pieces, normalization {normalization}")
    for split_name, split in manifest.splits.items():
        dropped = f", {split.dropped_tokens:,} behind the last block dropped" if split.dropped_tokens else ""
        print(
            f"{split_name:11} {split.blocks:,} blocks of {corpus.block_len:,} from {split.documents:,} documents, "
            f"{split.tokens:,} tokens{dropped}"
        )
    train = manifest.splits["train"]
    weights = manifest.weights or tuple(blocks / train.blocks for blocks in train.source_blocks)
    width = max(9, *map(len, manifest.sources))
    for source, weight, blocks in zip(manifest.sources, weights, train.source_blocks, strict=True):
        print(f"  {source:{width}} {blocks:,} training blocks, {weight:.1%} of the rows")
    print(f"unknown     {corpus.unknown_share:.2%} of the training tokens are <unk>")
    print(f"unigram     {manifest.unigram_entropy:.3f} nats, the entropy of the training tokens")
    print(f"next        {shlex.join(['python', '-m', 'xlnet_jax.train', '--corpus', str(corpus.folder)])}")

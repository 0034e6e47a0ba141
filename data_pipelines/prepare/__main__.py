"""python -m data_pipelines.prepare: text into a corpus of token blocks, once for all trainings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from etils import epath
from rich.console import Console
from rich.status import Status

from data_pipelines import sources, windows
from data_pipelines.corpus import Corpus
from data_pipelines.prepare import prepare
from data_pipelines.prepare.beam_runner import BeamRunner
from data_pipelines.prepare.runners import LocalRunner, Runner
from data_pipelines.prepare.xlnet_tfrecords import prepare_records
from data_pipelines.readers import Errors
from data_pipelines.tokenizer import Settings, Tokenizer
from xlnet_jax.api import command
from xlnet_jax.errors import InputError
from xlnet_jax.settings import cli
from xlnet_jax.settings.config import DataConfig
from xlnet_jax.storage.files import demand_place


@dataclass(frozen=True)
class Preparation:
    """What to prepare, and where."""

    out: str
    """folder to make, on disk or in the cloud (gs://)"""
    tokenizer: str
    """folder of a tokenizer (python -m data_pipelines.tokenizer train), or a SentencePiece .model file, which gets the
    normalisation that suits the text"""
    source: tuple[str, ...] = ()
    """files, globs, folders, or tfds:NAME"""
    from_xlnet_tfrecords: str | None = None
    """in place of --source: the folder that the original's data_utils.py wrote"""
    weights: tuple[float, ...] = ()
    """shares of the training rows that read each source, which sum to 1; none = by their sizes"""
    validation: tuple[str, ...] = ()
    """held-out text in the same forms; none = a part of each source, by document"""
    validation_fraction: float = 0.05
    """share of the documents that is held out; of a source of one document, its last blocks"""
    block_len: int = windows.block_len(DataConfig())
    """tokens in a block, the unit of shuffling and of memory; the default holds 16 windows of 512 with a
    reuse_len of 256"""
    text_field: str = "text"
    """what holds the text of a document in JSON, Parquet and TFDS"""
    tfds_data_dir: str | None = None
    """where TFDS datasets are prepared; None = TFDS's default"""
    corpus_errors: Errors = "strict"
    """bytes that are not UTF-8: stop and say where, or read U+FFFD"""
    runner: str = "local"
    """local = the cores of this machine; Direct, Dataflow, Spark, Flink, ... = that runner of Apache Beam"""
    beam_options: tuple[str, ...] = ()
    """options for Beam's runner, without their dashes: project=mine region=europe-west4"""

    def check(self) -> None:
        """Raises InputError on what cannot work, before anything is read."""
        if self.from_xlnet_tfrecords and (self.source or self.validation or self.weights or self.runner != "local"):
            raise InputError("--from-xlnet-tfrecords stands for all text: leave the settings of --source out")
        if not (self.source or self.from_xlnet_tfrecords):
            raise InputError("--source names no text: give files, globs, folders, or tfds:NAME")
        if self.weights and len(self.weights) != len(self.source):
            raise InputError(f"--weights has {len(self.weights)} numbers, and --source names {len(self.source)} texts")
        if self.weights and not (min(self.weights) > 0 and abs(sum(self.weights) - 1) <= 1e-6):  # nan is refused too
            shares = ", ".join(map(str, self.weights))
            raise InputError(f"--weights {shares}: they must be above 0 and sum to 1, not {sum(self.weights):g}")
        if not 0 < self.validation_fraction < 1:
            raise InputError(f"--validation-fraction {self.validation_fraction} must be in (0, 1)")
        if self.block_len < 8:
            raise InputError(f"--block-len {self.block_len} holds no window: give at least 8")
        demand_place(epath.Path(self.out).expanduser())
        if self.beam_options and self.runner == "local":
            raise InputError("--beam-options are for a runner of Beam: name it with --runner")

    def who(self, status: Status) -> Runner:
        """Who does the work; how far it is goes to `status`."""
        if self.runner == "local":
            return LocalRunner(on_progress=lambda done: status.update(f"{done:,} files written"))
        return BeamRunner(self.runner, tuple(f"--{option}" for option in self.beam_options))


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Prepares as the command line says; returns the exit code."""
    args = cli.parse(Preparation, argv, "python -m data_pipelines.prepare", __doc__ or "")
    args.check()
    begin = time.monotonic()
    was_there = epath.Path(args.out).expanduser().exists()
    with Console(stderr=True).status("reading") as status:  # nothing where no terminal is
        corpus = _prepare(args, status)
    _describe(corpus, None if was_there else time.monotonic() - begin)
    return 0


def _prepare(args: Preparation, status: Status) -> Corpus:
    if args.from_xlnet_tfrecords:
        return prepare_records(
            args.from_xlnet_tfrecords,
            Tokenizer.load(args.tokenizer),
            args.out,
            block_len=args.block_len,
            validation_fraction=args.validation_fraction,
        )

    def find(names: tuple[str, ...], split: str) -> list[sources.Source]:
        return sources.find(names, args.text_field, args.tfds_data_dir, split)

    train = find(args.source, "train")
    return prepare(
        train,
        find(args.validation, "validation") if args.validation else None,
        Tokenizer.load(
            args.tokenizer, lambda: Settings.suited_to(sources.read_lines(train, args.corpus_errors), "auto")
        ),
        args.out,
        block_len=args.block_len,
        validation_fraction=args.validation_fraction,
        errors=args.corpus_errors,
        weights=args.weights,
        runner=args.who(status),
    )


def _describe(corpus: Corpus, seconds: float | None) -> None:
    manifest = corpus.manifest
    tokens = sum(split.tokens for split in manifest.splits.values())
    took = "was there" if seconds is None else f"{seconds:.1f} s, {tokens / seconds:,.0f} tokens/s"
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
    print(f"unigram     {manifest.unigram_entropy:.3f} nats, the entropy of the training tokens")
    print(f"next        python -m xlnet_jax.train --corpus {corpus.folder}")


if __name__ == "__main__":
    command.run(main)

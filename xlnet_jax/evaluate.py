"""python -m xlnet_jax.evaluate: held-out loss and perplexity of a checkpoint on any text, and scores of sentences."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

import tyro

from xlnet_jax.api import command
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import with_objective
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings import cli
from xlnet_jax.settings.config import Config, DataConfig, MeshConfig

if TYPE_CHECKING:
    import numpy as np
    from rich.status import Status

    from data_pipelines.corpus import Corpus
    from xlnet_jax.checkpoints.pretrained import Pretrained
    from xlnet_jax.training.heldout.evaluation import Run
    from xlnet_jax.training.heldout.units import Measured

PROG = "python -m xlnet_jax.evaluate"
BATCH_SIZE = 8  # rows, for weights that bring no settings of a run along


@dataclass(frozen=True)
class Evaluate:
    """The held-out loss on a text, or, with --score or --score-text, how likely each sentence is."""

    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """a checkpoint with a tokenizer, of any format, or a run's folder"""
    text: tuple[str, ...] = ()
    """text to measure the loss on: files, globs, folders, tfds:NAME, or a folder that data_pipelines.prepare made, for
    its validation split; none = the run's own held-out text"""
    max_windows: int | None = None
    """windows to measure it on at the most, in whole batches; None = as the run, or 16,384"""
    objective: str | None = None
    """objective of the loss, by its name; None = the one that the checkpoint was trained by"""
    mem_len: int | None = None
    """positions of earlier windows that a row can attend to; None = as in training, or the paper's 384"""
    clamp_len: int | None = None
    """relative distances beyond this count as this in a loss; None = as in training"""
    same_length: bool = False
    """clm: every row of a loss sees as many positions as the memory is long, also where it was not so in training"""
    score: str | None = None
    """a file of sentences to score, one a line; or JSON Lines or Parquet"""
    score_text: tuple[str, ...] = ()
    """sentences to score"""
    orders: tuple[str, ...] = ("left-to-right",)
    """factorization orders of the scores, averaged where there are several: left-to-right, right-to-left, random:N, or
    positions of pieces as "2 0 1"; or pseudo: each piece given all others"""
    seed: int = 0
    """seed of random orders"""
    context: str = ""
    """text that stands before each sentence and is told to all its pieces, not scored"""
    max_len: int | None = None
    """most pieces of a sentence, with its context; None = the length of the run's windows, or 512"""
    out: str | None = None
    """file for the scores, .jsonl with those of each piece or .tsv with a row a sentence; None = JSON Lines on the
    standard output. Of a loss: a .json file with what is printed"""
    overwrite: bool = False
    """write over a file that is there"""
    tokenizer: str | None = None
    """a SentencePiece model, where the checkpoint came without one"""
    text_field: str = "text"
    """what holds the text of a document in JSON, Parquet and TFDS"""
    id_field: str | None = None
    """what holds the id of a sentence in JSON and Parquet; it is written beside the scores"""
    tfds_data_dir: str | None = None
    """where TFDS datasets are prepared; None = TFDS's default"""
    corpus_errors: Literal["strict", "replace"] = "strict"
    """bytes that are not UTF-8: refused, or replaced by U+FFFD"""
    dtype: Literal["float32", "bfloat16"] | None = None
    """compute type; None = the checkpoint's for a loss, float32 for scores"""
    data: DataConfig = field(default_factory=DataConfig)
    """windows of a loss; the defaults are those of the run, or the paper's; the other lengths follow --data.seq-len"""
    mesh: MeshConfig = field(default_factory=MeshConfig)

    @property
    def scores(self) -> bool:
        """Are sentences to be scored?"""
        return bool(self.score or self.score_text)

    def check(self) -> None:
        """Raises InputError on what cannot work, before anything is read."""
        from xlnet_jax.inference.scoring import check_orders
        from xlnet_jax.storage.files import demand_new_file

        if bool(self.text) + bool(self.score) + bool(self.score_text) > 1:
            raise InputError("--text, --score and --score-text each ask for something else: give one of them")
        for name, value in (("max-windows", self.max_windows), ("max-len", self.max_len)):
            if value is not None and value < 1:
                raise InputError(f"--{name} {value} must be at least 1")
        if self.scores:
            check_orders(self.orders)
        if self.out:
            ends = (".jsonl", ".tsv") if self.scores else (".json",)
            if Path(self.out).suffix not in ends:
                raise InputError(f"--out {self.out}: give a name that ends in {' or '.join(ends)}")
            demand_new_file(self.out, self.overwrite)


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Evaluates as the command line says; returns the exit code."""
    options = cli.parse(Evaluate, argv, PROG, __doc__ or "")
    options.check()
    from rich.console import Console

    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.checkpoints.pretrained import vocabulary_tokenizer
    from xlnet_jax.training.heldout.evaluation import Run

    run = Run.of(options.checkpoint)
    pretrained = load_with_tokenizer(options.checkpoint, options.tokenizer)
    vocabulary_tokenizer(pretrained)
    with Console(stderr=True).status("reading") as status:  # nothing where no terminal is
        if options.scores:
            _score(options, pretrained, run, status)
        else:
            _measure(options, argv, pretrained, run, status)
    return 0


# ---- scores of sentences --------------------------------------------------------------------------------------------


def _score(options: Evaluate, pretrained: Pretrained, run: Run | None, status: Status) -> None:
    from data_pipelines import sources, texts
    from xlnet_jax.inference.score_files import write_scores

    if options.score:
        found = sources.find([options.score], options.text_field, options.tfds_data_dir)
        given = texts.read_texts(found, "line", options.id_field, options.corpus_errors)
    else:
        numbered = enumerate(options.score_text, start=1)
        given = (texts.TextRecord(text, f"--score-text: text {number}") for number, text in numbered)
    if options.out is None:
        status.stop()  # while it shows, rich takes what is printed to where it shows
    with _opened(options.out) as file:
        total = write_scores(
            pretrained, given, options.orders, file, "tsv" if options.out and options.out.endswith(".tsv") else "jsonl",
            context=options.context, seed=options.seed, dtype=options.dtype or "float32",
            max_len=options.max_len or (run.config.data.seq_len if run else None),
            on_scored=lambda done: status.update(f"{done:,} scored"),
        )  # fmt: skip
    status.stop()
    if options.out:
        perplexity = math.exp(-total.log_likelihood / total.pieces)
        print(
            f"{options.out}: {total.texts:,} texts, {total.pieces:,} pieces, {total.log_likelihood:,.3f} nats in all, "
            f"perplexity {perplexity:,.2f} a piece"
        )


@contextlib.contextmanager
def _opened(out: str | None) -> Iterator[IO[str]]:
    """A new file, or the standard output."""
    from xlnet_jax.storage.files import complete_file

    if out is None:
        with command.printing():
            yield sys.stdout
        return
    with complete_file(out) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        yield file


# ---- the held-out loss ----------------------------------------------------------------------------------------------


def _measure(options: Evaluate, argv: Sequence[str], pretrained: Pretrained, run: Run | None, status: Status) -> None:
    from xlnet_jax.training.heldout.evaluation import evaluate
    from xlnet_jax.training.text import demand_memory

    config = _settings(options, argv, pretrained, run)
    if options.dtype:
        pretrained = dataclasses.replace(pretrained, model=replace(pretrained.model, dtype=options.dtype))
    with _corpus(options, config, pretrained, run) as (corpus, name):
        if options.mem_len is not None:
            demand_memory(corpus, config)
        counts_V, known = _known(corpus, run)
        found = evaluate(
            pretrained, corpus, config, counts_V, lambda number, of: status.update(f"batch {number:,} of {of:,}")
        )
        status.stop()
        _print(found, config, corpus, name, options.checkpoint, known)
    if options.out:
        _save(found, Path(options.out))


def _settings(options: Evaluate, argv: Sequence[str], pretrained: Pretrained, run: Run | None) -> Config:
    """Those of the run or of the paper, with what the command line says."""
    from data_pipelines import windows
    from xlnet_jax.training.heldout.evaluation import trained_mem_len

    objective = options.objective or (run.config.objective if run else pretrained.objective)
    base = with_objective(run.config if run else Config(data=DataConfig(batch_size=BATCH_SIZE)), objective)
    trained = trained_mem_len(pretrained, run)
    data = base.data
    given = cli.parse(Evaluate, argv, PROG, __doc__ or "", replace(options, data=data)).data
    if given.seq_len != data.seq_len:
        data = windows.resized(data, max(given.seq_len, 1))
        trained = trained * data.seq_len // base.data.seq_len
        given = cli.parse(Evaluate, argv, PROG, __doc__ or "", replace(options, data=data)).data
    carried = given.reuse_len * (given.windows_per_block - 1)
    model = replace(pretrained.model, mem_len=min(trained, carried) if options.mem_len is None else options.mem_len)
    if options.clamp_len is not None:
        model = replace(model, clamp_len=options.clamp_len)
    return replace(
        Config(),
        objective=objective,
        data=given,
        rtd=base.rtd,
        mesh=options.mesh,
        eval=replace(base.eval, max_windows=options.max_windows or base.eval.max_windows),
        model=replace(model, same_length=model.same_length or options.same_length),
    )


@contextlib.contextmanager
def _corpus(options: Evaluate, config: Config, pretrained: Pretrained, run: Run | None) -> Iterator[tuple[Corpus, str]]:
    """The text as a corpus, and its name."""
    from data_pipelines import sources
    from data_pipelines.corpus import Corpus, is_corpus
    from xlnet_jax.training.heldout.evaluation import corpus_of

    prepared = [name for name in options.text if is_corpus(name)]
    if prepared and len(options.text) > 1:
        raise InputError(f"--text {prepared[0]} is a prepared corpus: it stands alone")
    if prepared:
        yield Corpus(prepared[0]), prepared[0]
    elif options.text:
        assert pretrained.tokenizer
        found = sources.find(options.text, options.text_field, options.tfds_data_dir, "validation")
        with corpus_of(found, pretrained.tokenizer, config, options.corpus_errors) as corpus:
            yield corpus, sources.name_of(found)
    elif run and (own := run.corpus()):
        yield own, str(own.folder)
    else:
        raise InputError(
            "--text names no text, and the checkpoint stands beside no corpus: give --text, or --score FILE"
        )


def _known(corpus: Corpus, run: Run | None) -> tuple[np.ndarray, str]:
    """How often each piece occurs in the text that the unigram line knows, and what that text is."""
    with contextlib.suppress(InputError):  # a damaged corpus is no obstacle to the loss on another text
        if run and (own := run.corpus()) and len(own.unigram_counts) == corpus.manifest.vocab_size:
            return own.unigram_counts, "the run's training text"
    made_from = corpus.manifest.made_from
    alone = made_from.get("validation") and made_from["validation"] == made_from.get("train")
    return corpus.unigram_counts, "this text itself" if alone else "the corpus' training text"


def _print(found: Measured, config: Config, corpus: Corpus, name: str, checkpoint: str, known: str) -> None:
    c, m, split = config.data, config.model, corpus.manifest.splits["validation"]
    dropped = f", {split.dropped_tokens:,} behind the last left out" if split.dropped_tokens else ""
    side = f"{abs(found.unigram - found.loss):.4f} {'below' if found.loss < found.unigram else 'above'}"
    lines = [
        f"checkpoint  {checkpoint}: {m.num_layers} layers x {m.d_model}, {m.dtype}",
        f"text        {name}: {split.blocks:,} blocks of {corpus.block_len:,} tokens{dropped}",
        f"windows     {found.windows:,} of {c.seq_len} tokens, {c.batch_size} a batch, memory {m.mem_len}",
        f"targets     {found.targets:,} pieces",
        f"loss        {found.loss:.4f} nats a piece, {side} the unigram line",
        f"unigram     {found.unigram:.4f} nats a piece, by the frequencies of {known}",
        *_units(found),
    ]
    of = found.besides
    if "pair_loss" in of:
        lines += [f"pairs       {of['pair_loss']:.4f} nats, {of['pair_accuracy']:.2%} right"]
    if "detection_loss" in of:
        lines += [
            f"detection   {of['detection_loss']:.4f} nats a token, {of['detection_accuracy']:.2%} right, where "
            f"{of['replaced_share']:.2%} are replaced: the loss above is the generator's"
        ]
    with command.printing():
        print("\n".join(lines))


def _units(found: Measured) -> Iterator[str]:
    """The loss in other units, as far as it can be said in them."""
    if objective_named(found.objective).loss == "pseudo":
        yield f"pseudo      perplexity {found.perplexity:,.2f} a masked piece: no likelihood of the text follows"
        return
    of_words = ""
    if found.is_likelihood and found.word_perplexity is not None:
        of_words = f", {found.word_perplexity:,.2f} a word"
    of_bytes = f", {found.bits_per('bytes'):.4f} a byte" if found.is_likelihood else ""
    content = found.content
    per_piece, per_word = content.characters / content.pieces, content.pieces / max(content.words, 1)
    yield f"perplexity  {found.perplexity:,.2f} a piece{of_words}"
    yield (
        f"bits        {found.bits_per_piece:.4f} a piece, {found.bits_per('characters'):.4f} a character{of_bytes}, "
        f"{found.bits_per('words'):.4f} a word, at {per_piece:.2f} characters a piece and {per_word:.2f} pieces a word"
    )
    if found.is_likelihood:
        yield (
            f"counted     {content.pieces:,} pieces ({content.unknown:,} unknown) and {content.documents:,} ends of "
            f"documents: {content.characters:,} characters, {content.bytes:,} bytes, {content.words:,} words"
        )


def _save(found: Measured, out: Path) -> None:
    from xlnet_jax.storage.files import complete_file

    with complete_file(out) as partial:
        partial.write_text(json.dumps(found.numbers(), indent=2) + "\n")


if __name__ == "__main__":
    command.run(main)

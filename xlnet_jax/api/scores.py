"""Scores of the sentences in files, or given one by one, as JSON Lines or a table."""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from xlnet_jax.api import command
from xlnet_jax.api.command import CheckpointArgument
from xlnet_jax.api.text_source import TextSourceSettings
from xlnet_jax.errors import InputError
from xlnet_jax.settings.bounds import ANY_TEXT, at_least, check_bounds
from xlnet_jax.settings.fields import setting
from xlnet_jax.settings.keywords import with_plain_paths

if TYPE_CHECKING:
    from data_pipelines.texts import TextRecord
    from xlnet_jax.inference.score_files import Totals


@dataclass(frozen=True)
class ScoreSettings(TextSourceSettings):
    """The log-likelihood of each sentence, in nats."""

    checkpoint: CheckpointArgument
    """checkpoint with a tokenizer, in any format, the folder of a run, tiny, or a name on the Hugging Face Hub"""
    texts: tuple[str, ...] = ()
    """files of sentences, one a line, or JSON Lines or Parquet; also globs, folders, URLs, tfds:NAME or hf:NAME"""
    sentences: tuple[str, ...] = setting((), ANY_TEXT)
    """sentences to score, in place of files"""
    orders: tuple[str, ...] = ("left-to-right",)
    """factorization orders, averaged where there are several: left-to-right, right-to-left, random:N, or positions of
    pieces as "2 0 1"; or pseudo: each piece given all others"""
    seed: int = 0
    """seed of the random orders"""
    context: str = ""
    """text before each sentence that all its pieces see; it is not scored"""
    max_len: int | None = setting(None, at_least(1))
    """most pieces in a sentence, with its context; None = the length of the run's windows, or 512"""
    out: str | None = None
    """file to write, .jsonl with the scores of each piece or .tsv with a row for each sentence; None = print JSON
    Lines"""
    overwrite: bool = False
    """replace an existing file"""
    tokenizer: str | None = None
    """SentencePiece model, for a checkpoint without one"""
    id_field: str | None = None
    """field that holds the id of a sentence in JSON and Parquet; it is written beside the scores"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """compute type"""

    def check(self) -> None:
        """Raise InputError for what cannot work, before anything is read."""
        from xlnet_jax.inference.scoring import check_orders
        from xlnet_jax.storage.files import demand_new_file

        if bool(self.texts) == bool(self.sentences):
            raise InputError("give either `texts`, the names of files, or `sentences`")
        check_bounds(self)
        check_orders(self.orders)
        if self.out:
            if Path(self.out).suffix not in (".jsonl", ".tsv"):
                raise InputError(f"`out` {self.out}: give a name that ends in .jsonl or .tsv")
            demand_new_file(self.out, self.overwrite)


def score_files(settings: ScoreSettings, on_scored: Callable[[int], None] = lambda count: None) -> "Totals":
    """Write or print the scores of all sentences (`score_texts`); return their totals.

    on_scored: called with the number of sentences so far. Raises InputError for settings, texts or a checkpoint that
    cannot work; no file is left then.
    """
    settings = with_plain_paths(settings)
    settings.check()
    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.checkpoints.pretrained import vocabulary_tokenizer
    from xlnet_jax.inference.score_files import write_scores
    from xlnet_jax.training.heldout.evaluation import Run

    run = Run.of(settings.checkpoint)
    pretrained = load_with_tokenizer(settings.checkpoint, settings.tokenizer)
    vocabulary_tokenizer(pretrained)
    texts = _texts(settings)
    with _opened(settings.out) as file:
        return write_scores(
            pretrained, texts, settings.orders, file, "tsv" if (settings.out or "").endswith(".tsv") else "jsonl",
            context=settings.context, seed=settings.seed, dtype=settings.dtype,
            max_len=settings.max_len or (run.config.data.seq_len if run else None), on_scored=on_scored,
        )  # fmt: skip


def print_scores(settings: ScoreSettings) -> None:
    """Score as a command does: with progress and a summary where the scores go to a file."""
    with command.progress(shown=settings.out is not None) as show:
        total = score_files(settings, lambda done: show(f"{done:,} scored"))
    if settings.out:
        perplexity = math.exp(-total.log_likelihood / total.pieces)
        print(
            f"{settings.out}: {total.texts:,} texts, {total.pieces:,} pieces, {total.log_likelihood:,.3f} nats in all, "
            f"perplexity {perplexity:,.2f} a piece, {total.unknown / total.pieces:.2%} of the pieces unknown"
        )


def _texts(settings: ScoreSettings) -> "Iterator[TextRecord]":
    from data_pipelines import texts

    if settings.texts:
        found = settings.find(settings.texts)
        return texts.read_texts(found, "line", settings.id_field, settings.corpus_errors)
    return (texts.TextRecord(text, f"sentence {i}") for i, text in enumerate(settings.sentences, start=1))


@contextlib.contextmanager
def _opened(out: str | None) -> Iterator[IO[str]]:
    from xlnet_jax.storage.files import complete_file

    if out is None:
        with command.printing():
            yield sys.stdout
        return
    with complete_file(out) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        yield file

"""Log-likelihoods of texts: log p(x) = sum over t of log p(x_z(t) | x_z(<t)) for a factorization order z.

The query stream predicts each piece from the pieces before it in the order (paper, section 2.2). A causal model has
only the order from left to right: its content stream predicts, and reads <eod> before the first piece.

A text is read as its pieces, without <sep> and <cls>. In pretraining a target sees most of its window. Here the first
pieces of an order see almost nothing, unless there is a context, which all pieces see.
"""

import contextlib
import csv
import itertools
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from data_pipelines.sources import TextSourceSettings
from xlnet_jax.errors import InputError
from xlnet_jax.printing import printing_until_unread, progress
from xlnet_jax.settings.fields import (
    ANY_TEXT,
    CheckpointArgument,
    at_least,
    check_bounds,
    list_of_texts,
    setting,
    with_plain_paths,
)
from xlnet_jax.storage.files import complete_file, demand_new_file

if TYPE_CHECKING:
    from data_pipelines.sources import TextRecord
    from xlnet_jax.checkpoints.pretrained import Pretrained
    from xlnet_jax.inference.log_probs import Query

LEFT_TO_RIGHT, RIGHT_TO_LEFT, RANDOM, PSEUDO = "left-to-right", "right-to-left", "random:", "pseudo"
_ORDER = re.compile(rf"{LEFT_TO_RIGHT}|{RIGHT_TO_LEFT}|{RANDOM}[1-9]\d*|\d+( \d+)*")
MAX_LEN = 512  # pieces, as in the released models (paper, section 3.1)
BATCH_TOKENS = 4096
TEXTS_AT_ONCE = 512  # read from files
DIGITS = 6


@dataclass(frozen=True)
class ScoreSettings(TextSourceSettings):
    """The log-likelihood of each sentence, in nats."""

    checkpoint: CheckpointArgument
    """folder of a run or of any other checkpoint, tiny, or a name on the Hugging Face Hub"""
    texts: tuple[str, ...] = ()
    """files with one sentence per line, JSON Lines or Parquet; also globs, folders, URLs, tfds:NAME or hf:NAME"""
    sentences: tuple[str, ...] = setting((), ANY_TEXT)
    """sentences to score, instead of files"""
    orders: tuple[str, ...] = (LEFT_TO_RIGHT,)
    """factorization orders; several are averaged: left-to-right, right-to-left, random:N, or positions of pieces such
    as "2 0 1"; or pseudo: each piece given all others"""
    seed: int = 0
    """seed of the random orders"""
    context: str = ""
    """text before each sentence, which all its pieces see; it is not scored"""
    max_len: int | None = setting(None, at_least(1))
    """maximum number of pieces in a sentence with its context; None = the window length of the run, or 512"""
    out: str | None = None
    """file to write: .jsonl with the scores of each piece, or .tsv with a row for each sentence; None = print JSON
    Lines"""
    overwrite: bool = False
    """replace an existing file"""
    tokenizer: str | None = None
    """SentencePiece model, for a checkpoint without a tokenizer"""
    id_field: str | None = None
    """field with the id of a sentence in JSON and Parquet, copied to the output"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """compute type"""


class Totals(NamedTuple):
    """Totals over all texts."""

    texts: int
    pieces: int
    log_likelihood: float  # nats
    unknown: int  # <unk> pieces


class TextScore(NamedTuple):
    """Scores of a text, in nats. With `pseudo` every piece sees all others: the sum is a pseudo-log-likelihood, and
    exp(sum) is not a probability of the text."""

    pieces: list[str]
    log_probs_OP: np.ndarray  # float32 [orders, pieces], pieces in the order of the text

    @property
    def log_likelihoods_O(self) -> np.ndarray:
        """Log-likelihood of the text under each order, float64 [orders]."""
        return self.log_probs_OP.sum(axis=1, dtype=np.float64)

    @property
    def log_likelihood(self) -> float:
        """Mean log-likelihood over the orders; pretraining maximizes its expectation over all orders."""
        return float(self.log_likelihoods_O.mean())

    @property
    def log_mean_likelihood(self) -> float:
        """Log of the mean of p(text) over the orders: log p(text) for an order picked at random."""
        return float(np.logaddexp.reduce(self.log_likelihoods_O) - np.log(len(self.log_likelihoods_O)))

    @property
    def log_probs_P(self) -> np.ndarray:
        """Mean log-probability of each piece over the orders, float64 [pieces]; the sum is log_likelihood."""
        return self.log_probs_OP.mean(axis=0, dtype=np.float64)

    @property
    def perplexity(self) -> float:
        """Perplexity per piece."""
        return float(np.exp(-self.log_likelihood / len(self.pieces)))


def score_files(settings: ScoreSettings) -> Totals:
    """Write or print the scores of all sentences (`score_texts`) as they are read; return their totals.

    Raises InputError for invalid settings, texts or checkpoints, and then leaves no file.
    """
    settings = with_plain_paths(settings)
    if bool(settings.texts) == bool(settings.sentences):
        raise InputError("give either `texts`, names of files, or `sentences`")
    check_bounds(settings)
    check_orders(settings.orders)
    if settings.out:
        if Path(settings.out).suffix not in (".jsonl", ".tsv"):
            raise InputError(f"`out` {settings.out}: give a name that ends in .jsonl or .tsv")
        demand_new_file(settings.out, settings.overwrite)
    from data_pipelines.sources import TextRecord, read_texts
    from data_pipelines.tokenizer import UNK
    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.checkpoints.native import Run
    from xlnet_jax.checkpoints.pretrained import on_device, vocabulary_tokenizer

    run = Run.of(settings.checkpoint)
    pretrained = load_with_tokenizer(settings.checkpoint, settings.tokenizer)
    unknown_piece = vocabulary_tokenizer(pretrained).pieces[UNK]
    max_len = settings.max_len or (run.config.data.seq_len if run else MAX_LEN)
    if settings.texts:
        texts = read_texts(settings.find(settings.texts), "line", settings.id_field)
    else:
        texts = (TextRecord(text, f"sentence {i}") for i, text in enumerate(settings.sentences, start=1))
    pretrained = on_device(pretrained, settings.dtype)
    as_table = (settings.out or "").endswith(".tsv")
    likelihood = "pseudo_log_likelihood" if PSEUDO in settings.orders else "log_likelihood"
    done, pieces, log_likelihood, unknown = 0, 0, 0.0, 0
    with progress(shown=settings.out is not None) as show, _open(settings.out) as file:
        while records := list(itertools.islice(texts, TEXTS_AT_ONCE)):
            if not done:
                pretrained.demand_tokenizer().demand_known((r.text for r in records), "the text")
            scores = score_texts(
                pretrained, [r.text for r in records], settings.orders, context=settings.context, seed=settings.seed,
                max_len=max_len, names=[r.where for r in records],
            )  # fmt: skip
            for record, score in zip(records, scores, strict=True):
                _write_record(file, as_table, done, record, score, likelihood)
                done, pieces = done + 1, pieces + len(score.pieces)
                log_likelihood += score.log_likelihood
                unknown += score.pieces.count(unknown_piece)
            show(f"{done:,} scored")
        if not done:
            raise InputError("there is no text to score")
    return Totals(done, pieces, log_likelihood, unknown)


def print_scores(settings: ScoreSettings) -> None:
    """Write the scores and print their totals, or print the scores."""
    total = score_files(settings)
    if settings.out:
        perplexity = math.exp(-total.log_likelihood / total.pieces)
        print(
            f"{settings.out}: {total.texts:,} texts, {total.pieces:,} pieces, {total.log_likelihood:,.3f} nats in all, "
            f"perplexity {perplexity:,.2f} a piece, {total.unknown / total.pieces:.2%} of the pieces unknown"
        )


def score_texts(
    pretrained: "Pretrained",
    texts: str | Iterable[str],
    orders: str | Sequence[str] = LEFT_TO_RIGHT,
    *,
    context: str = "",
    seed: int = 0,
    max_len: int = MAX_LEN,
    batch_tokens: int = BATCH_TOKENS,
    names: Sequence[str] | None = None,
) -> list[TextScore]:
    """Return the scores of each text, in the order of the texts.

    orders: one or several of `left-to-right`, `right-to-left`, `random:N` (N orders, which depend only on the seed and
    the length of the text), and permutations of the positions of the pieces, counted from 0, such as "2 0 1"; or only
    `pseudo`. context: text before each text, which all pieces see. max_len: maximum number of pieces in a text with its
    context. batch_tokens: tokens in a batch; does not change the scores. names: names of the texts in errors.

    Raises InputError for orders that do not exist, do not fit a text, or that a causal model does not support; for
    texts without pieces, or longer than max_len; for a checkpoint without a tokenizer or vocabulary scores, or trained
    on masked pieces.
    """
    from data_pipelines.tokenizer import EOD
    from xlnet_jax.checkpoints.pretrained import scoring_tokenizer, vocabulary_tokenizer
    from xlnet_jax.inference import log_probs

    texts, orders = list_of_texts(texts), list_of_texts(orders, "orders")
    check_orders(orders)
    is_causal = pretrained.reads_left_to_right
    if is_causal and orders != [LEFT_TO_RIGHT]:
        raise InputError(
            f"`orders` {' '.join(orders)}: the checkpoint reads from left to right ({pretrained.objective}), so "
            f"{LEFT_TO_RIGHT} is the only order that it can score"
        )
    tokenizer = (vocabulary_tokenizer if is_causal else scoring_tokenizer)(pretrained)
    context_ids, *encoded = tokenizer.encode_lines([context, *texts])
    pieces = [[tokenizer.pieces[i] for i in ids_L] for ids_L in encoded]
    names = names or [f"text {i}" for i in range(len(texts))]
    for name, ids_L in zip(names, encoded, strict=True):
        if not len(ids_L):
            raise InputError(f"{name} has no pieces: the tokenizer removes all of it")
        if (length := len(context_ids) + len(ids_L)) > max_len:
            raise InputError(
                f"{name} has {length} pieces with the context, more than {max_len}: split it, or raise `max_len`"
            )
    if is_causal:
        rows = [np.concatenate([[EOD], context_ids, ids_L]) for ids_L in encoded]
        found = log_probs.causal_log_likelihoods(pretrained, rows, batch_tokens)
        scores_OP = [row_L[None, len(context_ids) :] for row_L in found]
    else:
        reads = [f"{name}, which reads: {' '.join(own)}" for name, own in zip(names, pieces, strict=True)]
        queries = [_queries(context_ids, ids, orders, seed, where) for ids, where in zip(encoded, reads, strict=True)]
        together = iter(log_probs.log_likelihoods(pretrained, [q for own in queries for q in own], batch_tokens))
        each = [[next(together) for _ in own] for own in queries]
        scores_OP = [np.concatenate(rows)[None] if orders == [PSEUDO] else np.stack(rows) for rows in each]
    return [TextScore(own, score_OP) for own, score_OP in zip(pieces, scores_OP, strict=True)]


def check_orders(orders: Sequence[str]) -> None:
    """Raise InputError for orders that do not exist."""
    if list(orders) != [PSEUDO] and not (orders and all(map(_ORDER.fullmatch, orders))):
        raise InputError(
            f"`orders` {', '.join(orders)}: give one or several of {LEFT_TO_RIGHT}, {RIGHT_TO_LEFT}, {RANDOM}8 (any "
            f'number) and positions of the pieces, such as "2 0 1"; or only {PSEUDO}'
        )


def _queries(context_ids: np.ndarray, ids_L: np.ndarray, orders: Sequence[str], seed: int, name: str) -> "list[Query]":
    from xlnet_jax.inference.log_probs import Query

    row_L = np.concatenate([context_ids, ids_L])
    places_P = np.arange(len(ids_L))
    positions_P = len(context_ids) + places_P
    if PSEUDO in orders:
        # One query per piece: with several targets, other content rows would leak a piece to its own query row.
        return [Query(row_L, positions_P[i : i + 1], places_P[:1]) for i in places_P]
    return [
        Query(row_L, positions_P, np.argsort(order_P))
        for order in orders
        for order_P in _permutations(order, len(ids_L), seed, name)
    ]


def _permutations(order: str, length: int, seed: int, name: str) -> list[np.ndarray]:
    """Return arrays of positions in the order of prediction; argsort of one gives the rank of each position."""
    from data_pipelines.stateless import Purpose, smallest_first, uniforms

    if order == LEFT_TO_RIGHT:
        return [np.arange(length)]
    if order == RIGHT_TO_LEFT:
        return [np.arange(length)[::-1]]
    if order.startswith(RANDOM):
        draws = range(int(order.removeprefix(RANDOM)))
        drawn = [uniforms(seed, Purpose.SCORING_ORDER, draw, [length], length) for draw in draws]
        return [smallest_first(uniform)[0] for uniform in drawn]
    positions = [int(word) for word in order.split()]
    if sorted(positions) != list(range(length)):
        raise InputError(f"`orders` {order!r} must have each position of the {length} pieces exactly once in {name}")
    return [np.array(positions)]


@contextlib.contextmanager
def _open(out: str | None) -> Iterator[IO[str]]:
    if out is None:
        with printing_until_unread():
            yield sys.stdout
        return
    with complete_file(out) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        yield file


def _write_record(
    file: IO[str], as_table: bool, number: int, record: "TextRecord", score: TextScore, name: str
) -> None:
    """Write the scores of one text as a table row, after a header for the first one, or as a JSON object. name: name of
    the log-likelihood."""
    likelihood, perplexity = round(score.log_likelihood, DIGITS), round(score.perplexity, DIGITS)
    if as_table:
        table = csv.writer(file, dialect="excel-tab", lineterminator="\n")
        if number == 0:
            table.writerow(["id", name, "pieces", "perplexity", "text"])
        text_id = number if record.id is None else record.id
        table.writerow([text_id, likelihood, len(score.pieces), perplexity, record.text])
        return
    values: dict[str, Any] = {} if record.id is None else {"id": record.id}
    values |= {"text": record.text, name: likelihood, "perplexity": perplexity}
    if len(score.log_likelihoods_O) > 1:
        values["log_mean_likelihood"] = round(score.log_mean_likelihood, DIGITS)
        values["log_likelihoods"] = score.log_likelihoods_O.round(DIGITS).tolist()
    values |= {"pieces": score.pieces, "log_probs": score.log_probs_P.round(DIGITS).tolist()}
    print(json.dumps(values, ensure_ascii=False), file=file)

"""Log-likelihoods of texts: log p(x) = sum over t of log p(x_z(t) | x_z(<t)) for a factorization order z.

The query stream predicts each piece from the pieces before it in the order (paper, section 2.2). A causal model has
only the order from left to right: its content stream predicts, and reads <eod> before the first piece.

A text is read as its pieces, without <sep> and <cls>. In pretraining a target sees most of its window. Here the first
pieces of an order see almost nothing, unless there is a context, which all pieces see.

A record (data_pipelines/records.py) is read as <s>, its symbols and <eod>, as in training. All symbols see <s> and
<eod>, so p(x) is given the length; a causal model predicts <eod>, so its p(x) is over records of all lengths. The order
of fields decides what each sees: in cdr3>v,j the scores of cdr3 are log p(cdr3), and those of v and j log p(v, j |
cdr3).

A text longer than max_len is read in segments with memory (Transformer-XL: Dai et al. 2019, section 3.2): log p(x) =
sum over segments of log p(segment | memory of the segments before), with an order for each segment. Memory does not
depend on the orders (`log_probs.extend_memory`).

The masked-diffusion bound of the same network is log p(x) >= E[(n / k) sum over i in M of log p(x_i | pieces outside
M)] for k uniform in 1..n and a random set M of k of the n pieces (Hoogeboom et al. 2022, section 3; Nie et al. 2025,
section 2). The pieces of M have equal ranks: they do not see each other (likelihood.py compares the two).
"""

import contextlib
import csv
import itertools
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from xlnet_jax.errors import InputError
from xlnet_jax.inference.orders import BOUND, LEFT_TO_RIGHT, PSEUDO, check_orders, has_no_order, weighted_queries
from xlnet_jax.printing import counted, printing_until_unread, progress
from xlnet_jax.settings.common import PerTextSettings
from xlnet_jax.settings.fields import (
    ANY_TEXT,
    check_bounds,
    list_of_texts,
    setting,
    with_plain_paths,
)
from xlnet_jax.storage.outputs import new_file
from xlnet_jax.storage.programs import keep_programs

if TYPE_CHECKING:
    from data_pipelines.faults import TextRow
    from data_pipelines.tokenizer import Tokenizer
    from data_pipelines.tokenizer.symbols import SymbolPieces
    from xlnet_jax.checkpoints.pretrained import Pretrained

ENDING = "<eod>"  # the last piece of a record, which causal networks predict
MAX_LEN = 512  # pieces, as in the released models (paper, section 3.1)
BATCH_TOKENS = 4096
TEXTS_AT_ONCE = 512  # read from files
DIGITS = 6


@dataclass(frozen=True)
class ScoreSettings(PerTextSettings):
    """The log-likelihood of each sentence, in nats."""

    texts: tuple[str, ...] = ()
    """files with one sentence per line, JSON Lines or Parquet; also globs, folders, URLs, tfds:NAME or hf:NAME"""
    sentences: tuple[str, ...] = setting((), ANY_TEXT)
    """sentences to score, instead of files"""
    reference: str | None = None
    """file with one record, such as a protein, whose variants are scored instead of sentences"""
    variants: str | None = None
    """CSV or TSV file with a column of mutations of the reference, such as A24P or A24P:D30N, counted from 1"""
    measured: str | None = None
    """column of the variants with numbers: print Spearman's correlation of the scores with it"""
    orders: tuple[str, ...] = ()
    """factorization orders; several are averaged: left-to-right, right-to-left, random:N, all (of at most 6 pieces), or
    positions of pieces such as "2 0 1"; or pseudo: each piece given all others; or bound:N: the masked-diffusion bound,
    estimated from N samples; none = left-to-right, but of variants the mutated symbols given all others"""
    seed: int = 0
    """seed of the random orders and of the bound's samples"""
    context: str = ""
    """text before each sentence, which all its pieces see; it is not scored"""
    field_order: str | None = None
    """for records: the order of the fields, such as "cdr3>v,j": v and j see all of cdr3, which sees neither; inside
    cdr3, and among v and j, the orders decide; None = the orders decide alone"""
    out: str | None = None
    """file to write: .jsonl with the scores of each piece, or .tsv with a row for each sentence; None = print JSON
    Lines"""


class Totals(NamedTuple):
    """Totals over all texts, or records."""

    texts: int
    pieces: int  # or symbols
    log_likelihood: float  # nats
    unknown: int  # <unk>
    units: tuple[str, str] = ("text", "piece")


class TextScore(NamedTuple):
    """Scores of a text, in nats. With `pseudo` every piece sees all others: the sum is a pseudo-log-likelihood, and
    exp(sum) is not a probability of the text. With `bound` they are the parts of the bound, which may be below the
    log-probabilities of their pieces. A text without pieces, such as a blank one, has NaN."""

    pieces: list[str]
    log_probs_OP: np.ndarray  # float32 [orders, pieces], pieces in the order of the text
    fields: tuple[str, ...] = ()  # of a record with several fields: the field of each piece
    log_prob_of_lengths: float | None = None  # of a record's fields, which all symbols know; None = prose, or clm

    @property
    def log_likelihoods_O(self) -> np.ndarray:
        """Log-likelihood of the text under each order, float64 [orders]."""
        return self.log_probs_OP.sum(axis=1, dtype=np.float64) if self.pieces else np.full(1, np.nan)

    @property
    def log_likelihood(self) -> float:
        """Mean log-likelihood over the orders; pretraining maximizes its expectation over all orders."""
        return float(self.log_likelihoods_O.mean())

    @property
    def log_mean_likelihood(self) -> float:
        """Log of the mean of p(text) over the orders: log p(text) under their mixture."""
        if not self.pieces:
            return math.nan
        return float(np.logaddexp.reduce(self.log_likelihoods_O) - np.log(len(self.log_likelihoods_O)))

    @property
    def log_probs_P(self) -> np.ndarray:
        """Mean log-probability of each piece over the orders, float64 [pieces]; the sum is log_likelihood."""
        return self.log_probs_OP.mean(axis=0, dtype=np.float64)

    @property
    def log_likelihood_by_field(self) -> dict[str, float]:
        """Mean log-likelihood of each field over the orders, given what its order shows it; the sum is
        log_likelihood."""
        own = {name: np.array(self.fields) == name for name in dict.fromkeys(self.fields)}
        return {name: float(self.log_probs_P[is_own].sum()) for name, is_own in own.items()}

    @property
    def perplexity(self) -> float:
        """Perplexity per piece."""
        return float(np.exp(-self.log_likelihood / len(self.pieces))) if self.pieces else math.nan


def score_files(settings: ScoreSettings) -> Totals:
    """Write or print the scores of all sentences (`score_texts`) as they are read; return their totals.

    Raises InputError for invalid settings, texts or checkpoints, and then leaves no file.
    """
    settings = with_plain_paths(settings)
    if bool(settings.texts) == bool(settings.sentences):
        raise InputError("give either `texts`, names of files, or `sentences`")
    check_bounds(settings)
    check_orders(settings.orders or (LEFT_TO_RIGHT,))
    with open_output(settings) as file:
        return _write_scores(settings, file)
    return Totals(0, 0, 0.0, 0)  # the reader of the output has ended


def _write_scores(settings: ScoreSettings, file: IO[str]) -> Totals:
    from data_pipelines.faults import Faults, TextRow
    from data_pipelines.sources import find, read_texts
    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.checkpoints.native import PretrainingRun, trained_mem_len
    from xlnet_jax.checkpoints.pretrained import on_device, vocabulary_tokenizer

    run = PretrainingRun.of(settings.checkpoint)
    pretrained = load_with_tokenizer(settings.checkpoint, settings.tokenizer)
    tokenizer = vocabulary_tokenizer(pretrained)
    unknown_pieces = {tokenizer.pieces[i] for i in tokenizer.unknown_ids}
    max_len = settings.max_len or (run.config.data.seq_len if run else MAX_LEN)
    mem_len = trained_mem_len(pretrained, run) if settings.mem_len is None else settings.mem_len
    if settings.texts:
        texts = read_texts(find(settings.texts, settings, records=tokenizer.records), "line", settings.id_field)
    else:
        texts = (TextRow(f"sentence {i}", text) for i, text in enumerate(settings.sentences, start=1))
        texts = (_checked_record(tokenizer, row) for row in texts)
    pretrained = on_device(pretrained, settings.dtype)
    as_table = (settings.out or "").endswith(".tsv")
    orders = settings.orders or (LEFT_TO_RIGHT,)
    faults, done, pieces, log_likelihood, unknown = Faults(), 0, 0, 0.0, 0
    with progress(shown=settings.out is not None) as show:
        while records := list(itertools.islice(texts, TEXTS_AT_ONCE)):
            if not done:
                tokenizer.require_known((r.text for r in records), "the text")
            scores = score_texts(
                pretrained, [r.text for r in records], orders, context=settings.context, seed=settings.seed,
                field_order=settings.field_order, max_len=max_len, mem_len=mem_len, names=[r.where for r in records],
            )  # fmt: skip
            for record, score in zip(records, scores, strict=True):
                _write_record(file, as_table, done, record, score, orders[0])
                done, pieces = done + 1, pieces + len(score.pieces)
                log_likelihood += score.log_likelihood if score.pieces else 0.0
                unknown += sum(piece in unknown_pieces for piece in score.pieces)
            faults.watch(records, [bool(score.pieces) for score in scores])
            show(f"{done:,} scored")
        faults.keep("an empty score" if as_table else "null")
    units = ("record", "symbol") if tokenizer.records else ("text", "piece")
    return Totals(done, pieces, log_likelihood, unknown, units)


def print_scores(settings: ScoreSettings) -> None:
    """Write the scores and print their totals, or print the scores."""
    total = score_files(settings)
    if settings.out:
        perplexity, (text, piece) = math.exp(-total.log_likelihood / total.pieces), total.units
        print(
            f"{settings.out}: {counted(total.texts, text)}, {counted(total.pieces, piece)}, "
            f"{total.log_likelihood:,.3f} nats in all, perplexity {perplexity:,.2f} per {piece}, "
            f"{total.unknown / total.pieces:.2%} of the {piece}s unknown"
        )


def score_texts(
    pretrained: "Pretrained",
    texts: str | Iterable[str],
    orders: str | Sequence[str] = LEFT_TO_RIGHT,
    *,
    context: str = "",
    field_order: str | None = None,
    seed: int = 0,
    max_len: int = MAX_LEN,
    mem_len: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    names: Sequence[str] | None = None,
) -> list[TextScore]:
    """Return the scores of each text, in the order of the texts. A text without pieces, such as a blank one, has NaN.

    The keywords are those of `ScoreSettings`. orders: those of `random:N` depend only on the seed and the length of the
    text; `bound:N` is exact for a text that has at most N sets of pieces. A text that is longer than max_len with its
    context is read in segments, and an order is drawn for each. mem_len: None = as in the checkpoint. batch_tokens:
    tokens in a batch; does not change the scores. names: names of the texts in errors.

    Raises InputError for orders that do not exist, do not fit a text, or that a causal model does not support; for a
    checkpoint without a tokenizer or vocabulary scores, trained on masked pieces, or without the relative positions
    that memory needs.
    """
    texts, orders = list_of_texts(texts), list_of_texts(orders, "orders")
    check_orders(orders)
    if max_len < 1:
        raise InputError("max_len", max_len, "must be at least 1")
    tokenizer = require_orders(pretrained, orders)
    if context and tokenizer.records:
        raise InputError("context", repr(context), "is for prose: a record sees no other; leave it out")
    context_ids, *encoded = tokenizer.encode_lines([context, *texts])
    names = names or [f"text {i}" for i in range(len(texts))]
    pieces = [[tokenizer.pieces[i] for i in ids_P] for ids_P in encoded]
    places = [i for i, own in enumerate(pieces) if own]
    found = score_ids(
        pretrained, [encoded[i] for i in places], orders, context_ids=context_ids.tolist(), field_order=field_order,
        seed=seed, max_len=max_len, mem_len=mem_len, batch_tokens=batch_tokens,
        names=[f"{names[i]}, which reads: {' '.join(pieces[i])}" for i in places],
    )  # fmt: skip
    scores = [TextScore(own, np.zeros((1, 0), np.float32)) for own in pieces]
    for i, scores_OP in zip(places, found, strict=True):
        scores[i] = scores[i]._replace(log_probs_OP=scores_OP)
        if tokenizer.symbols:
            scores[i] = _as_record(scores[i], tokenizer.symbols, encoded[i], pretrained.is_causal)
    return scores


def _as_record(score: TextScore, symbols: "SymbolPieces", ids_P: np.ndarray, is_causal: bool) -> TextScore:
    """Return a score with what a record has: its fields, the log-probability of its lengths or, from a causal network,
    its <eod>."""
    names, field_P = [field.name for field in symbols.records.parsed], symbols.field_of_V[ids_P]
    fields = [names[i] for i in field_P]
    if is_causal:
        score, fields = score._replace(pieces=[*score.pieces, ENDING]), [*fields, ENDING]
    else:
        lengths = np.bincount(field_P, minlength=len(names)).tolist()
        score = score._replace(log_prob_of_lengths=symbols.log_prob_of_lengths(lengths))
    return score._replace(fields=tuple(fields)) if len(names) > 1 else score


def _checked_record(tokenizer: "Tokenizer", row: "TextRow") -> "TextRow":
    """Return a sentence that is a record in its usual form; prose as it is. Raises InputError for a symbol outside the
    alphabet."""
    from data_pipelines.records import FIELD

    records, values = tokenizer.records, row.text.split(FIELD)
    if records is None or len(values) != len(records.parsed):  # the tokenizer names the fields that are missing
        return row
    line, fault = records.line_of(values)
    if fault:
        raise InputError(f"{row.where} {fault}")
    return row._replace(text=line)


@keep_programs()
def score_ids(
    pretrained: "Pretrained",
    texts: Sequence[np.ndarray],
    orders: Sequence[str],
    *,
    context_ids: Sequence[int] = (),
    field_order: str | None = None,
    seed: int = 0,
    max_len: int = MAX_LEN,
    mem_len: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    names: Sequence[str],
    numbers: Sequence[int] | None = None,
) -> list[np.ndarray]:
    """Return the scores of each text, int32 [P] with at least one piece, as in `TextScore.log_probs_OP`. A record is
    its symbols; by a causal network the last score is that of the <eod> after them.

    numbers: texts of one length and number have the same random orders and samples; None = all of one length. The
    other arguments are those of `score_texts`; `require_orders` has checked the orders.
    """
    from data_pipelines.tokenizer import BOS, EOD, PAD
    from xlnet_jax.inference import log_probs

    mem_len = pretrained.model.mem_len if mem_len is None else mem_len
    tokenizer = pretrained.tokenizer
    if tokenizer and tokenizer.records:
        before, after = [BOS], [EOD]
    else:
        before, after = [*[EOD] * pretrained.is_causal, *context_ids], list[int]()
    group_of_V = _groups_of(pretrained, orders, field_order)
    rows = [np.array([*before, *ids_P, *after], np.int32) for ids_P in texts]
    if pretrained.is_causal:
        by_text = log_probs.causal_beside_likeliest(pretrained, rows, batch_tokens, max_len, mem_len)
        return [scores_L2[None, len(before) - 1 :, 0] for scores_L2 in by_text]
    lengths, parts = [len(row_L) for row_L in rows], [list[np.ndarray]() for _ in rows]
    for indices, size, _ in log_probs.batches_by_length(lengths, batch_tokens, max_len):
        longest, mems_ZBMD = lengths[indices[-1]], cast(Any, None)
        for begin in range(0, longest, max_len):
            segments = [rows[i][begin : begin + max_len] for i in indices]
            first = max(len(before) - begin, 0)
            queries: list[log_probs.Query] = []
            sums: list[tuple[np.ndarray, np.ndarray, float]] = []  # where the scores of each query are added
            for place, (i, ids_L) in enumerate(zip(indices, segments, strict=True)):
                own_P = ids_L[first : max(lengths[i] - len(after) - begin, 0)]
                if len(own_P):
                    draw = (seed, begin // max_len, numbers[i] if numbers else 0)
                    by_row = weighted_queries(orders, group_of_V[own_P], len(texts[i]), draw, names[i])
                    parts[i].append(np.zeros((len(by_row), len(own_P))))
                    mems_ZMD = None if mems_ZBMD is None else mems_ZBMD[:, place]
                    for sum_P, of_row in zip(parts[i][-1], by_row, strict=True):
                        for weight, places_P, rank_P in of_row:
                            queries.append(log_probs.Query(ids_L, first + places_P, rank_P, mems_ZMD))
                            sums.append((sum_P, places_P, weight))
            found = log_probs.log_likelihoods(pretrained, queries, batch_tokens)
            for (sum_P, places_P, weight), scores_P in zip(sums, found, strict=True):
                sum_P[places_P] += weight * scores_P
            if mem_len and begin + max_len < longest:
                ids_BL = log_probs.padded(segments, size, max_len, PAD)  # rows of texts that have ended are unused
                config = log_probs.with_mem_len(pretrained.model, mem_len)
                mems_ZBMD = log_probs.extend_memory(
                    config, pretrained.params["backbone"], ids_BL, log_probs.segment_ids(pretrained, ids_BL), mems_ZBMD
                )
    return [np.concatenate(of_text, axis=1).astype(np.float32) for of_text in parts]


def require_orders(pretrained: "Pretrained", orders: Sequence[str]) -> "Tokenizer":
    """Return the tokenizer of a checkpoint that can score in these orders. Raises InputError for other checkpoints."""
    from xlnet_jax.checkpoints.pretrained import scoring_tokenizer, vocabulary_tokenizer

    if not pretrained.is_causal:
        return scoring_tokenizer(pretrained, by_itself=list(orders) == [PSEUDO])
    if list(orders) != [LEFT_TO_RIGHT]:
        raise InputError(
            "orders",
            " ".join(orders),
            f": the checkpoint reads from left to right ({pretrained.objective}), so {LEFT_TO_RIGHT} is the only order",
        )
    return vocabulary_tokenizer(pretrained)


def _groups_of(pretrained: "Pretrained", orders: Sequence[str], field_order: str | None) -> np.ndarray:
    """Return the place of each piece's field in the order of the fields, int [V]; zeros without an order."""
    if field_order is None:
        return np.zeros(pretrained.model.vocab_size, int)
    tokenizer = pretrained.require_tokenizer()
    names = [field.name for field in tokenizer.records.parsed] if tokenizer.records else []
    groups = [group.split(",") for group in field_order.replace(" ", "").split(">")]
    if sorted(itertools.chain(*groups)) != sorted(names):
        why = f"must name each field of the checkpoint once ({', '.join(names) or 'it has none'}), as in cdr3>v,j"
        raise InputError("field_order", field_order, why)
    if pretrained.is_causal or has_no_order(orders[0]):
        why = f"the checkpoint reads from left to right ({pretrained.objective})"
        why = why if pretrained.is_causal else f"`orders` {orders[0]} has no order"
        raise InputError("field_order", field_order, f": {why}; leave it out")
    place_of = {name: place for place, group in enumerate(groups) for name in group}
    return np.array([place_of[name] for name in names])[tokenizer.field_of_V]


@contextlib.contextmanager
def open_output(settings: ScoreSettings) -> Iterator[IO[str]]:
    """Open the file to write, or the standard output. The file appears only when it is complete."""
    if settings.out and Path(settings.out).suffix not in (".jsonl", ".tsv"):
        raise InputError("out", settings.out, ": give a name that ends in .jsonl or .tsv")
    if settings.out is None:
        with printing_until_unread():
            yield sys.stdout
        return
    with new_file(settings.out, settings.overwrite) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        yield file


def numbers_of(score: TextScore, order: str) -> dict[str, Any]:
    """Return the numbers of a score as JSON has them, rounded; None for a text without pieces. order: the first of the
    orders, which decides the name of the log-likelihood."""
    names = {PSEUDO: "pseudo_log_likelihood", BOUND: "log_likelihood_bound"}
    numbers = score.log_likelihood, score.perplexity
    likelihood, perplexity = (round(number, DIGITS) if score.pieces else None for number in numbers)
    values: dict[str, Any] = {names.get(order.rstrip("0123456789"), "log_likelihood"): likelihood}
    values["perplexity"] = perplexity
    if len(score.log_likelihoods_O) > 1:
        values["log_mean_likelihood"] = round(score.log_mean_likelihood, DIGITS)
        values["log_likelihoods"] = score.log_likelihoods_O.round(DIGITS).tolist()
    if score.fields:
        by_field = score.log_likelihood_by_field.items()
        values["log_likelihood_by_field"] = {field: round(log_p, DIGITS) for field, log_p in by_field}
    if score.log_prob_of_lengths is not None:
        values["log_prob_of_lengths"] = round(score.log_prob_of_lengths, DIGITS)
    return values | {"pieces": score.pieces, "log_probs": score.log_probs_P.round(DIGITS).tolist()}


def _write_record(file: IO[str], as_table: bool, number: int, record: "TextRow", score: TextScore, order: str) -> None:
    """Write the scores of one text as a row of a table, after a header for the first one, or as a JSON object."""
    numbers = numbers_of(score, order)
    if as_table:
        table = csv.writer(file, dialect="excel-tab", lineterminator="\n")
        name, likelihood = next(iter(numbers.items()))
        if number == 0:
            table.writerow(["id", name, "pieces", "perplexity", "text"])
        text_id = number if record.id is None else record.id
        table.writerow([text_id, likelihood, len(score.pieces), numbers["perplexity"], record.text])
        return
    values: dict[str, Any] = {} if record.id is None else {"id": record.id}
    print(json.dumps({**values, "text": record.text, **numbers}, ensure_ascii=False), file=file)

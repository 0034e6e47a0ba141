"""Scores of many texts as JSON Lines or as a table, in flat memory."""

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, Literal, NamedTuple

from data_pipelines.texts import TextRecord
from data_pipelines.tokenizer import UNK
from xlnet_jax.checkpoints.pretrained import Pretrained, on_device, vocabulary_tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.inference.lengths import chunks
from xlnet_jax.inference.scoring import MAX_LEN, PSEUDO, TextScore, score_texts

TEXTS_AT_ONCE = 512
DIGITS = 6


class Totals(NamedTuple):
    """Totals over all texts."""

    texts: int
    pieces: int
    log_likelihood: float  # nats
    unknown: int  # pieces that the vocabulary does not have


def write_scores(
    pretrained: Pretrained,
    texts: Iterable[TextRecord],
    orders: Sequence[str],
    file: IO[str],
    form: Literal["jsonl", "tsv"],
    *,
    context: str = "",
    seed: int = 0,
    max_len: int | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    on_scored: Callable[[int], None] = lambda count: None,
) -> Totals:
    """Write the scores of texts (`score_texts`) as the texts are read, and return their totals.

    form: jsonl, with the scores of each piece, or tsv, a table with a row for each text. on_scored: called with the
    number of texts so far. Raises InputError where there is no text, or one cannot be scored.
    """
    pretrained = on_device(pretrained, dtype)
    done = pieces = unknown = 0
    unknown_piece = vocabulary_tokenizer(pretrained).pieces[UNK]
    log_likelihood = 0.0
    write = (_table if form == "tsv" else _lines)(file, orders)
    for records in chunks(texts, TEXTS_AT_ONCE):
        scores = score_texts(
            pretrained, [r.text for r in records], orders, context=context, seed=seed, max_len=max_len or MAX_LEN,
            names=[r.where for r in records],
        )  # fmt: skip
        for record, score in zip(records, scores, strict=True):
            write(record, score)
            unknown += score.pieces.count(unknown_piece)
            pieces, log_likelihood = pieces + len(score.pieces), log_likelihood + score.log_likelihood
        on_scored(done := done + len(records))
    if not done:
        raise InputError("there is no text to score")
    return Totals(done, pieces, log_likelihood, unknown)


Write = Callable[[TextRecord, TextScore], Any]


def _name(orders: Sequence[str]) -> str:
    return "pseudo_log_likelihood" if PSEUDO in orders else "log_likelihood"


def _lines(file: IO[str], orders: Sequence[str]) -> Write:
    def write(record: TextRecord, score: TextScore) -> None:
        values: dict[str, Any] = {} if record.id is None else {"id": record.id}
        values |= {
            "text": record.text,
            _name(orders): round(score.log_likelihood, DIGITS),
            "perplexity": round(score.perplexity, DIGITS),
        }
        if len(score.log_likelihoods_O) > 1:
            values["log_mean_likelihood"] = round(score.log_mean_likelihood, DIGITS)
            values["log_likelihoods"] = score.log_likelihoods_O.round(DIGITS).tolist()
        values |= {"pieces": score.pieces, "log_probs": score.log_probs_P.round(DIGITS).tolist()}
        print(json.dumps(values, ensure_ascii=False), file=file)

    return write


def _table(file: IO[str], orders: Sequence[str]) -> Write:
    table = csv.writer(file, dialect="excel-tab", lineterminator="\n")
    table.writerow(["id", _name(orders), "pieces", "perplexity", "text"])
    number = -1

    def write(record: TextRecord, score: TextScore) -> None:
        nonlocal number
        number += 1
        name = number if record.id is None else record.id
        likelihood, perplexity = (round(x, DIGITS) for x in (score.log_likelihood, score.perplexity))
        table.writerow([name, likelihood, len(score.pieces), perplexity, record.text])

    return write

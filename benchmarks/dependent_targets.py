"""Compare the likelihood of dependent words predicted in an order (XLNet) and independently (BERT): paper, section 2.6.

    python -m benchmarks.dependent_targets --plm runs/plm --mlm runs/mlm --train TRAIN.txt --held-out NOVEL.txt

The runs are pretraining runs of the two objectives with the same tokenizer, text and sizes. The spans come from a
held-out novel: names of several words, numbers, collocations (adjacent words with a high pointwise mutual information
in the training text) and, for comparison, random adjacent words. Each span is predicted from CONTEXT pieces on either
side:

- plm, in order: each piece sees the earlier pieces of the span;
- plm, each by itself, and mlm: no piece of the span sees another, and log-probabilities are added.

Prints the mean log-likelihood of a span in nats, and differences with 95% bootstrap intervals over spans.
"""

import argparse
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.results import keep_table
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax import load
from xlnet_jax.inference.log_probs import Query, log_likelihoods

CONTEXT = 48
"""pieces on either side of a span"""
MOST_PIECES = 8
PER_KIND = 500
DRAWS = 10_000
SENTENCE_ENDS = re.compile(r"[.?!:;\"'”’)\]_-]$")
NUMBERS = frozenset(
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million half".split()
)


# ---- spans of words --------------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """Words of a document from `begin` to `end`, without `end`."""

    kind: str
    begin: int
    end: int


def bare(word: str) -> str:
    return word.strip(".,;:?!\"'“”‘’()[]_-").lower()


def names(words: Sequence[str]) -> Iterator[Span]:
    """Yield runs of at least two capitalized words inside a sentence."""
    is_name = [
        bool(re.match(r"[A-Z][a-z]", word)) and i > 0 and not SENTENCE_ENDS.search(words[i - 1])
        for i, word in enumerate(words)
    ]
    is_title = [word in ("Mr.", "Mrs.", "Dr.", "St.") for word in words]
    for i in range(1, len(words)):
        if is_title[i - 1] and re.match(r"[A-Z][a-z]", words[i]):
            is_name[i - 1] = is_name[i] = True
    yield from _runs("name", is_name)


def numbers(words: Sequence[str]) -> Iterator[Span]:
    """Yield runs of at least two number words, which may contain "and"."""
    counts = [bare(word) in NUMBERS or word.strip(",.").isdecimal() for word in words]
    for i in range(1, len(words) - 1):
        counts[i] |= bare(words[i]) == "and" and counts[i - 1] and bare(words[i + 1]) in NUMBERS
    yield from _runs("number", counts)


def _runs(kind: str, holds: Sequence[bool]) -> Iterator[Span]:
    for held, run in groupby(range(len(holds)), key=holds.__getitem__):
        indices = list(run)
        if held and len(indices) > 1:
            yield Span(kind, indices[0], indices[-1] + 1)


def collocations(words: Sequence[str], associated: frozenset[tuple[str, str]]) -> Iterator[Span]:
    """Yield adjacent words that the training text associates."""
    for i, pair in enumerate(pairwise(map(bare, words))):
        if pair in associated and words[i] == bare(words[i]) and words[i + 1][0].islower():
            yield Span("collocation", i, i + 2)


def associated_pairs(text: str, at_least: int = 30, information: float = 6.0) -> frozenset[tuple[str, str]]:
    """Return pairs of adjacent words that occur `at_least` times in a text and have a pointwise mutual information of
    at least `information` nats."""
    words = [bare(word) for word in text.split()]
    single, double = Counter(words), Counter(pairwise(words))
    return frozenset(
        (a, b)
        for (a, b), count in double.items()
        if count >= at_least and a and b and math.log(count * len(words) / (single[a] * single[b])) >= information
    )


def any_pairs(words: Sequence[str], draw: np.random.Generator) -> Iterator[Span]:
    """Yield random adjacent words."""
    for i in draw.integers(max(len(words) - 1, 1), size=max(len(words) // 200, 1)).tolist():
        yield Span("any two words", i, i + 2)


# ---- their likelihoods -----------------------------------------------------------------------------------------------


def queries_of(tokenizer: Tokenizer, document: str, spans: Sequence[Span]) -> Iterator[tuple[Span, Query]]:
    """Yield each span with its pieces and their context. Spans near an end of the document are left out."""
    (ids,) = tokenizer.encode_lines([document])
    begins_word = [tokenizer.pieces[piece].startswith("▁") for piece in ids]  # punctuation is part of its word
    starts = np.append(np.flatnonzero(begins_word), len(ids))
    if len(starts) != len(document.split()) + 1:
        return  # some word begins inside a piece
    for span in spans:
        begin, end = starts[span.begin], starts[span.end]
        if begin >= CONTEXT and end + CONTEXT <= len(ids) and 1 < end - begin <= MOST_PIECES:
            positions = np.arange(CONTEXT, CONTEXT + end - begin)
            yield span, Query(ids[begin - CONTEXT : end + CONTEXT], positions, positions - CONTEXT)


# ---- the table -------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plm", nargs="+", required=True, help="runs of XLNet's objective, one per seed")
    parser.add_argument("--mlm", nargs="+", required=True, help="runs of BERT's objective, one per seed")
    parser.add_argument("--train", type=Path, required=True, help="training text of the runs")
    parser.add_argument("--held-out", type=Path, required=True, help="novel that is not in the training text")
    given = parser.parse_args()
    of_plm, of_mlm = ([load(path) for path in paths] for paths in (given.plm, given.mlm))
    tokenizer = of_plm[0].tokenizer
    assert tokenizer
    assert all(other.tokenizer and other.tokenizer.sha256 == tokenizer.sha256 for other in (*of_plm, *of_mlm))
    spans, queries = _examples(tokenizer, given.train.read_text(), given.held_out.read_text())
    alone = [query._replace(rank_P=np.zeros_like(query.rank_P)) for query in queries]
    scores = {
        "plm, in order": np.mean([_sums(log_likelihoods(one, queries, 4096)) for one in of_plm], 0),
        "plm, each by itself": np.mean([_sums(log_likelihoods(one, alone, 4096)) for one in of_plm], 0),
        "mlm": np.mean([_sums(log_likelihoods(one, alone, 4096)) for one in of_mlm], 0),
    }
    _report(np.array([span.kind for span in spans]), np.array([len(query.positions_P) for query in queries]), scores)


def _examples(tokenizer: Tokenizer, train: str, held_out: str) -> tuple[list[Span], list[Query]]:
    draw, associated = np.random.default_rng(0), associated_pairs(train)
    found: list[tuple[Span, Query]] = []
    for document in held_out.split("\n\n"):
        words = document.split()
        spans = [*names(words), *numbers(words), *collocations(words, associated), *any_pairs(words, draw)]
        found += queries_of(tokenizer, " ".join(words), spans)
    kept: list[tuple[Span, Query]] = []
    for kind in dict.fromkeys(span.kind for span, _ in found):
        of_kind = [example for example in found if example[0].kind == kind]
        chosen = draw.permutation(len(of_kind))[:PER_KIND]
        kept += [of_kind[i] for i in sorted(chosen.tolist())]
    return [span for span, _ in kept], [query for _, query in kept]


def _sums(scores: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([float(of_span.sum(dtype=np.float64)) for of_span in scores])


def _report(kinds: np.ndarray, pieces: np.ndarray, scores: dict[str, np.ndarray]) -> None:
    ordered, *others = scores
    head = ("spans", "number", "pieces", *scores, *(f"{ordered} - {other}" for other in others))
    rows = []
    for kind in dict.fromkeys(kinds.tolist()):
        chosen = kinds == kind
        means = [f"{of_all[chosen].mean():.2f}" for of_all in scores.values()]
        gains = [_with_interval((scores[ordered] - scores[other])[chosen]) for other in others]
        rows.append((kind, f"{chosen.sum():,}", f"{pieces[chosen].mean():.1f}", *means, *gains))
    keep_table("dependent-targets", head, rows)


def _with_interval(gains: np.ndarray) -> str:
    drawn = np.random.default_rng(0).choice(gains, (DRAWS, len(gains))).mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{gains.mean():+.2f} ({low:+.2f} to {high:+.2f})"


if __name__ == "__main__":
    main()

"""Effects of mutations: log p(variant) - log p(reference), in nats.

By default the other symbols of the reference are visible, and the mutated positions are predicted one after the other
(the chain rule), each in a pass of its own in which all that is visible is context. So the score of several mutations
is an exact joint likelihood, for each order of their positions; it is averaged over all orders of up to 3 positions,
or over 6 random ones. A network of masked pieces has no chain: all mutated positions are masked at once and each is
predicted by itself ("masked marginals": Meier et al. 2021, "Language models enable zero-shot prediction of the effects
of mutations on protein function", equation 1).

With orders of the whole sequence, which are the same for the reference and its variants, and for a causal network, the
score is the difference of two log-likelihoods of `score.score_ids`.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from xlnet_jax.errors import InputError
from xlnet_jax.inference.orders import ALL, LEFT_TO_RIGHT, PSEUDO, RANDOM, check_orders, permutations
from xlnet_jax.inference.score import (
    BATCH_TOKENS,
    DIGITS,
    MAX_LEN,
    TEXTS_AT_ONCE,
    ScoreSettings,
    open_output,
    require_orders,
    score_ids,
)
from xlnet_jax.printing import counted, progress, tell
from xlnet_jax.settings.fields import check_bounds, list_of_texts, with_plain_paths

if TYPE_CHECKING:
    from data_pipelines.tokenizer import Tokenizer
    from xlnet_jax.checkpoints.pretrained import Pretrained
    from xlnet_jax.inference.log_probs import Query

MUTANT = "mutant"  # name of the column, as in DeepSequence and ProteinGym
WILD_TYPE = frozenset({"", "wt", "_wt", "wildtype", "wild type"})
ORDERS, MOST_IN_ALL = 6, 3  # orders of mutated positions; positions whose orders are not more
RESAMPLES = 1_000
SAMPLED_ROWS = 100  # in which a column of mutations is looked for
_MUTATION = re.compile(r"([^\W\d_])(\d+)(\S)")
_BETWEEN = re.compile(r"\s*[:,;]\s*")

Change = tuple[tuple[int, int], ...]
"""Mutated positions, from 0 and ascending, and their new symbols"""


class Correlation(NamedTuple):
    """Spearman's rho with a 95 % bootstrap interval over variants."""

    rho: float
    low: float
    high: float
    variants: int  # with a number


# ---- scores ----------------------------------------------------------------------------------------------------------


def score_variants(
    pretrained: "Pretrained",
    reference: str,
    mutants: str | Iterable[str],
    orders: str | Sequence[str] = PSEUDO,
    *,
    seed: int = 0,
    max_len: int = MAX_LEN,
    mem_len: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    names: Sequence[str] | None = None,
) -> np.ndarray:
    """Return log p(variant) - log p(reference) of each mutant, float64 [mutants], in nats; of a wild type 0.

    reference: a record of one field, such as "MKTAYIAK". mutants: such as "K2R" or "K2R:Y5F", with positions counted
    from 1; "WT" or nothing is the wild type. orders: pseudo = the mutated symbols given all others; the others are
    those of `score_texts`, of the whole sequence. A causal network has only left-to-right, and takes it by default. A
    reference that is longer than max_len is read around the mutations or, with orders, in segments. The keywords are
    those of `score_texts`; names: names of the mutants in errors.

    Raises InputError for mutations that do not fit the reference, for a checkpoint that does not read records of one
    field, and as `score_texts`.
    """
    mutants, orders = list_of_texts(mutants, "mutants"), list_of_texts(orders, "orders")
    check_orders(orders)
    tokenizer = require_variants(pretrained)
    if pretrained.is_causal and orders == [PSEUDO]:
        orders = [LEFT_TO_RIGHT]
    (ids_L,) = tokenizer.encode_lines([reference])
    if not len(ids_L):
        raise InputError("reference", "", "has no symbols")
    names = names or [f"mutants[{i}]" for i in range(len(mutants))]
    read_change = _reader_of_changes(tokenizer, ids_L)
    changes = [read_change(*row) for row in zip(mutants, names, strict=True)]
    found = sorted({change for change in changes if change})
    if orders == [PSEUDO]:
        scores = _given_the_rest(pretrained, ids_L, found, seed, max_len, batch_tokens)
    else:
        require_orders(pretrained, orders)
        rows = [ids_L, *(_mutated(ids_L, change) for change in found)]
        by_row = score_ids(
            pretrained, rows, orders, seed=seed, max_len=max_len, mem_len=mem_len, batch_tokens=batch_tokens,
            names=["the reference", *map(str, found)],
        )  # fmt: skip
        of_reference, *scores = (float(scores_OP.sum(1, dtype=np.float64).mean()) for scores_OP in by_row)
        scores = [score - of_reference for score in scores]
    score_of = dict(zip(found, scores, strict=True))
    return np.array([score_of.get(change, 0.0) for change in changes])


def require_variants(pretrained: "Pretrained") -> "Tokenizer":
    """Return the tokenizer of a checkpoint that scores variants. Raises InputError for others."""
    tokenizer = require_orders(pretrained, [LEFT_TO_RIGHT if pretrained.is_causal else PSEUDO])
    if tokenizer.records is None or len(tokenizer.records.parsed) > 1:
        what = "records of several fields" if tokenizer.records else "prose"
        raise InputError(f"the checkpoint reads {what}: variants need one that was trained on records of one field")
    return tokenizer


def _reader_of_changes(tokenizer: "Tokenizer", ids_L: np.ndarray) -> Callable[[str, str], Change]:
    """Return the function from a mutant and its name to what it changes. It raises InputError, which begins with the
    name, for mutations that do not fit the reference."""
    (field,) = tokenizer.records.parsed if tokenizer.records else ()
    id_of = {piece: i for i, piece in enumerate(tokenizer.pieces)}
    symbols = [tokenizer.pieces[i] for i in ids_L]

    def read_change(mutant: str, name: str) -> Change:
        mutations, change = read_mutations(mutant.upper() if field.alphabet else mutant), dict[int, int]()
        if mutations is None:
            raise InputError(
                f"{name}: {mutant!r} is neither a mutation, such as A24P, nor a list of them, such as A24P:D30N"
            )
        for before, number, after in mutations:
            if not 1 <= number <= len(symbols):
                raise InputError(f"{name}: {mutant} is beyond the {len(symbols):,} symbols of the reference")
            if (there := symbols[number - 1]) != before:
                raise InputError(f"{name}: {mutant} mutates {before}, but the reference has {there} at {number}")
            if after not in id_of:
                raise InputError(f"{name}: {mutant} has the symbol {after!r}, which the checkpoint does not know")
            if number - 1 in change:
                raise InputError(f"{name}: {mutant} mutates position {number} twice")
            change[number - 1] = id_of[after]
        return tuple((place, symbol) for place, symbol in sorted(change.items()) if symbol != ids_L[place])

    return read_change


def read_mutations(mutant: str) -> list[tuple[str, int, str]] | None:
    """Return (symbol, position from 1, new symbol) of each mutation; None for other text."""
    if mutant.strip().lower() in WILD_TYPE:
        return []
    found = [_MUTATION.fullmatch(word) for word in _BETWEEN.split(mutant.strip())]
    return None if None in found else [(m[1], int(m[2]), m[3]) for m in found if m]


def _mutated(ids_L: np.ndarray, change: Iterable[tuple[int, int]]) -> np.ndarray:
    ids_L = ids_L.copy()
    for position, symbol in change:
        ids_L[position] = symbol
    return ids_L


def _given_the_rest(
    pretrained: "Pretrained", ids_L: np.ndarray, changes: Sequence[Change], seed: int, max_len: int, batch_tokens: int
) -> list[float]:
    """Return the log-ratio of each change, given the symbols that it does not change.

    Passes are shared: one predicts all symbols at its hidden positions, given the symbols that are visible.
    """
    from xlnet_jax.inference.log_probs import log_probs_of_vocabulary
    from xlnet_jax.objectives.registry import objective_named

    has_chain = objective_named(pretrained.objective).order is not None
    passes: dict[tuple[int, Change, tuple[int, ...]], int] = {}  # numbers by (first symbol, visible changes, hidden)
    terms: list[list[tuple[float, int, int, int]]] = []  # of each change: (weight, pass, slot, symbol)
    for change in changes:
        positions, count = [position for position, _ in change], len(change)
        begin = _first_symbol(positions, len(ids_L), max_len)
        word = (ALL if count <= MOST_IN_ALL else f"{RANDOM}{ORDERS}") if has_chain else LEFT_TO_RIGHT
        orders = [order.tolist() for order in permutations(word, count, count, (seed, 0, 0), "")]
        of_change = list[tuple[float, int, int, int]]()
        for order in orders:
            for step, place in enumerate(order):
                hidden = tuple(sorted(positions[i] for i in (order[step:] if has_chain else order)))
                seen = tuple(sorted(change[i] for i in (order[:step] if has_chain else ())))
                position, symbol = change[place]
                for weight, visible, predicted in ((1, seen, symbol), (-1, (), int(ids_L[position]))):
                    number = passes.setdefault((begin, visible, hidden), len(passes))
                    of_change.append((weight / len(orders), number, hidden.index(position), predicted))
        terms.append(of_change)
    queries = [_query(_mutated(ids_L, visible), begin, hidden, max_len) for begin, visible, hidden in passes]
    found = log_probs_of_vocabulary(pretrained, queries, batch_tokens)
    return [sum(weight * float(found[number][slot, symbol]) for weight, number, slot, symbol in of) for of in terms]


def _first_symbol(positions: Sequence[int], length: int, max_len: int) -> int:
    """Return the first symbol of the part of a reference that is read: its middle is that of the positions. Raises
    InputError if they are too far from each other."""
    room = max_len - 2  # <s> and <eod>
    if (span := positions[-1] - positions[0] + 1) > room:
        numbers = f"{positions[0] + 1} and {positions[-1] + 1}"
        raise InputError("max_len", max_len, f"is less than the {span:,} symbols from mutation {numbers}: raise it")
    return min(max((positions[0] + positions[-1] + 1 - room) // 2, 0), max(length - room, 0))


def _query(ids_L: np.ndarray, begin: int, hidden: Sequence[int], max_len: int) -> "Query":
    """Return the query of a pass: hidden positions do not see each other; <s> and <eod> stand only at the ends of the
    reference."""
    from data_pipelines.tokenizer import BOS, EOD
    from xlnet_jax.inference.log_probs import Query

    end = begin + max_len - 2
    row_L = [*[BOS] * (begin == 0), *ids_L[begin:end], *[EOD] * (end >= len(ids_L))]
    positions_P = np.array(hidden) - begin + (begin == 0)
    return Query(np.array(row_L, np.int32), positions_P, np.zeros_like(positions_P))


# ---- the command -----------------------------------------------------------------------------------------------------


def print_variants(settings: ScoreSettings) -> None:
    """Write or print the score of each variant of a reference, and their correlation with a measured column.

    Raises InputError for invalid settings, files or checkpoints, and then leaves no file.
    """
    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.checkpoints.native import PretrainingRun, trained_mem_len
    from xlnet_jax.checkpoints.pretrained import on_device

    settings = with_plain_paths(settings)
    check_bounds(settings)
    if not (settings.reference and settings.variants):
        raise InputError("give both `reference`, a file with one record, and `variants`, a table of mutations")
    if settings.texts or settings.sentences or settings.context or settings.field_order:
        raise InputError("`variants` are scored alone: leave `texts`, `sentences`, `context` and `field_order` out")
    orders = settings.orders or (PSEUDO,)
    check_orders(orders)
    run = PretrainingRun.of(settings.checkpoint)
    pretrained = load_with_tokenizer(settings.checkpoint, settings.tokenizer)
    reference = _read_reference(settings, require_variants(pretrained))
    column, rows = _read_variants(settings.variants)
    mutants, names = [row[column] for row in rows], [f"{settings.variants}: row {i + 1}" for i in range(len(rows))]
    measured = _numbers(settings, rows) if settings.measured else None
    max_len = settings.max_len or (run.config.data.seq_len if run else MAX_LEN)
    mem_len = trained_mem_len(pretrained, run) if settings.mem_len is None else settings.mem_len
    pretrained = on_device(pretrained, settings.dtype)
    (ids_L,) = pretrained.require_tokenizer().encode_lines([reference])
    if len(ids_L) + 2 > max_len:
        part = "in segments" if orders != (PSEUDO,) or pretrained.is_causal else "around the mutations"
        tell(f"{settings.reference}: {len(ids_L):,} symbols are more than the window, {max_len}: they are read {part}")
    scores: list[float] = []
    with open_output(settings) as file:
        with progress(shown=settings.out is not None) as show:
            for first in range(0, len(rows), TEXTS_AT_ONCE):
                chunk = slice(first, first + TEXTS_AT_ONCE)
                scores += score_variants(
                    pretrained, reference, mutants[chunk], orders, seed=settings.seed, max_len=max_len,
                    mem_len=mem_len, names=names[chunk],
                ).tolist()  # fmt: skip
                show(f"{len(scores):,} scored")
        _write_variants(file, settings, mutants, scores, measured)
    line = f"{counted(len(rows), 'variant')} of a reference of {len(ids_L):,} symbols"
    if measured is not None:
        c = correlate(scores, measured, settings.seed)
        left_out = f", {len(rows) - c.variants:,} rows have no number" if c.variants < len(rows) else ""
        line += (
            f"; Spearman's rho with {settings.measured} {c.rho:.3f} [{c.low:.3f}, {c.high:.3f}] on {c.variants:,} "
            f"variants{left_out}"
        )
    print(f"{settings.out}: {line}") if settings.out else tell(line)


def correlate(scores: Sequence[float], measured: Sequence[float], seed: int = 0) -> Correlation:
    """Return Spearman's correlation of scores with measured numbers; NaN = not measured."""
    import scipy.stats

    is_measured = np.isfinite(measured)
    pairs_N2 = np.column_stack([scores, measured])[is_measured]
    count, rng = len(pairs_N2), np.random.default_rng(seed)
    samples = [pairs_N2, *(pairs_N2[rng.integers(count, size=count)] for _ in range(RESAMPLES))]
    with np.errstate(invalid="ignore"):  # equal numbers have no correlation: NaN
        rho, *rhos = (np.corrcoef(scipy.stats.rankdata(sample_N2, axis=0).T)[0, 1] for sample_N2 in samples)
    low, high = np.nanquantile(rhos, (0.025, 0.975))
    return Correlation(float(rho), float(low), float(high), count)


def _read_reference(settings: ScoreSettings, tokenizer: "Tokenizer") -> str:
    """Return the line of the only record of the reference."""
    from data_pipelines.sources import find, read_texts

    records = list(read_texts(find([str(settings.reference)], settings, records=tokenizer.records), "line"))
    if len(records) != 1:
        raise InputError("reference", settings.reference, f"has {len(records):,} records: give a file with exactly one")
    if records[0].fault or not records[0].text:
        raise InputError(f"{records[0].where} {records[0].fault or 'is blank'}")
    return records[0].text


def _read_variants(path: str) -> tuple[str, list[dict[str, str]]]:
    """Return the name of the column of mutations, and the rows of a table."""
    from data_pipelines.readers import numbered_lines

    lines = (line for _, line in numbered_lines(path))
    header = next(lines, "")
    delimiter = max("\t,;", key=header.count)
    (names,) = csv.reader([header], delimiter=delimiter)
    rows = [row for row in csv.DictReader(lines, names, restval="", delimiter=delimiter) if any(row.values())]
    if MUTANT in names and rows:
        return MUTANT, rows
    for name in names:
        found = [read_mutations(row[name]) for row in rows[:SAMPLED_ROWS]]
        if any(found) and None not in found:
            return name, rows
    raise InputError(
        "variants", path, f"has no column of mutations such as A24P; its columns are {', '.join(names) or 'missing'}"
    )


def _numbers(settings: ScoreSettings, rows: Sequence[dict[str, str]]) -> list[float]:
    """Return the measured number of each row; NaN = none."""
    name = str(settings.measured)
    if name not in rows[0]:
        names = ", ".join(map(str, rows[0]))
        raise InputError("measured", name, f"is no column of {settings.variants}; its columns are {names}")
    numbers = [_number(row[name]) for row in rows]
    if np.isfinite(numbers).sum() < 2:
        raise InputError("measured", name, f"has no numbers in {settings.variants}")
    return numbers


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def _write_variants(
    file: IO[str],
    settings: ScoreSettings,
    mutants: Sequence[str],
    scores: Sequence[float],
    measured: Sequence[float] | None,
) -> None:
    columns: dict[str, Sequence[object]] = {MUTANT: mutants, "score": [round(score, DIGITS) for score in scores]}
    if measured is not None:
        columns[str(settings.measured)] = [number if np.isfinite(number) else None for number in measured]
    rows: Iterator[tuple[object, ...]] = zip(*columns.values(), strict=True)
    if (settings.out or "").endswith(".tsv"):
        csv.writer(file, dialect="excel-tab", lineterminator="\n").writerows([tuple(columns), *rows])
        return
    for row in rows:
        print(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False), file=file)

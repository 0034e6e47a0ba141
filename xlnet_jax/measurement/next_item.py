"""Rank the last symbol of each record, given all before it, by a network and by two baselines (`measure_next_items`).

A target is ranked among all items, and among 100 items that its record does not hold, sampled for each record: the
protocol of SASRec (Kang and McAuley 2018, section 4.4), whose numbers are higher and may order contenders differently
(Krichene and Rendle 2020). Items are the symbols of the target's field. If no history holds an item twice, the items of
the history are not candidates. A target that is not one, or not in the vocabulary, counts as missed. Where other
candidates have the score of the target, its metrics are means over all orders of them: a constant score has those of
chance.

Popularity ranks by counts in the training part. Item-kNN adds up the cosines of the training records that hold an item
of the history with those that hold the candidate, damped for rare items by DAMPING records (Hidasi et al. 2016, section
4, and their code); the item r places before the target has the weight 1 / r (as in Ludewig and Jannach 2018).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.tokenizer import BOS, EOD, MASK, SPECIAL_PIECES
from xlnet_jax.errors import InputError
from xlnet_jax.inference.log_probs import (
    BATCH_TOKENS,
    Query,
    batches_by_length,
    next_logits,
    padded,
    query_logits_BPV,
    round_up_size,
    segment_ids,
    stack_queries,
    with_mem_len,
)
from xlnet_jax.measurement.likelihood import RESAMPLES, Estimates, estimate, lines_of, resampled_sums
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import ModelConfig

if TYPE_CHECKING:
    import scipy.sparse

    from xlnet_jax.checkpoints.pretrained import Pretrained

OnBatch = Callable[[int, int], None]
TOP = (5, 10, 20)
DRAWN = 100
MODEL, KNN, POPULARITY = "model", "item-kNN", "popularity"
MISSED = 1 << 40  # candidates above a target that counts as missed
DAMPING = 20  # lambda of the GRU4Rec code; no damping halves the hit rates on Amazon Games
FEWEST = 2  # symbols of a record
RECORDS_AT_ONCE = 256


def measure_next_items(
    pretrained: "Pretrained",
    records: Sequence[np.ndarray],
    train: Sequence[np.ndarray] | None,
    is_item_V: np.ndarray,
    *,
    seed: int,
    max_len: int,
    on_batch: OnBatch = lambda number, batches: None,
) -> Estimates:
    """Return the hit rate, NDCG and MRR of the network and, with a training part, of the baselines: a table by kind of
    candidates, with differences that are paired by record.

    records, train: ids of the symbols of each record, int32 [E], without <s> and <eod>, in the order of time.
    is_item_V: the symbols that can be last. max_len: length of the network's windows, which hold the newest symbols.
    on_batch: called before each batch with its number, from 1, and the number of batches. Raises InputError if no
    record has two symbols, or the network does not predict symbols.
    """
    ranked = [record_E for record_E in records if len(record_E) >= FEWEST]
    if not ranked:
        raise InputError(f"next_item: none of the {len(records):,} records has {FEWEST} symbols")
    candidates = Candidates(ranked, is_item_V, seed)
    counts = {MODEL: _by_network(pretrained, candidates, max_len, on_batch)}
    if train is not None:
        counts[KNN] = _by_scores(candidates, item_knn(train, len(is_item_V)))
        counts[POPULARITY] = _by_scores(candidates, popularity(train, len(is_item_V)))
    facts = {
        "records": len(ranked),
        "left_out": len(records) - len(ranked),
        "items": int(is_item_V.sum()),
        "missed": int((~candidates.is_candidate_T).sum()),
    }
    tables = {
        f"{name} items": _table({who: above_ties_T22[:, place] for who, above_ties_T22 in counts.items()}, seed)
        for place, name in enumerate(("all", f"{DRAWN} sampled"))
    }
    return Estimates(facts, tables, _report(facts, candidates, tables, train))


# ---- metrics ---------------------------------------------------------------------------------------------------------


def metrics(above_T: np.ndarray, ties_T: np.ndarray) -> dict[str, np.ndarray]:
    """Return the metrics of each target, float64 [T], by name. above, ties: numbers of candidates that score higher,
    and as high."""
    found, ranks = dict[str, np.ndarray](), np.arange(1, max(TOP) + 1)
    for name, gains in (("HR", np.ones(len(ranks))), ("NDCG", 1 / np.log2(ranks + 1)), ("MRR", 1 / ranks)):
        for top in TOP:
            sums = np.concatenate([[0], np.cumsum(gains[:top])])
            of_ranks_T = sums[np.minimum(above_T + ties_T + 1, top)] - sums[np.minimum(above_T, top)]
            found[f"{name}@{top}"] = of_ranks_T / (ties_T + 1)
    return found


def _table(counts: Mapping[str, np.ndarray], seed: int) -> dict[str, dict[str, Any]]:
    """Return estimates by metric and contender. counts: (above, ties) of each target, int64 [T, 2]."""
    by_contender = {who: metrics(*above_ties_T2.T) for who, above_ties_T2 in counts.items()}
    if KNN in counts:
        both = by_contender[MODEL], by_contender[KNN]
        by_contender[f"{MODEL} minus {KNN}"] = {name: both[0][name] - both[1][name] for name in both[0]}
    rows_TX = np.column_stack([values_T for found in by_contender.values() for values_T in found.values()])
    means = iter((resampled_sums(rows_TX, seed) / len(rows_TX)).T)
    columns = {who: {name: estimate(next(means)) for name in found} for who, found in by_contender.items()}
    return {name: {who: column[name] for who, column in columns.items()} for name in columns[MODEL]}


def _report(
    facts: Mapping[str, int], candidates: "Candidates", tables: Mapping[str, Any], train: Sequence[np.ndarray] | None
) -> list[str]:
    left_out = f", {facts['left_out']:,} with fewer than {FEWEST} symbols left out" if facts["left_out"] else ""
    why = "because no history holds one twice" if candidates.leaves_out_history else "because histories hold some twice"
    seen = f"those of the history are {'no ' if candidates.leaves_out_history else ''}candidates, {why}"
    lines = [
        f"records     {facts['records']:,}{left_out}: the last symbol, given all before it",
        f"items       {facts['items']:,}; {seen}",
        f"missed      {facts['missed'] / facts['records']:.2%} of the last symbols, which are no candidates",
    ]
    if train is not None:
        lines.append(f"baselines   from {len(train):,} training records: cosines of items; counts")
    for name, table in tables.items():
        lines += ["", *lines_of(table, name, 4)]
    return [*lines, "", f"intervals   95 %, from {RESAMPLES:,} resamples of the records"]


# ---- candidates ------------------------------------------------------------------------------------------------------


class Candidates:
    """The targets of records, and the items that each is ranked among."""

    def __init__(self, records: Sequence[np.ndarray], is_item_V: np.ndarray, seed: int):
        self.records, self.is_item_V = records, is_item_V
        self.targets_T = np.array([record_E[-1] for record_E in records])
        histories = [record_E[:-1][is_item_V[record_E[:-1]]] for record_E in records]
        self.leaves_out_history = all(len(np.unique(of_E)) == len(of_E) for of_E in histories)
        is_seen_T = np.array([record_E[-1] in record_E[:-1] for record_E in records])
        self.is_candidate_T = is_item_V[self.targets_T] & ~(self.leaves_out_history & is_seen_T)
        items, self._drawn = np.flatnonzero(is_item_V), list[np.ndarray]()
        for number, record_E in enumerate(records):
            count = min(len(items), DRAWN + len(record_E))
            drawn = np.random.default_rng((seed, number)).choice(items, count, replace=False)
            self._drawn.append(drawn[~np.isin(drawn, record_E)][:DRAWN])

    def history(self, number: int) -> np.ndarray:
        """Return the symbols before the target of a record."""
        return self.records[number][:-1]

    def arrays(self, numbers: Sequence[int], rows: int) -> tuple[np.ndarray, ...]:
        """Return (targets [B], items that are not candidates [B, E], drawn items [B, Q]) of these records, padded with
        V to this number of rows."""
        none = len(self.is_item_V)
        seen = [self.history(number) if self.leaves_out_history else self.records[0][:0] for number in numbers]
        longest = round_up_size(max(1, *map(len, seen)), 2)
        targets_B = np.pad(self.targets_T[numbers], (0, rows - len(numbers)))
        drawn = [self._drawn[number] for number in numbers]
        return targets_B, padded(seen, rows, longest, none), padded(drawn, rows, DRAWN, none)

    def with_missed(self, above_ties_T22: np.ndarray) -> np.ndarray:
        """Return the numbers of candidates above and beside the targets, those that count as missed below all."""
        return np.where(self.is_candidate_T[:, None, None], above_ties_T22, np.array([MISSED, 0]))


@jax.jit
def _above_ties_B22(
    scores_BV: jax.Array, is_item_V: jax.Array, target_B: jax.Array, seen_BE: jax.Array, drawn_BQ: jax.Array
) -> jax.Array:
    """Return how many candidates score (higher than, as high as) the target, among (all, drawn) items: int32
    [B, 2, 2]. A score that is not a number is above all, and a target with such a score below all."""
    rows_B1, own_B1 = jnp.arange(len(target_B))[:, None], jnp.take_along_axis(scores_BV, target_B[:, None], axis=1)
    is_other_BV = jnp.broadcast_to(is_item_V, scores_BV.shape).at[rows_B1, target_B[:, None]].set(False)
    all_BV = is_other_BV.at[rows_B1, seen_BE].set(False, mode="drop")
    of_drawn_BQ = jnp.take_along_axis(scores_BV, drawn_BQ, axis=1, mode="clip")
    counts = []
    for others, scores in ((all_BV, scores_BV), (drawn_BQ < len(is_item_V), of_drawn_BQ)):
        above, ties = others & ~(scores <= own_B1), others & (scores == own_B1)
        counts.append(jnp.stack([above.sum(1), ties.sum(1)], axis=1))
    return jnp.stack(counts, axis=1)


# ---- the network -----------------------------------------------------------------------------------------------------


def _by_network(pretrained: "Pretrained", candidates: Candidates, max_len: int, on_batch: OnBatch) -> np.ndarray:
    """Return `_above_ties_B22` of all records, int64 [T, 2, 2]."""
    if pretrained.is_discriminator:
        why = "detects replaced symbols and predicts none"
        raise InputError("next_item", "", f": the checkpoint {why} ({pretrained.objective})")
    queries = [_query(candidates.history(number), max_len) for number in range(len(candidates.records))]
    lengths, found = [len(query.ids_L) for query in queries], np.zeros((len(queries), 2, 2), np.int64)
    batches = list(batches_by_length(lengths, BATCH_TOKENS))
    reads, model = _reads(pretrained), with_mem_len(pretrained.model, 0) if pretrained.is_causal else pretrained.model
    for number, (numbers, rows, length) in enumerate(batches, start=1):
        on_batch(number, len(batches))
        ids_BL, rank_BL, at_B1, _ = stack_queries([queries[i] for i in numbers], rows, length, 1)
        targets_B, *others = candidates.arrays(numbers, rows)
        segments_BL = segment_ids(pretrained, ids_BL)
        np.put_along_axis(segments_BL, at_B1, segment_ids(pretrained, targets_B[:, None]), axis=1)
        batch = ids_BL, segments_BL, rank_BL, at_B1
        counts_B22 = _program(model, reads, pretrained.params, *batch, candidates.is_item_V, targets_B, *others)
        found[numbers] = np.asarray(counts_B22)[: len(numbers)]
    return candidates.with_missed(found)


def _query(history_E: np.ndarray, max_len: int) -> Query:
    """Return the newest symbols of a history and the place of the next one. No network can read the target: `<mask>` is
    in its place."""
    newest_E = history_E[max(0, len(history_E) + 3 - max_len) :]
    ids_L = np.array([BOS, *newest_E, MASK, EOD], np.int32)
    return Query(ids_L, np.array([len(ids_L) - 2]), np.zeros(1, int))


def _reads(pretrained: "Pretrained") -> str:
    """Return what the network predicts by: the row before the target, `<mask>`, or the query stream."""
    if pretrained.is_causal:
        return "before"
    return "mask" if objective_named(pretrained.objective).filling.stream == "content" else "query"


def logits_BV(
    config: ModelConfig, reads: str, params: Any, ids_BL: jax.Array, segments_BL: jax.Array, rank_BL: jax.Array,
    at_B1: jax.Array,
) -> jax.Array:  # fmt: skip
    """Return the scores of all pieces at the place of the target."""
    if reads == "before":
        return next_logits(config, params, ids_BL, None, 0, at_B1 - 1)[0][:, 0]
    return query_logits_BPV(config, reads == "mask", params, ids_BL, segments_BL, rank_BL, at_B1, None)[:, 0]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _program(
    config: ModelConfig, reads: str, params: Any, ids_BL: jax.Array, segments_BL: jax.Array, rank_BL: jax.Array,
    at_B1: jax.Array, *others: Any,
) -> jax.Array:  # fmt: skip
    return _above_ties_B22(logits_BV(config, reads, params, ids_BL, segments_BL, rank_BL, at_B1), *others)


# ---- baselines -------------------------------------------------------------------------------------------------------

Scores = Callable[[Sequence[np.ndarray]], np.ndarray]
"""scores of all pieces after these histories, float32 [B, V]"""


def popularity(train: Sequence[np.ndarray], vocab_size: int) -> Scores:
    """Return the scores that count the symbols of the training part."""
    counts_V = np.bincount(np.concatenate([*train, []]).astype(int), minlength=vocab_size).astype(np.float32)
    return lambda histories: np.broadcast_to(counts_V, (len(histories), vocab_size))


def item_knn(train: Sequence[np.ndarray], vocab_size: int) -> Scores:
    """Return the scores that add up the cosines of each item with those of a history."""
    import scipy.sparse as sparse

    held_TV = _weights_TV(train, vocab_size, lambda places_E: np.ones(len(places_E)))
    held_TV.data = np.minimum(held_TV.data, 1)
    norms_V = np.sqrt(held_TV.sum(axis=0) + DAMPING).astype(np.float32)
    unit_TV = (held_TV @ sparse.diags_array(1 / norms_V)).tocsr()
    cosine_VV = (unit_TV.T @ unit_TV).tocsr()
    cosine_VV.setdiag(0)
    return lambda histories: (_weights_TV(histories, vocab_size, lambda places_E: 1 / places_E) @ cosine_VV).toarray()


def _weights_TV(
    records: Sequence[np.ndarray], vocab_size: int, weights_of: Callable[[np.ndarray], np.ndarray]
) -> "scipy.sparse.csr_array":
    """Return the weights of the symbols in each record by their places from its end, from 1: float32 [T, V]. Special
    pieces have none."""
    import scipy.sparse as sparse

    rows = np.repeat(np.arange(len(records)), [len(record_E) for record_E in records])
    ids = np.concatenate([*records, []]).astype(int)
    weights = np.concatenate([*(weights_of(np.arange(len(record_E), 0, -1)) for record_E in records), []])
    weights = (weights * (ids >= len(SPECIAL_PIECES))).astype(np.float32)
    found = sparse.csr_array((weights, (rows, ids)), shape=(len(records), vocab_size))
    found.sum_duplicates()
    return found


def _by_scores(candidates: Candidates, scores: Scores) -> np.ndarray:
    """Return `_above_ties_B22` of all records by a baseline, int64 [T, 2, 2]."""
    found = np.zeros((len(candidates.records), 2, 2), np.int64)
    for first in range(0, len(found), RECORDS_AT_ONCE):
        numbers = range(first, min(first + RECORDS_AT_ONCE, len(found)))
        scores_BV = scores([candidates.history(number) for number in numbers])
        others = candidates.arrays(numbers, len(numbers))
        found[first : first + RECORDS_AT_ONCE] = _above_ties_B22(scores_BV, candidates.is_item_V, *others)
    return candidates.with_missed(found)

"""Metrics of a ranking: those of trec_eval and, as in the Web tracks, of gdeval.

A document without a judgement, or with one below 0, has grade 0. DCG@k = sum over ranks i <= k of gain / log2(i + 1),
NDCG@k = DCG@k / the highest possible DCG@k; ERR@k = sum of R_i / i x product over j < i of (1 - R_j) with R = (2^grade
- 1) / 2^max_grade (Chapelle et al. 2009).
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from xlnet_jax.tasks.config import RankingConfig
from xlnet_jax.tasks.ranking.collection import best_first


def mean_scores(
    grades: Mapping[str, Mapping[str, int]], run: Mapping[str, Mapping[str, float]], settings: RankingConfig
) -> dict[str, float]:
    """Return the means over the judged queries; a query without a ranking counts as 0, as option -c of both tools has
    it.

    A query without a relevant document counts as 0 in the metrics of trec_eval (MAP, MRR, P@k, NDCG@k of linear gain)
    and is left out of those of gdeval (ERR@k, NDCG@k of exponential gain).
    """
    of_queries = [query_scores(judged, best_first(run.get(query, {})), settings) for query, judged in grades.items()]
    counted = {
        name: [s[name] for s in of_queries if not math.isnan(s[name])] for name in query_scores({}, (), settings)
    }
    return {name: fmean(values) if values else 0.0 for name, values in counted.items()}


def query_scores(grades: Mapping[str, int], ranking: Sequence[str], settings: RankingConfig) -> dict[str, float]:
    """Return the metrics of one ranking, best first, 0 to 1; relevant documents count whether ranked or not. NaN where
    the query is left out."""
    k = settings.cutoff
    found = [max(grades.get(document, 0), 0) for document in ranking]
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
    hits = [rank for rank, grade in enumerate(found, 1) if grade >= settings.relevant_from]
    relevant = sum(grade >= settings.relevant_from for grade in grades.values())
    of_none = math.nan if not ideal else 0.0
    best = _dcg(ideal[:k], settings)
    return {
        f"ndcg@{k}": _dcg(found[:k], settings) / best if best else of_none if settings.gain == "exponential" else 0.0,
        f"err@{k}": _err(found[:k], settings.max_grade) + of_none,
        "map": sum(i / rank for i, rank in enumerate(hits, 1)) / max(relevant, 1),
        "mrr": 1 / hits[0] if hits else 0.0,
        f"p@{k}": sum(rank <= k for rank in hits) / k,
    }


def _dcg(grades: Sequence[int], settings: RankingConfig) -> float:
    gains = grades if settings.gain == "linear" else [2.0**grade - 1 for grade in grades]
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def _err(grades: Sequence[int], max_grade: int) -> float:
    score, unsatisfied = 0.0, 1.0
    for rank, grade in enumerate(grades, 1):
        satisfied = (2.0**grade - 1) / 2.0**max_grade
        score += unsatisfied * satisfied / rank
        unsatisfied *= 1 - satisfied
    return score

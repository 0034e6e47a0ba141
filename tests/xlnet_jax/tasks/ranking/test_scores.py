"""NDCG, ERR, MAP, MRR and precision against the official tools' numbers and their definitions."""

import numpy as np
import pytest

from xlnet_jax.tasks.config import RankingConfig
from xlnet_jax.tasks.ranking.trec import best_first, mean_scores, query_scores

# Ties, judgements below 0, a judged document that is not ranked, one ranked that is not judged; query 3 has nothing
# relevant, query 4 no ranking.
GRADES = {"1": {"a": 4, "b": 1, "c": 0, "d": -2, "e": 2, "z": 3}, "2": {"a": 0, "b": 1, "f": 3}, "3": {"a": 0, "b": -1}}
UNRANKED = {"4": {"c": 2}}
RUN = {
    "1": {"b": 1.5, "c": 1.5, "d": 3.0, "a": 0.5, "e": -1.0, "u": 1.5},
    "2": {"a": 0.1, "b": 0.3, "c": 0.2, "f": 0.1},
    "3": {"a": 2.0, "b": 1.0},
}
GDEVAL = {"1": (0.29200, 0.19141), "2": (0.58971, 0.19922)}  # gdeval.pl 1.2a, k = 5: NDCG, ERR
TREC_EVAL = {  # by the lowest relevant grade (-l): MAP, reciprocal rank, P_5, ndcg_cut_5
    1: {"1": (0.2875, 0.25, 0.4, 0.2701026857989743), "2": (0.8333333333333333, 1.0, 0.4, 0.6885288809404666)},
    2: {"1": (0.1777777777777778, 0.2, 0.2, 0.2701026857989743), "2": (1 / 3, 1 / 3, 0.2, 0.6885288809404666)},
}  # fmt: skip


def test_ndcg_and_err_are_those_of_gdeval():
    for query, expected in GDEVAL.items():
        found = query_scores(GRADES[query], best_first(RUN[query]), RankingConfig(cutoff=5))
        np.testing.assert_allclose([found["ndcg@5"], found["err@5"]], expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("relevant_from", TREC_EVAL)
def test_map_mrr_precision_and_linear_ndcg_are_those_of_trec_eval(relevant_from):
    settings = RankingConfig(cutoff=5, gain="linear", relevant_from=relevant_from)
    for query, expected in {**TREC_EVAL[relevant_from], "3": (0, 0, 0, 0)}.items():
        found = query_scores(GRADES[query], best_first(RUN[query]), settings)
        np.testing.assert_allclose([found[name] for name in ("map", "mrr", "p@5", "ndcg@5")], expected, rtol=1e-12)


def test_means_are_over_the_queries_that_the_tools_count():
    settings = RankingConfig(cutoff=5)
    found = mean_scores({**GRADES, **UNRANKED}, RUN, settings)
    assert found["ndcg@5"] == pytest.approx((0.29200 + 0.58971 + 0) / 3, abs=5e-6)  # not over query 3
    assert found["err@5"] == pytest.approx((0.19141 + 0.19922 + 0) / 3, abs=5e-6)
    assert found["map"] == pytest.approx((0.2875 + 0.8333333333333333 + 0 + 0) / 4)
    linear = mean_scores({**GRADES, **UNRANKED}, RUN, RankingConfig(cutoff=5, gain="linear"))
    assert linear["ndcg@5"] == pytest.approx((0.2701026857989743 + 0.6885288809404666 + 0 + 0) / 4)
    assert set(mean_scores({"3": GRADES["3"]}, RUN, settings).values()) == {0.0}

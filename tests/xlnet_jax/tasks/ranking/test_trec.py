"""Documents and queries by their ids, qrels and runs, from the forms that collections come in; NDCG, ERR, MAP, MRR and
precision against the official tools' numbers."""

import numpy as np
import pytest

from xlnet_jax.errors import InputError
from xlnet_jax.tasks.config import RankingConfig
from xlnet_jax.tasks.ranking.trec import best_first, mean_scores, query_scores, read_collection, read_qrels, read_run

SMART = """.I 1
.T
slab of
heat .
.A
brenckman,m.
.W
slab of
heat .
  it conducts .
.I 002
.W
.B stays text
.W
twice
.I 3
"""


def written(folder, text, name="file"):
    (folder / name).write_bytes(text.encode())
    return str(folder / name)


def test_smart_texts_have_their_title_once_and_no_author(tmp_path):
    path = written(tmp_path, "\ufeff" + SMART.replace("\n", "\r\n"))
    expected = {"1": "slab of heat . it conducts .", "002": ".B stays text twice", "3": ""}
    assert read_collection([path], "documents") == expected


def test_json_and_tsv_texts_are_those_of_beir_and_ms_marco(tmp_path):
    json_lines = '{"_id": "a", "title": "Heat", "text": "It\\nflows"}\n{"id": 7, "text": "x"}\n'
    beir = written(tmp_path, json_lines, "corpus.jsonl")
    passages = written(tmp_path, "0\tone text\n1\ttwo\n", "collection.tsv")
    documents = written(tmp_path, "D1\thttp://x\tA title\tThe body\nD2\tA title\tThe body\n", "docs.tsv")
    assert read_collection([beir, passages, documents], "documents") == {
        "a": "Heat It flows", "7": "x", "0": "one text", "1": "two", "D1": "A title The body", "D2": "A title The body",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["1 0 a 2\n1 0 b -2\n\n2 Q0 a 0\n", "query-id\tcorpus-id\tscore\r\n1\ta\t2\r\n1\tb\t-2\r\n2\ta\t0\r\n"]
)
def test_qrels_are_those_of_trec_and_beir(tmp_path, text):
    assert read_qrels([written(tmp_path, text)]) == {"1": {"a": 2, "b": -2}, "2": {"a": 0}}


@pytest.mark.parametrize("text", ["1 a 1 \n1 b 4\n1 c 5\n1 d -1\n", "1 0 a 1\n1 0 b 4\n1 0 c 5\n1 0 d -1\n"])
def test_the_best_code_of_cranfield_is_its_highest_grade_and_the_source_is_left_out(tmp_path, text):
    assert read_qrels([written(tmp_path, text)], "cranfield") == {"1": {"a": 4, "b": 1, "c": 0, "d": None}}


READ = {
    "documents": lambda paths: read_collection(paths, "documents"),
    "graded": read_qrels,
    "cranfield": lambda paths: read_qrels(paths, "cranfield"),
    "run": read_run,
}


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("documents", "1\ta\n1\tb\n", "line 2: the id '1' is used before"),
        ("documents", "1\ta\n\n2 b\n", "line 3 has 1 fields between tabs"),
        ("documents", '{"_id": "a", "text": "b"}\n{"_id": "b"}\n', "line 2 has no 'text'"),
        ("documents", "some words\n", "unknown format; give SMART"),
        ("graded", "1 a 3\n", "line 1 has 3 fields; qrels have 4: query iteration document grade; for those of Cr"),
        ("graded", "1 0 a high\n", "line 1: 'high' is not a judgement"),
        ("graded", "1 0 a 1\n1 0 a 0\n", "line 2: document a has another judgement before"),
        ("graded", "", "there are no judgements in it"),
        ("cranfield", "1 a 0\n", "line 1: '0' is not a judgement: give a whole number, or for Cranfield 1 to 5 or -1"),
        ("run", "1 Q0 a 1 0.5 t\n1 Q0 b 2 0.4\n", "line 2: a run has 6 fields"),
    ],
)
def test_what_cannot_be_read_is_named_by_file_and_line(tmp_path, form, text, said):
    paths = [written(tmp_path, text)]
    with pytest.raises(InputError) as error:
        READ[form](paths)
    assert paths[0] in str(error.value)
    assert said in str(error.value)


# ---- scores ---------------------------------------------------------------------------------------------------------

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

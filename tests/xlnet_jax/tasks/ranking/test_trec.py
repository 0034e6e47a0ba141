"""qrels and runs in TREC's form, and Cranfield's codes."""

import numpy as np
import pytest
from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.tasks.ranking.collection import Judgements, best_first, is_run, read_qrels, read_run, write_run


def written(folder, text):
    path = folder / "file"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    "text", ["1 0 a 2\n1 0 b -2\n\n2 Q0 a 0\n", "query-id\tcorpus-id\tscore\r\n1\ta\t2\r\n1\tb\t-2\r\n2\ta\t0\r\n"]
)
def test_qrels_are_those_of_trec_and_beir(tmp_path, text):
    expected = {"1": Judgements({"a": 2, "b": -2}), "2": Judgements({"a": 0})}
    assert read_qrels([written(tmp_path, text)]) == expected


@pytest.mark.parametrize("text", ["1 a 1 \n1 b 4\n1 c 5\n1 d -1\n", "1 0 a 1\n1 0 b 4\n1 0 c 5\n1 0 d -1\n"])
def test_the_best_code_of_cranfield_is_its_highest_grade_and_the_source_is_left_out(tmp_path, text):
    expected = {"1": Judgements({"a": 4, "b": 1, "c": 0}, ["d"])}
    assert read_qrels([written(tmp_path, text)], "cranfield") == expected


@pytest.mark.parametrize(
    ("text", "form", "said"),
    [
        ("1 0 a 1\n1 0 b\n", "graded", "line 2 has 3 fields, and those before it 4"),
        ("1 a 3\n", "graded", "line 1 has 3 fields, as Cranfield's, whose 1 is the best: read them by `ranking.judg"),
        ("1 a\n", "graded", "line 1 has 2 fields; qrels have 4: query iteration document grade"),
        ("1 0 a high\n", "graded", "line 1: the judgement 'high' is not a whole number"),
        ("1 0 a 1\n1 0 a 0\n", "graded", "line 2: document a is judged already for query 1"),
        ("", "graded", "no judgement is in it; qrels have lines of query iteration document grade"),
        ("1 a -1\n1 a 2\n", "cranfield", "line 2: document a is judged already for query 1"),
        ("1 a 0\n", "cranfield", "line 1: 0 is not a code of Cranfield, which are 1 (best) to 5, and -1"),
    ],
)
def test_a_line_that_is_no_judgement_is_named(tmp_path, text, form, said):
    path = written(tmp_path, text)
    with pytest.raises(InputError) as error:
        read_qrels([path], form)
    assert f"qrels {path}: {said}" in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 Q0 a 1 0.5 t\n1 Q0 b 2 0.4\n", "line 2 has 5 fields; a run has 6"),
        ("1 Q0 a 1 0.5 t\n1 Q0 a 2 0.4 t\n", "line 2: document a is there already for query 1"),
        ("1 Q0 a 1 high t\n", "line 1: the score 'high' is not a number"),
        ("1 Q0 a 1 nan t\n", "line 1: the score 'nan' is not a number"),
    ],
)
def test_a_line_that_is_no_ranking_is_named(tmp_path, text, said):
    path = written(tmp_path, text)
    with pytest.raises(InputError) as error:
        read_run([path])
    assert f"run {path}: {said}" in str(error.value)


def test_a_run_is_told_from_queries(tmp_path):
    assert is_run(written(tmp_path, "1 Q0 a 1 0.5 t\n"))
    assert not is_run(written(tmp_path, "1\tQ0 is what is asked\n"))
    assert not is_run(written(tmp_path, ".I 1\n.W\nwhat\n"))


def test_equal_scores_rank_by_the_greater_id():
    assert best_first({"a": 0.5, "b10": 0.5, "b9": 0.5, "z": 0.1, "c": 2.0}) == ["c", "b9", "b10", "a", "z"]


def test_a_written_run_is_read_as_it_was_to_the_last_bit(tmp_path):
    scores = np.random.default_rng(0).normal(size=50).astype(np.float32)
    run = {"7": {f"d{i}": float(score) for i, score in enumerate(scores)}, "8": {"x": 1e-30}}
    path = epath.Path(tmp_path / "run")
    write_run(path, run)
    first = path.read_text().splitlines()[0].split()
    best = int(scores.argmax())
    assert first == ["7", "Q0", f"d{best}", "1", f"{scores[best]:.9g}", "xlnet_jax"]
    read = read_run([str(path)])
    assert {q: {d: np.float32(s) for d, s in of.items()} for q, of in read.items()} == run

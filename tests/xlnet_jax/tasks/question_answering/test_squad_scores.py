"""The official scores of SQuAD and CMRC 2018, by cases worked out by hand and by trying every threshold."""

import pytest

from xlnet_jax.tasks.question_answering.files import Question
from xlnet_jax.tasks.question_answering.scores import (
    cmrc_scores,
    normalize_answer,
    segments,
    squad1_scores,
    squad2_scores,
)


def question(id, *answers):
    return Question(id, "?", "text", answers, (0,) * len(answers), is_impossible=not answers)


def test_squad1_takes_the_best_gold_answer_and_counts_missing_predictions_as_wrong():
    assert normalize_answer(" The  U.S.A., an  Era—“the” end\n") == "usa era—“ ” end"
    questions = [question("a", "red tea", "tea"), question("b", "milk"), question("c", "the")]
    scores = squad1_scores(questions, {"a": "Tea!", "c": "a"})
    assert scores == {"exact": pytest.approx(200 / 3), "f1": pytest.approx(100 / 3)}


def test_squad2_scores_those_with_and_without_answer_and_finds_the_best_thresholds():
    questions = [question("a", "red tea"), question("b"), question("c", "milk"), question("d")]
    predictions = {"a": "tea", "b": "", "c": "", "d": "sugar"}
    odds = {"a": -3.0, "b": 1.0, "c": 2.0, "d": -1.0}
    assert squad2_scores(questions, predictions, odds) == {
        "exact": 25.0, "f1": pytest.approx(25 * (2 / 3 + 1)), "total": 4,
        "HasAns_exact": 0.0, "HasAns_f1": pytest.approx(100 / 3), "HasAns_total": 2,
        "NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2,
        "best_exact": 50.0, "best_exact_thresh": 0.0,
        "best_f1": pytest.approx(25 * (2 / 3 + 2)), "best_f1_thresh": -3.0,
    }  # fmt: skip
    assert not any(name.startswith("NoAns") for name in squad2_scores(questions[:1], predictions, odds))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  《Big Bang》 1,000年，", ["big", "bang", "1,000", "年"]),
        ("R&B和4-6岁", ["r", "&", "b", "和", "46", "岁"]),
        ("don't (the \"cat\") can't, cannot.", ["do", "n't", "(", "the", "``", "cat", "''", ")", "ca", "n't", ",",
                                                "can", "not", "."]),
        ("'tea' she'll", ["'", "tea", "'", "she", "'ll"]),
        ("U.S. 3.14...", ["u.s.", "3.14", "..."]),
        ("「」", []),
    ],
)  # fmt: skip
def test_chinese_characters_stand_alone_and_other_text_is_cut_into_words(text, expected):
    assert segments(text) == expected


def test_cmrc_f1_is_of_the_longest_run_in_common():
    questions = [question("a", "红茶很热", "绿"), question("b", "《红》茶"), question("c", "茶"), question("d", "奶")]
    predictions = {"a": "红茶不很热啊", "b": "红，茶", "d": "茶"}
    f1 = 25 * (2 * (2 / 6) * (2 / 4) / (2 / 6 + 2 / 4) + 1)
    assert cmrc_scores(questions, predictions) == pytest.approx({"em": 25, "f1": f1, "average": (25 + f1) / 2})

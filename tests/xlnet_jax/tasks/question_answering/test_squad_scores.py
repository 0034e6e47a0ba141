"""The official scores of SQuAD and CMRC 2018, by cases worked out by hand and by trying every threshold."""

import pytest

from xlnet_jax.tasks.question_answering.files import Answer, Question
from xlnet_jax.tasks.question_answering.scores import (
    cmrc_scores,
    f1_score,
    normalize_answer,
    segments,
    squad1_scores,
    squad2_scores,
    words,
)


def question(id, *answers):
    return Question(id, "?", "text", tuple(Answer(a, 0) for a in answers), is_impossible=not answers)


def test_answers_are_compared_without_case_punctuation_articles_and_spaces():
    assert normalize_answer(" The  U.S.A., an  Era—“the” end\n") == "usa era—“ ” end"


@pytest.mark.parametrize(
    ("gold", "predicted", "f1"),
    [
        ("the cat sat", "a cat", 2 * 1 * 0.5 / 1.5),
        ("cat cat dog", "cat dog dog", 2 / 3),
        ("cat", "dog", 0.0),
        ("", "", 1.0),
        ("the", "", 1.0),
        ("cat", "", 0.0),
    ],
)
def test_f1_is_of_the_words_in_common(gold, predicted, f1):
    assert f1_score(gold, predicted) == pytest.approx(f1)


def test_squad1_takes_the_best_gold_answer_and_counts_missing_predictions_as_wrong():
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


def test_squad2_names_no_group_that_has_no_questions():
    scores = squad2_scores([question("a", "tea")], {"a": "tea"}, {"a": 0.5})
    assert not any(name.startswith("NoAns") for name in scores)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (100.0, 0.5)


# ---- CMRC 2018 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  《Big Bang》 1,000年，", ["big", "bang", "1,000", "年"]),
        ("R&B和4-6岁", ["r", "&", "b", "和", "46", "岁"]),
        ("don't (the \"cat\") can't, cannot.", ["do", "n't", "(", "the", "``", "cat", "''", ")", "ca", "n't", ",",
                                                "can", "not", "."]),
        ("U.S. 3.14...", ["u.s.", "3.14", "..."]),
        ("「」", []),
    ],
)  # fmt: skip
def test_chinese_characters_stand_alone_and_other_text_is_cut_into_words(text, expected):
    assert segments(text) == expected


def test_words_are_cut_at_quotes_and_clitics():
    assert words("'tea' she'll") == ["'", "tea", "'", "she", "'ll"]


def test_cmrc_f1_is_of_the_longest_run_in_common():
    questions = [question("a", "红茶很热", "绿"), question("b", "《红》茶"), question("c", "茶"), question("d", "奶")]
    predictions = {"a": "红茶不很热啊", "b": "红，茶", "d": "茶"}
    scores = cmrc_scores(questions, predictions)
    assert scores["em"] == 25.0
    assert scores["f1"] == pytest.approx(25 * (2 * (2 / 6) * (2 / 4) / (2 / 6 + 2 / 4) + 1))
    assert scores["average"] == pytest.approx((scores["em"] + scores["f1"]) / 2)

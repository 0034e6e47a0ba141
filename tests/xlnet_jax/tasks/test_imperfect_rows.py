"""Faulty rows: left out and counted in training, kept in their place in prediction."""

import json
import math
import re

import pytest

from tests.xlnet_jax.random_models import random_model
from tests.xlnet_jax.tasks.task_runs import asked, json_lines, tiny
from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.defaults import DEFAULTS, make_task
from xlnet_jax.tasks.model import Model
from xlnet_jax.tasks.question_answering.task import HEAD

CHOICE = {"context": "Tea is hot.", "question": "What is hot?", "options": ["tea", "ice"], "answer": "A"}
GOOD = {
    "classification": {"text": "good", "label": "pos"},
    "regression": {"text": "good", "label": 1.5},
    "multilabel": {"text": "good", "label": ["pos"]},
    "rte": {"sentence1": "a", "sentence2": "b", "label": "entailment"},
    "embedding": {"anchor": "a", "positive": "b"},
    "squad": asked("What is hot?", "Tea is hot.", "Tea"),
    "multiple_choice": CHOICE,
    "token_classification": {"words": ["Tea"], "labels": ["O"]},
}
TEXT = {"rte": "sentence2", "embedding": "positive", "squad": "context", "multiple_choice": "context"}


def blank_rows(task):
    if task == "token_classification":
        return [{"words": [], "labels": []}]
    return [GOOD[task] | {TEXT.get(task, "text"): nothing} for nothing in ("", " \t", None)]


@pytest.mark.parametrize("task", GOOD)
def test_a_blank_row_is_skipped_and_named_in_training_and_keeps_its_place_in_prediction(task, tmp_path, capsys):
    blank = blank_rows(task)
    path = json_lines(tmp_path / "a.jsonl", [GOOD[task], *blank, GOOD[task]])
    ours = make_task(DEFAULTS[task]())
    train = ours.read(path, "train")
    assert len(train) == 2
    assert ours.faults["train"].blank == len(blank)
    said = capsys.readouterr().err
    assert f"{len(blank)} of {len(blank) + 2} records have no text and are skipped: {path[0]}: line 2 is blank" in said
    assert len(ours.read(path, "predict")) == len(blank) + 2
    said = capsys.readouterr().err
    assert (
        f"{len(blank)} of {len(blank) + 2} records have no text and keep their place with {ours.without_text}" in said
    )
    names = [example.id for example in train if hasattr(example, "id")]
    assert names in (["0", str(len(blank) + 1)], [])  # the numbers of the rows


@pytest.mark.parametrize("task", sorted({*GOOD} - {"embedding"}))
def test_a_blank_row_without_a_label_counts_as_blank(task, tmp_path):
    answer = {"squad": "answers", "multiple_choice": "answer", "token_classification": "labels"}.get(task, "label")
    row = {**blank_rows(task)[0], answer: None}
    ours = make_task(DEFAULTS[task]())
    assert len(ours.read(json_lines(tmp_path / "a.jsonl", [GOOD[task], row]), "train")) == 1
    assert (ours.faults["train"].blank, ours.faults["train"].faulty) == (1, 0)


@pytest.mark.parametrize("task", GOOD)
def test_a_row_that_cannot_be_read_keeps_its_place_in_prediction(task, tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{json.dumps(GOOD[task])}\n{{"broken\n[]\n{{"other": 1}}\n{json.dumps(GOOD[task])}\n')
    ours = make_task(DEFAULTS[task]())
    found = ours.read([str(path)], "predict")
    assert [ours.is_blank(example) for example in found] == [False, True, True, True, False]
    said = capsys.readouterr().err
    assert (
        f"3 of 5 records have no text and keep their place with {ours.without_text}: {path}: line 2 is not JSON" in said
    )
    assert "line 3 is not a JSON object" in said
    path.write_text(f"{json.dumps(GOOD[task])}\n" * 40 + "[]\n")
    assert len(ours.read([str(path)], "train")) == 40


def test_a_row_with_another_number_of_fields_is_skipped_in_training_and_kept_in_prediction(tmp_path, capsys):
    for name, divider in (("a.csv", ","), ("a.tsv", "\t")):
        rows = [f"good{divider}pos"] * 40 + [f"a{divider}b{divider}c"]
        (tmp_path / name).write_text("\n".join([f"text{divider}label", *rows]) + "\n")
        ours = make_task(DEFAULTS["classification"]())
        assert len(ours.read([str(tmp_path / name)], "train")) == 40
        assert "line 42 has 3 fields, and the first line has 2" in capsys.readouterr().err
        assert ours.read([str(tmp_path / name)], "predict")[-1].texts == ("",)


@pytest.mark.parametrize(
    ("task", "fault", "reason"),
    [
        ("classification", {"text": "a", "label": None}, "it has no label"),
        ("classification", {"text": "a", "label": "  "}, "it has no label"),
        ("classification", {"text": "a"}, "there is no column 'label', only 'text'"),
        ("classification", {"label": "pos"}, "there is no column 'text', only 'label'"),
        ("multilabel", {"text": "a", "label": None}, "it has no label"),
        ("regression", {"text": "a", "label": "high"}, "the label 'high' is not a number"),
        ("token_classification", {"words": ["a", " "], "labels": ["O", "O"]}, "' ' is neither a word nor its label"),
        ("token_classification", {"words": ["a"], "labels": [None]}, "'labels': Expected"),
        ("multiple_choice", CHOICE | {"answer": None}, "the answer None is none of its 2 options"),
        ("squad", {"question": "a", "context": "b"}, "needs either an answer or is_impossible true"),
    ],
)
def test_a_faulty_row_is_skipped_and_too_many_end_with_the_first_three(task, fault, reason, tmp_path, capsys):
    rows = [GOOD[task]] * 30 + [fault] + [GOOD[task]] * 9
    ours = make_task(DEFAULTS[task]())
    assert len(ours.read(json_lines(tmp_path / "a.jsonl", rows), "train")) == 39
    said = capsys.readouterr().err
    assert re.search(rf"1 of 40 records .* are skipped: .*a\.jsonl: line 31.* {re.escape(reason)}", said)
    with pytest.raises(InputError) as error:
        ours.read(json_lines(tmp_path / "a.jsonl", rows + [fault] * 5), "train")
    assert reason in str(error.value)
    assert "a.jsonl: line 31" in str(error.value)
    assert str(error.value).count(reason) == 1
    assert "6 of 45 records are faulty, and at most 5% are skipped" in str(error.value)


def test_a_file_without_any_text_is_refused(tmp_path):
    for role in ("train", "predict"):
        with pytest.raises(InputError, match=r"there is no text: .*line 1 is blank; .*line 2 is blank"):
            make_task(DEFAULTS["classification"]()).read(
                json_lines(tmp_path / "a.jsonl", [{"text": "", "label": "a"}] * 2), role
            )


def test_a_file_of_texts_alone_keeps_its_blank_lines_in_prediction(tmp_path):
    for name in ("a.tsv", "a.csv"):
        (tmp_path / name).write_text("text\none\n\n two\n")
        found = make_task(DEFAULTS["classification"]()).read([str(tmp_path / name)], "predict")
        assert [example.texts for example in found] == [("one",), ("",), (" two",)]
        assert [example.id for example in found] == ["0", "1", "2"]


@pytest.fixture(scope="module")
def model_of(tokenizer):
    def make(head):
        model = random_model(tiny(tokenizer.vocab_size), head, tokenizer)
        return Model(**{name: getattr(model, name) for name in model.__dataclass_fields__})

    return make


def test_a_blank_text_has_the_stated_answer_and_the_others_are_unharmed(model_of):
    classes = model_of(HeadConfig("classification", num_labels=2, labels=("neg", "pos")))
    good, blank, null, nan, bad = classes.predict(["a walk", " ", None, math.nan, "sad"])
    assert [good, bad] == classes.predict(["a walk", "sad"])
    for found in (blank, null, nan):
        assert found.value == ""
        assert all(map(math.isnan, found.probabilities.values()))
        assert list(found.probabilities) == ["neg", "pos"]
    _, blank = classes.predict([("a walk", "a day"), ("a walk", None)])
    assert blank.value == ""
    pair, blank = model_of(HeadConfig("regression", num_labels=1)).predict([("a walk", "sad"), ""])
    assert math.isfinite(pair.value)
    assert math.isnan(blank.value)
    (blank,) = model_of(HeadConfig("multilabel", num_labels=2, labels=("a", "b"))).predict([""])
    assert blank.value == ()
    vectors = model_of(HeadConfig("embedding", summary="mean", use_projection=False))
    good, blank = vectors.predict([("a walk", "a day"), ("a walk", None)])
    assert math.isfinite(good.value)
    assert math.isnan(blank.value)


def test_a_blank_context_or_word_has_the_stated_answer(model_of):
    answering = model_of(HEAD)
    rows = [{"question": "what", "context": text} for text in ("a walk", "", None)]
    answer, *others = answering.predict(rows)
    assert answer == answering.predict(rows[:1])[0]
    assert answer.value in "a walk"
    assert sum(answer.probabilities.values()) == pytest.approx(1)
    assert [found.value for found in (*others, *answering.predict(rows[1:2]))] == [""] * 3
    tagging = model_of(HeadConfig("token_classification", num_labels=2, labels=("O", "X")))
    assert [len(found.value) for found in tagging.predict([["a", " ", "b\n"], [], {"words": ["a"]}])] == [3, 0, 1]
    assert tagging.predict([[]])[0].value == ()
    choosing = model_of(HeadConfig("multiple_choice", num_labels=2))
    found = choosing.predict([CHOICE | {"context": None}, CHOICE | {"options": None}])
    assert list(found[0].probabilities) == CHOICE["options"]
    assert found[0].probabilities[found[0].value] == max(found[0].probabilities.values())
    assert found[1] == ("", {})


def test_predictions_of_words_have_a_line_for_each_word(tmp_path, model_of):
    ours = make_task(DEFAULTS["token_classification"]())
    (found,) = ours.read(json_lines(tmp_path / "a.jsonl", [{"words": ["a", " ", "b\tc", "d"]}]), "predict")
    assert found.lines == ("a", "_", "_", "d")


def test_a_question_without_a_text_counts_in_the_evaluation(tmp_path):
    files = json_lines(tmp_path / "a.jsonl", [asked("q", "tea", "tea"), asked("q", "tea", "tea") | {"context": ""}])
    ours = make_task(DEFAULTS["squad"]())
    assert len(ours.read(files, "train")) == 1
    assert len(ours.read(files, "eval")) == 2


@pytest.mark.parametrize("divider", [";", "\t", "|", ","])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt"])
@pytest.mark.parametrize("header", ["text{}label", " text {} label ", "id{}text{}label", '"text"{}"label"'])
def test_a_table_with_another_divider_or_spaces_in_its_header_is_read(divider, name, header, tmp_path):
    if (name, divider) != ("a.csv", "\t") and divider == "\t" and '"' in header:
        return  # quotes have no meaning in TSV
    row = ("7", "good, well", "pos")
    quoted = [f'"{value}"' if divider in value else value for value in row[header.startswith(('"', "t", " ")) :]]
    (tmp_path / name).write_text(f"{header.replace('{}', divider)}\n{divider.join(quoted)}\n")
    (found,) = make_task(DEFAULTS["classification"]()).read([str(tmp_path / name)], "train")
    assert (*found.texts, found.label) == ("good, well", "pos")

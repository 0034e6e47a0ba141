"""Labels: what a value in a file means, and what is printed about the labels that were read."""

import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.tasks.task_runs import json_lines
from xlnet_jax.errors import InputError
from xlnet_jax.tasks.defaults import DEFAULTS, make_task
from xlnet_jax.tasks.labels import describe_labels, label_list, label_name, vector_length


def read(tmp_path, task, rows, role="train", ours=None):
    ours = ours or make_task(DEFAULTS[task]())
    return ours, ours.read(json_lines(tmp_path / f"{role}.jsonl", rows), role)


def labelled(*labels):
    return [{"text": f"text {i}", "label": label} for i, label in enumerate(labels)]


@pytest.mark.parametrize(
    ("value", "name"),
    [(" pos\n", "pos"), ("\u00a0neg", "neg"), (1, "1"), (1.0, "1"), ("1.0", "1"), (" 3.00 ", "3"), (-2.0, "-2"),
     (1.5, "1.5"), ("1.10", "1.10"), ("v1.0", "v1.0"), ("007", "007"), (True, "True"), (np.float32(2), "2")],
)  # fmt: skip
def test_a_label_has_one_name_with_and_without_spaces_as_text_and_as_a_number(value, name):
    assert label_name(value) == name


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (
            ["neg", "Neg", "pos", "neg"],
            "neg (2), Neg (1), pos (1); 'neg' (2) and 'Neg' (1) differ only in case, white space or",
        ),
        (
            ["caf\u00e9", "cafe\u0301"],
            r"'cafe\u0301' (1) and 'caf\xe9' (1) differ only in case, white space or Unicode form: are they one",
        ),
        (["a b", "a  b", "ab"], "'a  b' (1) and 'a b' (1) and 'ab' (1) differ only in"),
        (
            ["pos\u200b", "pos"],
            r"'pos' (1) and 'pos\u200b' (1) differ only in case, white space or Unicode form: are they one label?",
        ),
        (["A b", "a\u00a0b"], "differ only in case, white space or Unicode form: are they one label?"),
    ],
)
def test_labels_that_differ_only_in_case_spaces_or_unicode_form_are_named_with_counts(labels, said):
    assert said in describe_labels(labels)


def test_labels_are_counted_and_numbers_have_a_range():
    assert describe_labels(["b", "a", "b"]) == "b (2), a (1)"
    assert describe_labels([1.5, 4.0, 2.0]) == "1.5 to 4, mean 2.5"
    assert describe_labels(map(str, range(1000, 3000))).endswith("1011 (1) and 1988 more")


def test_a_classifier_has_one_class_for_labels_that_differ_only_in_spaces_or_form_of_number(tmp_path):
    task, train = read(tmp_path, "classification", labelled(" pos", "pos", "neg ", "\tneg"))
    assert task.head(train).labels == ("neg", "pos")
    task, train = read(tmp_path, "classification", labelled(1, 1.0, "1", "1.0", 0))
    assert task.head(train).labels == ("0", "1")


@pytest.mark.parametrize(
    ("value", "names"),
    [("a, b", ["a", " b"]), ("['a', 'b c']", ["a", "b c"]), ("[0, 1]", [0, 1]), ("[0. 1. 0.]", ["0.", "1.", "0."]),
     ("[draft], [old]", ["[draft]", " [old]"]), (np.array([0, 1]), [0, 1]), ([], []), (3, None), ([None], None),
     ([["a"]], None)],
)  # fmt: skip
def test_a_field_with_several_labels_is_read_in_all_forms_that_tables_have(value, names):
    assert label_list(value, ",") == names


@pytest.mark.parametrize(
    ("labels", "length"),
    [
        (["010", "110", "001"], 3),
        (["01", "10"], 2),  # one of two; as names, every text would have both
        (["00", "11", "10"], 2),
        (["0", "1", "01"], None),  # names: numbers of the labels
        (["0", "1", "1"], None),
        (["01", "12"], None),
        (["010", "10"], 3),  # a damaged vector; the reader names it
        ([], None),
        (["", ""], None),
    ],
)
def test_lists_of_zeros_and_ones_of_one_length_are_indicator_vectors(labels, length):
    assert vector_length([list(one) for one in labels]) == length


@pytest.mark.parametrize("form", [list, lambda v: list(map(bool, v)), lambda v: list(map(float, v)), str, "_".join])
def test_indicator_vectors_give_each_text_the_labels_that_are_one(tmp_path, form):
    vectors = [[0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1]]
    if form == "_".join:
        form = lambda vector: ",".join(map(str, vector))  # noqa: E731
    task, train = read(tmp_path, "multilabel", labelled(*map(form, vectors)))
    assert [example.label for example in train] == [("1",), ("0", "1"), (), ("1", "2")]
    assert task.head(train).labels == ("0", "1", "2")
    _, dev = read(tmp_path, "multilabel", labelled(form([1, 0, 1])), "eval", task)
    assert dev[0].label == ("0", "2")
    with pytest.raises(InputError, match=r"line 1: its label has 2 values, and .* is a vector of 3 numbers, 0 or 1"):
        read(tmp_path, "multilabel", labelled(form([1, 0])), "eval", task)


def test_many_indicator_labels_keep_their_order_and_names_stay_names(tmp_path):
    task, train = read(tmp_path, "multilabel", labelled(*np.eye(12, dtype=int).tolist()))
    assert task.head(train).labels == tuple(map(str, range(12)))
    task, train = read(tmp_path, "multilabel", labelled(["b", " a"], ["a"], [], "a,b"))
    assert task.head(train).labels == ("a", "b")
    assert train[2].label == ()


def test_words_may_have_numbers_for_tags_and_ner_says_that_it_needs_tags(tmp_path):
    rows = [{"words": ["In", 1998, "ok"], "labels": [0, 3.0, 0]}]
    task, (sentence,) = read(tmp_path, "token_classification", rows)
    assert (sentence.words, sentence.labels) == (("In", "1998", "ok"), ("0", "3", "0"))
    assert task.head([sentence]).labels == ("0", "3")
    with pytest.raises(
        InputError, match=r"'0', the label of 'In', is not a tag .* write tags instead of their numbers"
    ):
        read(tmp_path, "ner", rows)
    with pytest.raises(InputError, match="line 1: a word has no label"):
        read(tmp_path, "token_classification", [{"words": ["a", "b"], "labels": [1, -100]}])


def test_a_run_prints_what_it_read_in_four_lines_at_most_and_check_stops_there(pretrained, tmp_path, capsys):
    texts, labels = ["one", "sad", "rain " * 40, " ", None, "vain"], ["a", "A", "b ", "a", "a", "b"]
    train = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    dev = [{"text": "one", "label": "a"}, {"text": "day", "label": "b"}]
    result = xlnet_jax.finetune(
        task="classification", init=str(pretrained), train=train, eval=dev, predict=dev, check=True,
        workdir=str(tmp_path / "run"), data={"seq_len": 32},
    )  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "examples    4 training (2 blank), 2 eval (1 also in train), 2 to predict",
        "labels      b (2), A (1), a (1); 'A' (1) and 'a' (1) differ only in case, white space or Unicode form: are "
        "they one label?",
        "cut texts   1 training, 0 eval, 0 to predict",
    ]
    assert lines[3].startswith("baseline ")
    assert (result.step, result.metrics, result.checkpoint) == (0, {}, str(pretrained))
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert not (tmp_path / "run" / "config.json").exists()

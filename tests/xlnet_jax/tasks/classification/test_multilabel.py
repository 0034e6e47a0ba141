"""A text may have any number of labels: how they are read, learned, scored and written."""

import dataclasses
import json

import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import random_model
from tests.xlnet_jax.tasks.conftest import BAD, GOOD
from tests.xlnet_jax.tasks.task_runs import tiny
from xlnet_jax import InputError
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.classification.glue import multilabel_scores
from xlnet_jax.tasks.classification.task import Multilabel
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.model import Model

CONFIG = DEFAULTS["multilabel"]()
LABELS = {**{text: ["good", "short"] for text in GOOD}, **{text: ["bad"] for text in BAD}, "it": []}


def with_columns(**columns):
    return dataclasses.replace(CONFIG, columns=dataclasses.replace(CONFIG.columns, **columns))


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "table.jsonl"
    file.write_text("".join(json.dumps({"text": t, "label": labels}) + "\n" for t, labels in LABELS.items()))
    return str(file)


def test_labels_are_a_list_or_a_field_with_separators(tmp_path, path):
    table = tmp_path / "table.csv"
    table.write_text('text,label\nfine,"a, b"\nplain,\nso so,b\n')
    assert [e.label for e in Multilabel(CONFIG).read([str(table)], True)] == [("a", "b"), (), ("b",)]
    table.write_text("text,label\nfine,a b|c\n")
    assert Multilabel(with_columns(label_separator="|")).read([str(table)], True)[0].label == ("a b", "c")
    assert [e.label for e in Multilabel(CONFIG).read([path], True)] == [tuple(labels) for labels in LABELS.values()]


def test_what_is_no_list_of_labels_is_refused(tmp_path):
    for row, message in (
        ('{"text": "a", "label": null}', "line 1: its label None is neither text nor"),
        ('{"text": "a", "label": 3}', "line 1: its label 3 is neither text nor a list of labels"),
        ('{"text": "a"}', "line 1: there is no column label, only text"),
    ):
        (tmp_path / "x.jsonl").write_text(row + "\n")
        with pytest.raises(InputError, match=message):
            Multilabel(CONFIG).read([str(tmp_path / "x.jsonl")], True)
    (tmp_path / "x.jsonl").write_text('{"text": "a", "label": []}\n')
    task = Multilabel(CONFIG)
    with pytest.raises(InputError, match="line 1: no example has a label"):
        task.head(task.read([str(tmp_path / "x.jsonl")], True))


def test_the_scores_are_those_counted_by_hand():
    """F1 of the labels: 1, 1/2, and 0 for one that never occurs; all decisions: 3 hits of 4 given and 4 predicted."""
    true = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0]], bool)
    predicted = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 1, 0]], bool)
    assert multilabel_scores(predicted, true) == pytest.approx({"micro_f1": 0.75, "macro_f1": 0.5, "accuracy": 0.5})


def test_a_multilabel_head_goes_to_transformers_and_back(tokenizer, tmp_path):
    head = HeadConfig("multilabel", 3, labels=("bad", "good", "short"))
    model = random_model(tiny(tokenizer.vocab_size), head, tokenizer)
    xlnet_jax.save(model, tmp_path / "hf", "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["problem_type"] == "multi_label_classification"
    back = xlnet_jax.load(tmp_path / "hf")
    assert back.head == head
    ours = Model(**{field.name: getattr(model, field.name) for field in dataclasses.fields(model)})
    for one, other in zip(ours.predict(GOOD), back.predict(GOOD), strict=True):
        assert one.value == other.value
        assert one.probabilities == pytest.approx(other.probabilities, rel=1e-6)
        assert set(one.value) == {label for label, p in one.probabilities.items() if p >= 0.5}
    with pytest.raises(InputError, match="the original has no head for multilabel"):
        xlnet_jax.save(model, tmp_path / "tf1", "tf1")

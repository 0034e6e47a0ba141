"""Labels that tasks compare with their predictions, as counts for a picture; plots/test_plots.py draws them."""

import pytest

from xlnet_jax.tasks.base import Prediction, Task
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.families import make_task
from xlnet_jax.tasks.token_classification.conll import Sentence
from xlnet_jax.tasks.token_classification.task import TokenClassification


def test_words_are_compared_by_the_type_of_their_entity(monkeypatch):
    labels = ("B-PER", "I-PER", "O", "S-LOC")
    sentence = Sentence(("a", "b", "c", "d"), ("B-PER", "I-PER", "O", "S-LOC"), ("",) * 4, "", (1, 2, 3, 4))
    task = TokenClassification(DEFAULTS["ner"]())
    monkeypatch.setattr(task, "_names", labels)
    found = task.compare([sentence], [Prediction(("I-PER", "O", "O", "B-PER"), {})])
    assert found.labels == ("LOC", "PER", "O")
    assert found.counts.tolist() == [[0, 1, 0], [0, 1, 1], [0, 0, 1]]


@pytest.mark.parametrize(("name", "compares"), [("classification", True), ("ner", True), ("squad", False)])
def test_tasks_without_labels_have_no_picture(name, compares):
    assert (type(make_task(DEFAULTS[name]())).compare is not Task.compare) == compares

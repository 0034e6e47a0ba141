"""Pictures of a finetuning run, for any number of labels and evaluations; test_run.py has those of whole runs."""

import math

import numpy as np
import pytest

from xlnet_jax.tasks.agreement import MOST_LABELS, Confusion, Scatter
from xlnet_jax.tasks.base import ComparingTask
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.families import make_task
from xlnet_jax.tasks.learning_curves import draw_learning_curves
from xlnet_jax.tasks.token_classification.conll import Sentence
from xlnet_jax.tasks.token_classification.task import TokenClassification

PNG = b"\x89PNG"


def test_shares_are_of_the_true_label_and_confusions_come_by_their_number():
    found = Confusion.of(["a", "b", "c"], [0, 0, 0, 0, 1, 1, 1], [0, 1, 1, 2, 0, 0, 0], "examples")
    assert found.counts.tolist() == [[1, 2, 1], [3, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(found.shares(), [[0.25, 0.5, 0.25], [1, 0, 0], [0, 0, 0]])
    assert found.confusions() == [(1, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize("count", [2, MOST_LABELS + 1])
@pytest.mark.parametrize("wrong", [False, True])
def test_any_number_of_labels_gives_a_picture(tmp_path, count, wrong):
    labels = ["$x^2$ and a name that is longer than the space for it", *(f"标签 {i}" for i in range(count - 1))]
    true = np.arange(count)
    Confusion.of(labels, true, (true + wrong) % count, "examples").draw(tmp_path / "confusion.png", "a $ title")
    assert (tmp_path / "confusion.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("predicted", [[1.0, 2.5], [math.nan, math.inf]])
def test_numbers_are_drawn_against_the_true_ones(tmp_path, predicted):
    Scatter(np.array([1.0, 2.0]), np.array(predicted)).draw(tmp_path / "predicted.png", "a title")
    assert (tmp_path / "predicted.png").read_bytes().startswith(PNG)


def test_words_are_compared_by_the_type_of_their_entity(monkeypatch):
    labels = ("B-PER", "I-PER", "O", "S-LOC")
    sentence = Sentence(("a", "b", "c", "d"), ("B-PER", "I-PER", "O", "S-LOC"), ("",) * 4, "", (1, 2, 3, 4))
    task = TokenClassification(DEFAULTS["ner"]())
    monkeypatch.setattr(task, "_names", labels)
    monkeypatch.setattr(task, "_predicted", lambda *_: [["I-PER", "O", "O", "B-PER"]])
    found = task.compare([sentence], None, {})
    assert found.labels == ("LOC", "PER", "O")
    assert found.counts.tolist() == [[0, 1, 0], [0, 1, 1], [0, 0, 1]]


@pytest.mark.parametrize(("name", "compares"), [("classification", True), ("ner", True), ("squad", False)])
def test_tasks_without_labels_have_no_picture(name, compares):
    assert isinstance(make_task(DEFAULTS[name]()), ComparingTask) == compares


def test_the_chosen_step_is_marked_and_nothing_is_drawn_from_nothing(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    labels = []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda *given, **how: labels.append(how.get("label")) or plot(*given, **how))
    path = tmp_path / "curves.png"
    trained = [{"step": i, "split": "train", "loss": 1 / i} for i in range(1, 9)]
    evaluated = [{"step": i, "split": "validation", "f1": v} for i, v in ((4, 0.5), (8, math.nan))]
    assert not draw_learning_curves([{"step": 1, "split": "time", "wall": 1.0}], "f1", None, "nats", path, "a run")
    assert not path.exists()
    assert draw_learning_curves(trained, "", None, "nats", path, "a run")
    assert not any("chosen" in str(label) for label in labels)
    assert draw_learning_curves([*trained, *evaluated], "f1", 4, "nats", path, "a $ run")
    assert "chosen: 0.5 at step 4" in labels
    assert path.read_bytes().startswith(PNG)

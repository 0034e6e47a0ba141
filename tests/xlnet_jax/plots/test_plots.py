"""Curves and confusions are drawn for runs of any length and any number of labels, in fonts that have their letters."""

import math

import numpy as np
import pytest

from xlnet_jax.plots.confusion import MOST_LABELS, confusions, count_pairs, draw_confusion, draw_scatter, shares_of_true
from xlnet_jax.plots.curves import draw_curves, draw_learning_curves

PNG = b"\x89PNG"


@pytest.mark.parametrize("points", [0, 1, 50])
def test_a_run_of_any_length_gives_a_picture(tmp_path, points):
    records = [{"step": i, "split": split, "loss": 5.0} for i in range(points) for split in ("train", "validation")]
    draw_curves(records, 6.0, tmp_path / "curves.png", "plm", "a title")
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)
    assert [p.name for p in tmp_path.iterdir()] == ["curves.png"]


def test_the_best_step_is_marked_and_nothing_is_drawn_from_nothing(tmp_path, monkeypatch):
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


def test_shares_are_of_the_true_label_and_confusions_come_by_their_number():
    counts = count_pairs(3, [0, 0, 0, 0, 1, 1, 1], [0, 1, 1, 2, 0, 0, 0])
    assert counts.tolist() == [[1, 2, 1], [3, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(shares_of_true(counts), [[0.25, 0.5, 0.25], [1, 0, 0], [0, 0, 0]])
    assert confusions(counts) == [(1, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize("count", [2, MOST_LABELS + 1])
@pytest.mark.parametrize("wrong", [False, True])
def test_any_number_of_labels_gives_a_picture(tmp_path, count, wrong):
    labels = ["$x^2$ and a name that is longer than the space for it", *(f"标签 {i}" for i in range(count - 1))]
    true = np.arange(count)
    draw_confusion(labels, true, (true + wrong) % count, "examples", tmp_path / "confusion.png", "a $ title")
    assert (tmp_path / "confusion.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("predicted", [[1.0, 2.5], [math.nan, math.inf]])
def test_numbers_are_drawn_against_the_true_ones(tmp_path, predicted):
    draw_scatter(np.array([1.0, 2.0]), np.array(predicted), tmp_path / "predicted.png", "a title")
    assert (tmp_path / "predicted.png").read_bytes().startswith(PNG)

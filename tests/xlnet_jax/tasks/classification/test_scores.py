"""Scores by their definitions, spelt out."""

import itertools
import math

import numpy as np
import pytest

from xlnet_jax.tasks.classification.glue import classification_scores, multilabel_scores, regression_scores


def pearson(x, y):
    dx, dy = x - x.mean(0), y - y.mean(0)
    return (dx * dy).sum() / math.sqrt((dx**2).sum() * (dy**2).sum())


def ranks(x):
    """Return the rank of each number; equal numbers share the mean of theirs."""
    return np.array([(x < v).sum() + ((x == v).sum() + 1) / 2 for v in x])


def f1(predicted, true, label):
    right = ((predicted == label) & (true == label)).sum()
    return 2 * right / ((predicted == label).sum() + (true == label).sum())


@pytest.mark.parametrize("seed", range(3))
def test_scores_of_two_labels_are_those_of_their_definitions(seed):
    predicted, true = np.random.default_rng(seed).integers(0, 2, (2, 40))
    expected = {
        "accuracy": (predicted == true).mean(), "f1": f1(predicted, true, 1), "mcc": pearson(predicted, true),
    }  # fmt: skip
    assert classification_scores(predicted, true, 2) == pytest.approx(expected)


def test_scores_of_many_labels_are_those_of_their_definitions():
    predicted, true = np.random.default_rng(0).integers(0, 4, (2, 50))
    scores = classification_scores(predicted, true, 6)  # two labels are neither there nor predicted
    assert scores["f1"] == pytest.approx(np.mean([f1(predicted, true, label) for label in range(4)]))
    # As the correlation of all pairs of indicators (Gorodkin 2004, equation 8).
    assert scores["mcc"] == pytest.approx(pearson(*(np.eye(4)[labels] for labels in (predicted, true))))


def test_a_constant_answer_has_no_correlation():
    true = np.array([0, 1, 1, 0])
    assert classification_scores(np.ones(4, int), true, 2)["mcc"] == 0
    assert classification_scores(np.zeros(4, int), true, 2)["f1"] == 0
    constants = (np.ones(4), np.array([1.0, np.nan, 2.0, 3.0]), np.array([1.0, np.inf, 2.0, 3.0]))
    for predicted, order in itertools.product(constants, (1, -1)):
        pair = (predicted, true.astype(float))[::order]
        assert regression_scores(*pair) == {"pearson": 0, "spearman": 0}


def test_correlations_are_those_of_their_definitions():
    rng = np.random.default_rng(1)
    predicted = rng.normal(size=30)
    true = np.round(predicted + rng.normal(size=30))  # with ties
    expected = {"pearson": pearson(predicted, true), "spearman": pearson(ranks(predicted), ranks(true))}
    assert regression_scores(predicted, true) == pytest.approx(expected)


def test_scores_of_several_labels_are_those_counted_by_hand():
    """F1 of the labels: 1, 1/2, and 0 for one that never occurs; all decisions: 3 hits of 4 given and 4 predicted."""
    true = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0]], bool)
    predicted = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 1, 0]], bool)
    assert multilabel_scores(predicted, true) == pytest.approx({"micro_f1": 0.75, "macro_f1": 0.5, "accuracy": 0.5})

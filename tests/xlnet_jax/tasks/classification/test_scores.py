"""Scores by their definitions, spelt out."""

import itertools
import math

import numpy as np
import pytest

from xlnet_jax.tasks.classification.glue import classification_scores, regression_scores


def counted(predicted, true, label):
    """(true positives, false positives, false negatives, true negatives) of a label."""
    pairs = [(p == label, t == label) for p, t in zip(predicted, true, strict=True)]
    return [pairs.count(kind) for kind in ((True, True), (True, False), (False, True), (False, False))]


def pearson(x, y):
    dx, dy = x - x.mean(), y - y.mean()
    return (dx * dy).sum() / math.sqrt((dx**2).sum() * (dy**2).sum())


def ranks(x):
    """Return the rank of each number; equal numbers share the mean of theirs."""
    return np.array([(x < v).sum() + ((x == v).sum() + 1) / 2 for v in x])


@pytest.mark.parametrize("seed", range(5))
def test_scores_of_two_labels_are_those_of_their_definitions(seed):
    predicted, true = np.random.default_rng(seed).integers(0, 2, (2, 40))
    tp, fp, fn, tn = counted(predicted, true, 1)
    scores = classification_scores(predicted, true, 2)
    assert scores["accuracy"] == pytest.approx((tp + tn) / 40)
    assert scores["f1"] == pytest.approx(2 * tp / (2 * tp + fp + fn))
    matthews = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert scores["mcc"] == pytest.approx(matthews)


def test_scores_of_many_labels_are_those_of_their_definitions():
    predicted, true = np.random.default_rng(0).integers(0, 4, (2, 50))
    scores = classification_scores(predicted, true, 6)  # two labels are neither there nor predicted
    each = [2 * tp / (2 * tp + fp + fn) for tp, fp, fn, _ in (counted(predicted, true, k) for k in range(4))]
    assert scores["f1"] == pytest.approx(np.mean(each))
    # As the correlation of all pairs of indicators (Gorodkin 2004, equation 8).
    x, y = (np.eye(4)[labels] for labels in (predicted, true))
    cov = [((a - a.mean(0)) * (b - b.mean(0))).sum() for a, b in ((x, y), (x, x), (y, y))]
    assert scores["mcc"] == pytest.approx(cov[0] / math.sqrt(cov[1] * cov[2]))


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
    scores = regression_scores(predicted, true)
    assert scores["pearson"] == pytest.approx(pearson(predicted, true))
    assert scores["spearman"] == pytest.approx(pearson(ranks(predicted), ranks(true)))

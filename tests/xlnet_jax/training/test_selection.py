"""Which evaluation is the best, and when a run has had enough of them."""

import math

import pytest

from xlnet_jax.training.selection import Evaluation


def evaluated(*losses, is_better_high=False, patience=0):
    evaluation = Evaluation(1, lambda params, is_stopped: {}, str, "loss", is_better_high, patience)
    for step, loss in enumerate(losses, 1):
        evaluation.add(step, {"loss": loss})
    return evaluation


@pytest.mark.parametrize(
    ("losses", "is_better_high", "best"),
    [
        ((), False, None),
        ((3.0, 2.0, 2.5), False, 2),
        ((3.0, 2.0, 2.5), True, 1),
        ((2.0, 2.0), False, 1),  # the first of equals
        ((math.nan, 3.0, math.nan), False, 2),
        ((math.nan, 3.0, math.nan), True, 2),
    ],
)
def test_the_best_is_the_first_with_the_best_number(losses, is_better_high, best):
    evaluation = evaluated(*losses, is_better_high=is_better_high)
    assert evaluation.best_step == best
    assert evaluation.is_best == (best == len(losses) and best is not None)


def test_a_step_that_is_evaluated_again_counts_once():
    evaluation = evaluated(3.0, 2.0)
    evaluation.add(2, {"loss": 4.0})
    assert [(step, numbers["loss"]) for step, numbers in evaluation.history] == [(1, 3.0), (2, 4.0)]
    assert evaluation.best_step == 1


def test_patience_counts_the_evaluations_after_the_best():
    losses = (3.0, 2.0, 2.5, math.nan)
    assert [evaluated(*losses[:n], patience=2).is_enough for n in range(5)] == [False, False, False, False, True]
    assert not evaluated(*losses).is_enough

"""Relative effective context lengths from losses made by hand."""

import numpy as np
import pytest

from xlnet_jax import InputError
from xlnet_jax.inference.effective_context import Recl, effective_context_lengths, gains

# One token in ten is hard, and gains by a longer context: e^-2, then e^-0.05 in perplexity, then nothing.
HARD = {10: 5.0, 20: 3.0, 30: 2.95, 40: 2.95}


def one_hard_token(length):
    return np.array([[2.0] * 9 + [HARD[length]]])


def test_lengths_end_where_the_next_step_gains_too_little():
    found = effective_context_lengths(one_hard_token, [10, 20, 30, 40], [1.0, 0.1])
    # Over all tokens the second step gains 1 - e^-0.005, over the hardest tenth 1 - e^-0.05.
    assert found == {1.0: [Recl(20, False)], 0.1: [Recl(30, False)]}
    assert gains(one_hard_token(10), one_hard_token(20), 1.0) == pytest.approx([1 - np.exp(-0.2)])
    assert gains(one_hard_token(20), one_hard_token(30), 0.1) == pytest.approx([1 - np.exp(-0.05)])
    coarse = effective_context_lengths(one_hard_token, [10, 20, 30, 40], [0.1], threshold=0.1)
    assert coarse == {0.1: [Recl(20, False)]}


def test_a_model_that_still_gains_at_the_longest_context_gets_a_bound():
    assert effective_context_lengths(one_hard_token, [10, 20, 30], [0.1]) == {0.1: [Recl(30, True)]}


def test_a_model_that_is_weak_with_a_short_context_gains_nothing_by_it():
    """The weak model improves with every step, but never beyond the other model's shortest context."""
    weak = {10: 4.0, 20: 3.0, 30: 2.5, 40: 2.0}

    def losses(length):
        return np.array([[2.0, 2.0], [weak[length], weak[length]]])

    found = effective_context_lengths(losses, [10, 20, 30, 40], [1.0])
    assert found == {1.0: [Recl(10, False), Recl(10, False)]}
    alone = effective_context_lengths(lambda length: losses(length)[1:], [10, 20, 30, 40], [1.0])
    assert alone == {1.0: [Recl(40, True)]}


def test_a_token_that_a_longer_context_makes_worse_counts_as_it_was():
    assert gains(np.array([[3.0, 3.0]]), np.array([[2.0, 9.0]]), 1.0) == pytest.approx([1 - np.exp(-0.5)])


def test_no_longer_context_is_asked_for_than_one_that_some_model_gains_by():
    asked = []

    def losses(length):
        asked.append(length)
        return one_hard_token(length)

    effective_context_lengths(losses, [10, 20, 30, 40], [1.0])
    assert asked == [10, 20, 30]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (([10], [1.0], 0.01), "context lengths 10: give at least two, from 1 on, in rising order"),
        (([20, 10], [1.0], 0.01), "context lengths 20 10"),
        (([10, 20], [0.0, 1.0], 0.01), r"`shares` 0 1: give shares of the tokens in \(0, 1\]"),
        (([10, 20], [], 0.01), "`shares` : give shares"),
        (([10, 20], [1.0], 1.0), "`threshold` 1 must be between 0 and 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        effective_context_lengths(one_hard_token, *settings)

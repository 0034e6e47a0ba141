"""Random numbers are a pure function of (seed, purpose, step, row)."""

import numpy as np
import pytest

from data_pipelines.stateless import Purpose, choice, smallest_first, uniforms


@pytest.mark.parametrize("width", [1, 3, 256, 2048])
def test_smallest_first_is_a_stable_argsort(width):
    uniform = uniforms(1, Purpose.ORDER_NEW, 2, range(40), width)
    uniform[:, 1::3] = uniform[:, ::3][:, : len(range(1, width, 3))]  # ties
    order = np.argsort(uniform, axis=1, kind="stable")
    np.testing.assert_array_equal(smallest_first(uniform), order)
    for count in (0, 1, width // 2, width):
        few = np.sort(smallest_first(uniform, count), axis=1)
        np.testing.assert_array_equal(few, np.sort(order[:, :count], axis=1))


def test_smallest_first_puts_negative_numbers_in_front():
    assert smallest_first(np.array([[0.0, 0.5, -1.0, 0.25, -1.0]])).tolist() == [[2, 4, 0, 3, 1]]


def test_choice_stays_below_its_size():
    assert choice(np.array([0.0, 0.5, 1 - 2**-53]), 3).tolist() == [0, 1, 2]
    assert choice(np.array([0.9]), 0).tolist() == [0]

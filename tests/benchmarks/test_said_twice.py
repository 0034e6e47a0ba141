"""The likelihood of what a context has said before."""

import numpy as np

import xlnet_jax
from benchmarks import said_twice
from data_pipelines import sources


def test_the_second_time_is_compared_with_the_first(monkeypatch):
    """A network that has learned each piece's frequency, and to look a piece up, tells by how much."""

    def seen(_, queries, rows):
        first = said_twice.LENGTH
        return [np.where(query.positions_P < first, -np.log(1 + query.ids_L), -0.5) for query in queries]

    monkeypatch.setattr(said_twice, "log_likelihoods", seen)
    text_first, text_again, mixed_first, mixed_again = said_twice.likelihoods(xlnet_jax.load("tiny"), _novel())
    assert text_first == mixed_first < -1  # the pieces are the same
    assert text_again == mixed_again == -0.5


def test_tiny_predicts_running_text_better_than_the_pieces_in_a_random_order(monkeypatch):
    monkeypatch.setattr(said_twice, "PASSAGES", 16)
    text_first, text_again, mixed_first, _ = said_twice.likelihoods(xlnet_jax.load("tiny"), _novel())
    assert mixed_first + 1 < text_first < text_again


def _novel():
    with open(sources.embedded()[1]) as file:
        return " ".join(file.read().split()[:5000])

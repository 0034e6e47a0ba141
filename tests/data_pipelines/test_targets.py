"""Draw targets piece by piece, and as whole words."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.stateless import uniforms
from data_pipelines.targets import draw_targets, sample_pieces, sample_words, word_begins
from tests.data_pipelines.test_spans import FALSE_ALARM, same_distribution
from xlnet_jax.settings.config import DataConfig

DATA = DataConfig(num_predict=10)


def sample_words_one_by_one(begins, candidates, goal, uniform):
    """Draw one row word by word, as the definition says."""
    edges = [*np.flatnonzero(begins | (np.arange(len(begins)) == 0)), len(begins)]
    words = [range(i, j) for i, j in itertools.pairwise(edges) if candidates[i]]
    chosen = np.zeros(len(begins), bool)
    for word in sorted(words, key=lambda word: uniform[word[0]]):
        if chosen.sum() + len(word) <= goal:
            chosen[list(word)] = True
    return chosen


rows = st.tuples(st.integers(1, 40), st.floats(0, 1), st.floats(0, 1), st.integers(0, 45), st.integers(0, 2**31))


@settings(deadline=None)  # a busy machine is no error
@given(rows)
def test_words_are_taken_in_random_order_and_those_that_do_not_fit_are_passed_over(row):
    length, words, texts, goal, seed = row
    rng = np.random.default_rng(seed)
    starts, candidates = rng.random((5, length)) < words, rng.random((5, length)) < texts
    begins = word_begins(starts, candidates, np.zeros(5, bool))
    uniform = rng.random((5, length))
    ours = sample_words(begins, candidates, goal, uniform, DATA)
    one_by_one = [sample_words_one_by_one(*row, goal, u) for *row, u in zip(begins, candidates, uniform, strict=True)]
    np.testing.assert_array_equal(ours, one_by_one)


def windows(seed=0, rows=400, length=64):
    """Return (word starts, candidates) of text with <sep> at 30 and <sep> <cls> at the end, which are not
    candidates."""
    starts = np.random.default_rng(seed).random((rows, length)) < 0.5
    candidates = np.ones((rows, length), bool)
    candidates[:, [30, length - 2, length - 1]] = False
    return starts | ~candidates, candidates


def drawn(targets, reuse_len, is_reversed, num_predict=10):
    starts, candidates = windows()
    data = DataConfig(seq_len=64, reuse_len=reuse_len, num_predict=num_predict, targets=targets)

    def draw(purpose, width):
        return uniforms(1, purpose, 0, range(400), width)

    return starts, candidates, draw_targets(starts, candidates, np.full(400, is_reversed), draw, data)


@pytest.mark.parametrize("num_predict", [10, None])
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("reuse_len", [0, 24, 64])
def test_a_word_is_a_target_whole_or_not_at_all_also_over_the_edge_of_the_parts(reuse_len, is_reversed, num_predict):
    starts, candidates, is_target = drawn("words", reuse_len, is_reversed, num_predict)
    order = slice(None, None, -1 if is_reversed else 1)
    starts, candidates, is_target = (a[:, order] for a in (starts, candidates, is_target))
    inside = ~starts[:, 1:] & candidates[:, 1:] & candidates[:, :-1]  # goes on with the word before it
    assert (is_target[:, 1:] == is_target[:, :-1])[inside].all()
    assert is_target.any(1).mean() > 0.9
    if num_predict:
        assert (is_target.sum(1) <= num_predict).all()
        assert is_target.sum(1).mean() > num_predict - 0.2


@pytest.mark.parametrize("reuse_len", [0, 24])
def test_pieces_fill_the_goal_with_candidates_each_as_likely_as_any_other(reuse_len):
    _, candidates, is_target = drawn("pieces", reuse_len, is_reversed=False)
    assert (is_target.sum(1) == 10).all()
    assert not (is_target & ~candidates).any()
    for part in (slice(0, reuse_len), slice(reuse_len, 64)):
        counts = is_target[:, part].sum(0)[candidates[0, part]]
        if reuse_len or part.start:
            assert same_distribution(counts, np.full(len(counts), counts.mean())) > FALSE_ALARM


@pytest.mark.parametrize("targets", ["spans", "pieces"])
def test_a_window_that_is_reused_whole_fills_the_goal(targets):
    _, candidates, is_target = drawn(targets, 64, False)
    assert (is_target.sum(1) == 10).all()
    assert not (is_target & ~candidates).any()
    assert is_target[:, :32].any(1).mean() > 0.9
    assert is_target[:, 32:].any(1).mean() > 0.9


def test_a_row_with_fewer_candidates_than_the_goal_gives_them_all():
    candidates = np.zeros((3, 8), bool)
    candidates[:, 2:5] = True
    uniform = np.random.default_rng(0).random((3, 8))
    np.testing.assert_array_equal(sample_pieces(candidates, 5, uniform, DATA), candidates)

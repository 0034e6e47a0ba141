"""A tokenizer is trained on all of a small text, and on a uniform sample of a large one."""

import tracemalloc

import numpy as np
import pytest
import scipy.stats

from data_pipelines.tokenizer import Tokenizer
from data_pipelines.tokenizer.training import sample
from xlnet_jax.errors import InputError

FALSE_ALARM = 1e-4  # probability that a statistical test fails by chance


def numbered(count, width=100):
    return [f"{i:0{width}d}" for i in range(count)]


def test_a_text_within_the_bound_is_taken_whole_and_in_order():
    lines = ["b", "", "a", "ü", "", "b"]
    for bound in (5, 6, 10**9):
        assert sample(lines, bound) == (["b", "a", "ü", "b"], 4)
    assert len(sample(lines, 4)[0]) == 3, "ü takes two bytes"
    assert sample([], 10)[0] == []


def test_a_sample_keeps_the_order_and_the_bound_and_fills_it():
    lines = numbered(3000)
    drawn, seen = sample(lines, 50_050)
    assert drawn == sorted(drawn)
    assert len(set(drawn)) == len(drawn) == 500
    assert seen == 3000


def test_the_sample_depends_on_nothing_but_the_text_and_the_bound():
    drawn = [line.lstrip("0") for line in sample(numbered(10_000), 1_000)[0]]
    # On every machine: these are the lines whose Philox numbers are lowest.
    assert drawn == "780 4293 4405 4517 4921 5022 5039 6080 6816 6891".split()


def test_every_place_of_the_text_is_as_likely():
    kept = np.array([int(line) for line in sample(numbered(40_000), 800_000)[0]])
    observed = np.histogram(kept, 50, (0, 40_000))[0]
    # Draws without replacement: the statistic shrinks by the share that is left out.
    statistic = ((observed - 160) ** 2 / 160).sum() / (1 - 8_000 / 40_000)
    assert len(kept) == 8_000
    low, high = scipy.stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], 49)
    assert low < statistic < high


def test_memory_is_that_of_the_sample():
    tracemalloc.start()
    sample((f"{i:01000d}" for i in range(20_000)), 500_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000, "of 20 MB of text"


def test_a_sample_too_small_for_any_line_says_so():
    with pytest.raises(InputError, match="does not fit a sample of 50 bytes"):
        sample(numbered(10), 50)


def test_the_tokenizer_of_a_large_text_is_that_of_its_sample():
    lines = [
        f"the {a} {b} of {c}"
        for a in "large small red blue".split()
        for b in "house tree dog".split()
        for c in (f"number{i}" for i in range(100))
    ]
    bound = 8_000
    assert len(sample(lines, bound)[0]) < len(lines)
    whole = Tokenizer.train(sample(lines, bound)[0], 45, "auto")
    assert Tokenizer.train(lines, 45, "auto", sample_bytes=bound).model == whole.model
    assert Tokenizer.train(lines, 45, "auto").model != whole.model

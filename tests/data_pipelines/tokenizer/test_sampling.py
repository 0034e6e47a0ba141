"""A tokenizer is trained on all of a small text, and on a uniform sample of a large one."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import scipy.stats

from data_pipelines.tokenizer import Tokenizer
from data_pipelines.tokenizer.sampling import sample
from xlnet_jax.errors import InputError

FALSE_ALARM = 1e-4  # of each statistical test, were the numbers drawn anew


def numbered(count, width=100):
    return [f"{i:0{width}d}" for i in range(count)]


def test_a_text_within_the_bound_is_taken_whole_and_in_order():
    lines = ["b", "", "a", "ü", "", "b"]
    for bound in (5, 6, 10**9):
        drawn = sample(lines, bound)
        assert (drawn.lines, drawn.seen_lines, drawn.is_whole) == (["b", "a", "ü", "b"], 4, True)
    assert not sample(lines, 4).is_whole, "ü takes two bytes"
    assert sample([], 10).lines == []


def test_a_sample_keeps_the_order_and_the_bound_and_fills_it():
    lines = numbered(3000)
    drawn = sample(lines, 50_050)
    assert drawn.lines == sorted(drawn.lines)
    assert len(set(drawn.lines)) == len(drawn.lines) == 500
    assert drawn.seen_lines == 3000


def test_a_smaller_sample_is_part_of_a_larger_one():
    lines = numbered(3000)
    assert set(sample(lines, 10_000).lines) < set(sample(lines, 90_000).lines)


def test_the_sample_depends_on_nothing_but_the_text_and_the_bound():
    drawn = [line.lstrip("0") for line in sample(numbered(10_000), 1_000).lines]
    # On every machine: these are the lines whose Philox numbers are lowest.
    assert drawn == "780 4293 4405 4517 4921 5022 5039 6080 6816 6891".split()


def test_every_place_of_the_text_is_as_likely():
    kept = np.array([int(line) for line in sample(numbered(40_000), 800_000).lines])
    observed = np.histogram(kept, 50, (0, 40_000))[0]
    # Draws without replacement: the statistic shrinks by the share that is left out.
    statistic = ((observed - 160) ** 2 / 160).sum() / (1 - 8_000 / 40_000)
    assert len(kept) == 8_000
    low, high = scipy.stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], 49)
    assert low < statistic < high


def test_long_lines_are_as_likely_as_short_ones():
    lengths = np.tile([10, 400], 20_000)
    kept = sample([str(i).zfill(5).ljust(n, "x") for i, n in enumerate(lengths)], 1_000_000).lines
    long = sum(len(line) == 400 for line in kept)
    low, high = scipy.stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(kept), 0.5)
    assert low < long < high


def test_memory_is_that_of_the_sample():
    tracemalloc.start()
    sample((f"{i:01000d}" for i in range(20_000)), 500_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000, "of 20 MB of text"


def test_a_sample_too_small_for_any_line_says_so():
    with pytest.raises(InputError, match="a sample of 50 bytes has no room for a line"):
        sample(numbered(10), 50)


def test_training_takes_the_memory_of_the_sample():
    """SentencePiece would need some 500 MiB for the 24 MB of this text."""
    script = (
        "import resource\n"
        "import numpy as np\n"
        "from data_pipelines.tokenizer import Tokenizer\n"
        "words = [f'{i:x}'.translate(str.maketrans('0123456789', 'ghijklmnop')) for i in range(0, 2**20, 19)]\n"
        "def lines():\n"
        "    draw = np.random.default_rng(0)\n"
        "    for _ in range(8_000):\n"
        "        yield ' '.join(words[i] for i in draw.integers(0, len(words), 500))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "Tokenizer.train(lines(), 500, 'english', sample_bytes=10**6)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert int(result.stdout) < 150


def test_the_tokenizer_of_a_large_text_is_that_of_its_sample():
    lines = [
        f"the {a} {b} of {c}"
        for a in "large small red blue".split()
        for b in "house tree dog".split()
        for c in (f"number{i}" for i in range(100))
    ]
    bound = 8_000
    assert not sample(lines, bound).is_whole
    whole = Tokenizer.train(sample(lines, bound).lines, 45, "auto")
    assert Tokenizer.train(lines, 45, "auto", sample_bytes=bound).model == whole.model
    assert Tokenizer.train(lines, 45, "auto").model != whole.model

"""Text that says everything twice."""

import itertools
import random
from collections import Counter

from benchmarks.twice import sentences_twice, words_twice


def test_sentences_are_said_twice_in_the_same_words():
    documents = sentences_twice([f"the line of the number {n}" for n in range(100_000)], 100, random.Random(1))
    assert len(documents) == 100
    for document in documents:
        said, at, parts = document.split("\n"), 0, 0
        while at < len(said):
            size = 1 if said[at] == said[at + 1] else 2
            assert said[at : at + size] == said[at + size : at + 2 * size]
            at, parts = at + 2 * size, parts + 1
        assert parts == 20


def test_words_of_the_text_are_said_twice_or_three_times():
    known = ["".join(letters) for letters in itertools.product("abcdefghij", repeat=3)]
    times = []
    for document in words_twice(" ".join([*known, *known, "of", "once"]), 100, random.Random(2), at_least=2):
        said = document.split("\n")
        assert set(document.split()) <= {*known, "of", "once"}
        times += [said.count(line) for line in dict.fromkeys(said)]
    assert set(times) == {2, 3}


def test_rare_words_are_said_as_often_as_the_text_has_them():
    """Half of the parts draw from the running text; the other half leave rare words out."""
    known = ["".join(letters) for letters in itertools.product("abcdefghij", repeat=2)]
    text = " ".join([*(f"{word}x" for word in known), *["common"] * 100])
    said = Counter(" ".join(words_twice(text, 400, random.Random(3), at_least=2)).split())
    assert set(said) == {*text.split()}
    assert 0.7 < said["common"] / said.total() < 0.8  # a half, and half of the other half

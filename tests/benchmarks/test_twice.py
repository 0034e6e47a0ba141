"""Text that says everything twice."""

import itertools
import random

from benchmarks.twice import DOCUMENTS, sentences_twice, words_twice


def test_sentences_are_said_twice_in_the_same_words():
    documents = sentences_twice([f"the line of the number {n}" for n in range(100_000)], random.Random(1))
    assert len(documents) == DOCUMENTS
    for document in documents[:100]:
        said, at, parts = document.split("\n"), 0, 0
        while at < len(said):
            size = 1 if said[at] == said[at + 1] else 2
            assert said[at : at + size] == said[at + size : at + 2 * size]
            at, parts = at + 2 * size, parts + 1
        assert parts == 20


def test_words_of_the_text_are_said_twice_or_three_times():
    known = ["".join(letters) for letters in itertools.product("abcdefghij", repeat=3)]
    times = []
    for document in words_twice(" ".join([*known, "of"]), random.Random(2))[:100]:
        said = document.split("\n")
        assert set(document.split()) <= {*known, "of"}
        times += [said.count(line) for line in dict.fromkeys(said)]
    assert set(times) == {2, 3}

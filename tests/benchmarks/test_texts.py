"""Texts that studies make up or take apart."""

import json

import pytest

from benchmarks import dependent_targets, eight_tasks

ROWS = [f"row {number}" for number in range(25)]
CONTENTS = {
    eight_tasks.split_table: "head\n" + "\n".join(ROWS) + "\n",
    eight_tasks.split_rows: "\n".join(ROWS) + "\n",
    eight_tasks.split_sentences: "\n\n".join(f"{row}\tO" for row in ROWS) + "\n",
    eight_tasks.split_list: json.dumps(ROWS),
    eight_tasks.split_articles: json.dumps({"version": "1.1", "data": ROWS}),
}


def test_names_numbers_and_collocations_are_found():
    def spans(found, words):
        return [" ".join(words[span.begin : span.end]) for span in found]

    words = "Nothing was said. Lady Ann met Miss Eleanor Tilney, and Mr. Henry bowed to Captain Hunt; They left".split()
    assert spans(dependent_targets.names(words), words) == ["Miss Eleanor Tilney,", "Mr. Henry", "Captain Hunt;"]
    words = "she was five and twenty, had two thousand pounds and one horse in 1803".split()
    assert spans(dependent_targets.numbers(words), words) == ["five and twenty,", "two thousand"]
    text = " ".join(f"the word{i} met a drawing room at once" for i in range(40)) + " a room " * 10
    found = dependent_targets.associated_pairs(text, at_least=30, information=1.5)
    assert {("drawing", "room"), ("at", "once")} <= {*found}
    assert ("the", "word1") not in found
    words = "He saw the drawing room and a room".split()
    assert spans(dependent_targets.collocations(words, found), words) == ["drawing room"]


@pytest.mark.parametrize("split", CONTENTS, ids=lambda split: split.__name__)
def test_an_example_is_learned_or_set_aside(split):
    learned, aside = split(CONTENTS[split])
    found = [
        {row for row in ROWS if row in part.replace('"', "\n").replace("\t", "\n").split("\n")}
        for part in (learned, aside)
    ]
    assert found[0] | found[1] == set(ROWS)
    assert not found[0] & found[1]
    assert len(found[1]) == (1 if split is eight_tasks.split_articles else 2)
    assert ("head" in learned) == ("head" in aside) == (split is eight_tasks.split_table)

"""Examples that are set aside for tuning, and the rate that is kept."""

import json

import pytest

from benchmarks import eight_tasks
from benchmarks.eight_tasks import RATES, TASKS, best_rate

ROWS = [f"row {number}" for number in range(25)]
CONTENTS = {
    eight_tasks.split_table: "head\n" + "\n".join(ROWS) + "\n",
    eight_tasks.split_rows: "\n".join(ROWS) + "\n",
    eight_tasks.split_sentences: "\n\n".join(f"{row}\tO" for row in ROWS) + "\n",
    eight_tasks.split_list: json.dumps(ROWS),
    eight_tasks.split_articles: json.dumps({"version": "1.1", "data": ROWS}),
}


@pytest.mark.parametrize("split", CONTENTS, ids=lambda split: split.__name__)
def test_every_example_is_in_one_part(split):
    learned, aside = split(CONTENTS[split])
    found = [
        {row for row in ROWS if row in part.replace('"', "\n").replace("\t", "\n").split("\n")}
        for part in (learned, aside)
    ]
    assert found[0] | found[1] == set(ROWS)
    assert not found[0] & found[1]
    assert len(found[1]) == (1 if split is eight_tasks.split_articles else 2)
    assert ("head" in learned) == ("head" in aside) == (split is eight_tasks.split_table)


def test_each_start_keeps_its_own_best_rate():
    task = TASKS[0]
    scores = {"random": (0.3, 0.5, 0.4), "pretrained": (0.6, 0.5, 0.4)}
    measured = {
        f"{task.name}-{start}-tune-{rate:g}": {"score": score}
        for start, of_start in scores.items()
        for rate, score in zip(RATES, of_start, strict=True)
    }
    assert best_rate(task, "random", measured) == RATES[1]
    assert best_rate(task, "pretrained", measured) == RATES[0]

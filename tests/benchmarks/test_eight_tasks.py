"""Examples that are set aside for tuning, and the rate that is kept."""

import json
from pathlib import Path

import pytest

from benchmarks import eight_tasks, studies
from benchmarks.eight_tasks import NAME, RATES, SEEDS, TASKS, TUNING_SEED, best_rate

MEASURED = studies.read(studies.MEASURED / NAME)

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
    scores = {"random": (0.3, 0.5), "pretrained": (0.6, 0.5)}
    measured = {
        f"{task.name}-{start}-tune-{rate:g}": {"scores": [score]}
        for start, of_start in scores.items()
        for rate, score in zip(RATES, of_start, strict=True)
    }
    assert best_rate(task, "random", measured) == RATES[1]
    assert best_rate(task, "pretrained", measured) == RATES[0]


@pytest.mark.parametrize("name", MEASURED)
def test_a_record_has_the_command_of_its_task(name, tmp_path):
    """A record is a measurement of what the benchmark would run today."""
    task = next(task for task in TASKS if name.startswith(f"{task.name}-"))
    start, _, tuned = name.removeprefix(f"{task.name}-").partition("-tune-")
    files = [Path("DATA", task.train), Path("DATA", task.dev)]
    if tuned:
        files = [Path("SPLIT", task.name, f"{part}{Path(task.train).suffix}") for part in ("learn", "aside")]
    init, seeds = task.network.upper(), [TUNING_SEED] if tuned else SEEDS
    command = task.command(start, MEASURED[name]["rate"], seeds, tuple(files), init, tmp_path)
    assert studies.shown(command, tmp_path) == MEASURED[name]["command"]
    assert len(MEASURED[name]["scores"]) == len(seeds)


def test_a_phrase_of_a_sentence_that_is_set_aside_is_not_learned():
    sentence = "a long sentence whose many words all stand apart from those of others number {}"
    rows = [f"{sentence.format(n)} \t1\n" for n in range(100, 141)] + ["of others number 140 \t0\n", "new \t1\n"]
    learned, aside = eight_tasks.split_phrases("sentence\tlabel\n" + "".join(rows))
    assert aside == "sentence\tlabel\n" + rows[0] + rows[40]
    assert learned == "sentence\tlabel\n" + "".join(rows[1:40]) + rows[42]

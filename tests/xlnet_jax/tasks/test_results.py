"""The table of several seeds."""

import io
import json
import math

import pytest
from etils import epath
from rich.console import Console

from xlnet_jax.tasks.finetune import Result, summarize


def summarized(folder, by_seed):
    """Summarize metrics by seed; return the result, what is in results.json, and the table."""
    results, console = {}, Console(record=True, file=io.StringIO())
    for seed, metrics in by_seed.items():
        own = f"{folder}/seed-{seed}"
        results[seed] = Result(own, "ner", f"{own}/checkpoints/8", 8, "f1", metrics, (f"{own}/predictions/x",))
    found = summarize(epath.Path(folder), results, console)
    return found, json.loads((folder / "results.json").read_text()), console.export_text()


def test_metrics_that_are_no_number_or_not_of_every_seed_spoil_no_summary(tmp_path):
    _, written, _ = summarized(tmp_path, {0: {"f1": math.nan}, 1: {"f1": 0.5, "f1_LOC": 1.0}, 2: {"f1": 0.25}})
    assert written["checkpoint"] == "seed-1/checkpoints/8"
    assert math.isnan(written["mean"]["f1"])
    assert math.isnan(written["deviation"]["f1_LOC"])


def test_several_seeds_give_the_best_checkpoint_with_mean_and_deviation_of_a_sample(tmp_path):
    """The first of equal seeds is the best."""
    found, written, table = summarized(tmp_path, {2: {"f1": 0.25}, 4: {"f1": 0.75}, 6: {"f1": 0.75}})
    own, mean = f"{tmp_path}/seed-4", pytest.approx({"f1": 1.75 / 3})
    assert found == Result(str(tmp_path), "ner", f"{own}/checkpoints/8", 8, "f1", mean, (f"{own}/predictions/x",))
    assert written["checkpoint"] == "seed-4/checkpoints/8"
    assert written["deviation"]["f1"] == pytest.approx(math.sqrt(1 / 12))  # of a population: sqrt(1 / 18)
    assert written["seeds"]["4"]["predictions"] == ["predictions/x"]
    assert "0.5833 ± 0.29" in table

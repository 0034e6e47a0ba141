"""The table of several seeds."""

import io
import json
import math

import pytest
from etils import epath
from rich.console import Console

from xlnet_jax.tasks.run import Result, summarize


def summarized(folder, by_seed, console=None):
    """Summarize metrics by seed; return the result and what is in results.json."""
    results = {}
    for seed, metrics in by_seed.items():
        own = f"{folder}/seed-{seed}"
        results[seed] = Result(own, "ner", f"{own}/checkpoints/8", 8, "f1", metrics, (f"{own}/predictions/x",))
    found = summarize(epath.Path(folder), results, console or Console(quiet=True))
    return found, json.loads((folder / "results.json").read_text())


def test_metrics_that_are_no_number_or_not_of_every_seed_spoil_no_summary(tmp_path):
    by_seed = {0: {"f1": math.nan}, 1: {"f1": 0.5, "f1_LOC": 1.0}, 2: {"f1": 0.25}}
    _, written = summarized(tmp_path, by_seed)
    assert written["checkpoint"] == "seed-1/checkpoints/8"
    assert math.isnan(written["mean"]["f1"])
    assert math.isnan(written["deviation"]["f1_LOC"])


def test_the_deviation_over_seeds_is_that_of_a_sample_and_the_first_of_equal_seeds_is_best(tmp_path):
    by_seed = {2: {"f1": 0.25}, 4: {"f1": 0.75}, 6: {"f1": 0.75}}
    console = Console(record=True, file=io.StringIO())
    _, written = summarized(tmp_path, by_seed, console)
    assert written["deviation"]["f1"] == pytest.approx(math.sqrt(1 / 12))  # of a population: sqrt(1 / 18)
    assert "0.5833 ± 0.29" in console.export_text()
    assert written["checkpoint"] == "seed-4/checkpoints/8"


def test_the_result_of_several_seeds_is_the_best_checkpoint_and_the_mean(tmp_path):
    found, written = summarized(tmp_path, {0: {"f1": 0.5}, 3: {"f1": 0.75}})
    own = f"{tmp_path}/seed-3"
    files = (f"{own}/predictions/x",)
    assert found == Result(str(tmp_path), "ner", f"{own}/checkpoints/8", 8, "f1", {"f1": 0.625}, files)
    assert written["seeds"]["3"]["predictions"] == ["predictions/x"]

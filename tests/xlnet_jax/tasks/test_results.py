"""The table of several seeds."""

import io
import json
import math

import pytest
from etils import epath
from rich.console import Console

from xlnet_jax.tasks.results import Result, read_results, summarize


def of_seed(**metrics):
    return Result("ner", "checkpoints/8", 8, "f1", metrics, ())


def test_metrics_that_are_no_number_or_not_of_every_seed_spoil_no_summary(tmp_path):
    by_seed = {0: of_seed(f1=math.nan), 1: of_seed(f1=0.5, f1_LOC=1.0), 2: of_seed(f1=0.25)}
    summarize(epath.Path(tmp_path), by_seed, Console(quiet=True))
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["checkpoint"] == "seed-1/checkpoints/8"
    assert math.isnan(written["mean"]["f1"])
    assert math.isnan(written["deviation"]["f1_LOC"])


def test_the_deviation_over_seeds_is_that_of_a_sample_and_the_first_of_equal_seeds_is_best(tmp_path):
    by_seed = {2: of_seed(f1=0.25), 4: of_seed(f1=0.75), 6: of_seed(f1=0.75)}
    console = Console(record=True, file=io.StringIO())
    summarize(epath.Path(tmp_path), by_seed, console)
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["deviation"]["f1"] == pytest.approx(math.sqrt(1 / 12))  # of a population: sqrt(1 / 18)
    assert "0.5833 ± 0.29" in console.export_text()
    assert written["checkpoint"] == "seed-4/checkpoints/8"


def test_the_result_of_several_seeds_is_the_best_checkpoint_and_the_mean(tmp_path):
    by_seed = {0: of_seed(f1=0.5), 3: Result("ner", "checkpoints/8", 8, "f1", {"f1": 0.75}, ("predictions/eval/x",))}
    summarize(epath.Path(tmp_path), by_seed, Console(quiet=True))
    own = f"{tmp_path}/seed-3"
    assert read_results(str(tmp_path)) == Result(
        "ner", f"{own}/checkpoints/8", 8, "f1", {"f1": 0.625}, (f"{own}/predictions/eval/x",)
    )

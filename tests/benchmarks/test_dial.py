"""The law behind `train --minutes` follows from the recorded runs."""

from dataclasses import asdict

import pytest

from benchmarks import dial, studies
from xlnet_jax.training.dial_law import read_law

MEASURED = studies.read(studies.MEASURED / dial.NAME)


def test_the_law_of_the_package_is_the_one_of_the_records():
    again, kept = asdict(dial.fit(MEASURED)), asdict(read_law())
    for name in ("G", "A", "alpha", "B", "delta", "beta", "D0", "R", "depth", "T"):
        assert again[name] == pytest.approx(kept[name], rel=1e-3), name
    for name in ("errors", "errors_of_others"):
        assert again[name] == pytest.approx(kept[name], abs=2e-3), name


@pytest.mark.parametrize("run", dial.TIMED, ids=lambda run: run.name)
def test_runs_of_minutes_end_in_time(run):
    assert MEASURED[run.name]["seconds"] < 1.1 * 60 * run.minutes

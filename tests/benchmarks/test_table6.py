"""Intervals of paired differences, and the smallest difference that a design could have seen."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.table6 import CONFIDENCE, CONTENDERS, POWER, interval, report, scores_of, smallest_detectable


def test_the_interval_holds_the_mean_and_shrinks_with_the_number_of_pairs():
    draw = np.random.default_rng(1)
    widths = []
    for pairs in (5, 80):
        differences = draw.normal(1.0, 0.5, pairs)
        low, high = interval(differences)
        assert low < differences.mean() < high
        widths.append(high - low)
    # 1.96 standard errors on either side, by the deviation of these pairs.
    assert widths[1] == pytest.approx(2 * 1.96 * differences.std() / 80**0.5, rel=0.05)
    assert widths[1] < widths[0] / 2


def test_the_smallest_detectable_difference_is_found_as_often_as_promised():
    differences = np.array([0.3, -0.2, 0.5, 0.1, -0.4])
    difference = smallest_detectable(differences)
    drawn = np.random.default_rng(2).normal(difference, differences.std(ddof=1), (20_000, 5))
    found = stats.ttest_1samp(drawn, 0, axis=1).pvalue < 1 - CONFIDENCE
    assert found.mean() == pytest.approx(POWER, abs=0.01)
    assert smallest_detectable([0.5, 0.5]) == 0


def test_the_score_of_a_seed_is_the_mean_of_its_finetunings():
    measured = {
        "plm-seed-1-finetuned": {"scores": [0.7, 0.8]},
        "plm-seed-0-finetuned": {"scores": [0.6, 0.6]},
        "plm-seed-2": {"steps": 3},
        "plm-no-memory-seed-0-finetuned": {"scores": [0.1, 0.1]},
        "random-weights-seed-0-finetuned": {"scores": [0.2, 0.3]},
    }
    assert scores_of(measured, "plm") == pytest.approx([60, 75])
    assert scores_of(measured, "random weights") == pytest.approx([25])


def test_the_table_compares_all_with_the_baseline(capsys):
    measured = {}
    for number, contender in enumerate((*CONTENDERS, "random-weights")):
        for seed in range(5):
            measured[f"{contender}-seed-{seed}"] = {"steps": 1000 + number, "loss": 3 + seed, "seconds": 3600}
            scores = [0.8 - 0.01 * number + 0.001 * seed * (number % 2 + 1)] * 4
            measured[f"{contender}-seed-{seed}-finetuned"] = {"scores": scores, "seconds": 0}
    report(measured)
    lines = capsys.readouterr().out.strip().splitlines()
    assert [line.split(" | ")[0] for line in lines[2:10]] == [f"| {name}" for name in (*CONTENDERS, "random weights")]
    assert lines[2] == "| plm | 1,000 | 5.000 | 80.20 ± 0.16 |  |  |  |"
    assert lines[3].startswith("| plm-no-memory | 1,001 | 5.000 | 79.40 ± 0.32 | -0.80 | -0.")
    assert lines[-1] == "40.0 CPU hours"

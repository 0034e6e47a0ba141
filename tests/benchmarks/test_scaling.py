"""Runs of the scaling study, and what is recorded of them."""

import pytest

from benchmarks import studies
from benchmarks.scaling import SCALES, Run, budget_of, groups, transfers, tuning
from xlnet_jax.objectives.registry import step_flops
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.parser import parse

SMALL = SCALES["small"]
MEASURED = studies.read(studies.MEASURED / SMALL.name)


@pytest.mark.parametrize("name", MEASURED)
def test_a_record_has_the_command_of_its_run(name, tmp_path):
    """A record is a measurement of what the study would run today."""
    fields = ("name", "layers", "width", "steps", "rate", "rule", "seed")
    run = Run(**{field: MEASURED[name][field] for field in fields})
    assert studies.shown(run.command(SMALL, "CORPUS", tmp_path), tmp_path) == MEASURED[name]["command"]
    assert MEASURED[name]["loss"] < MEASURED[name]["unigram"]


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_runs_of_a_group_spend_equal_flops(scale):
    """Runs leave less than a step of their budget."""
    for budget in scale.budgets:
        of_group = [run for run in groups(scale, 1e-3, "muP", 8_000) if run.name.startswith(f"isoflop-{budget:g}-")]
        assert of_group
        for run in of_group:
            a_step = step_flops(scale.config(run.layers, run.width, 8_000))
            assert 0 <= budget - run.steps * a_step < a_step


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_the_train_command_takes_every_run(scale, tmp_path):
    for run in [*tuning(scale), *transfers(scale, 1e-3), *groups(scale, 1e-3, "muP", 8_000)]:
        module, *flags = run.command(scale, str(tmp_path), tmp_path)
        assert module == "xlnet_jax.train"
        parsed = parse(Config, flags, "train", "")
        assert parsed.model.d_model == run.width == parsed.model.num_heads * scale.d_head


def test_matrices_learn_slower_in_a_wide_network_by_mup_alone():
    wide = Run("wide", 2, 256, 1000, 4e-3, "muP")
    assert wide.settings(SMALL)["optimizer.matrix-rate"] == 0.25
    assert "optimizer.matrix-rate" not in Run("wide", 2, 256, 1000, 4e-3).settings(SMALL)


def test_a_budget_counts_every_run():
    *_, total = budget_of(SCALES["base"], 32_000, 1e15).splitlines()
    runs = [*tuning(SCALES["base"]), *transfers(SCALES["base"], 1e-3), *groups(SCALES["base"], 1e-3, "muP", 32_000)]
    assert total.split()[:2] == ["all", str(len(runs))]

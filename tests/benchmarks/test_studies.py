"""Studies run for hours: their commands have settings that exist and agree with each other, and their records are
measurements of what they would run today."""

import argparse
import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import (
    any_order_study,
    chinese,
    eight_tasks,
    english,
    long_recall,
    mdlm_variants,
    modern,
    narrow_start,
    scaling,
    studies,
    table6,
    tiny,
)
from benchmarks.eight_tasks import TASKS
from benchmarks.scaling import SCALES
from benchmarks.studies import Job, Study
from data_pipelines.objectives import Windows, mdlm
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.measurement.contenders import step_operations
from xlnet_jax.objectives.registry import step_flops
from xlnet_jax.settings.config import Config, DataConfig
from xlnet_jax.settings.fields import with_values
from xlnet_jax.settings.parser import parse

GOES_ON = ["--init", "tiny"]
"""excludes settings that come with weights"""
PRETRAININGS = {
    "chinese": chinese.SETTINGS,
    "english": [*english.SETTINGS, *GOES_ON],
    "long_recall": long_recall.SETTINGS,
    **{f"tiny, {n}": stage.settings(GOES_ON if n else tiny.NETWORK) for n, stage in enumerate(tiny.STAGES)},
}
SMALL = SCALES["small"]


@pytest.mark.parametrize("name", PRETRAININGS)
def test_settings_of_pretraining(name):
    config = COMMANDS["train"].parse([*PRETRAININGS[name], "--corpus", "corpus", "--workdir", "run"])
    assert config.corpus == ("corpus",)


def test_settings_of_a_narrow_start(tmp_path, monkeypatch):
    monkeypatch.setattr(narrow_start, "parts_of", lambda *_: (Path("learn"), Path("aside")))
    given = argparse.Namespace(data=Path("data"), workdir=tmp_path)
    for task, start in itertools.product(TASKS, narrow_start.STARTS):
        if task.name in narrow_start.NAMES:
            config = COMMANDS["finetune"].parse(narrow_start.job(task, start, given).command(tmp_path)[1:])
            assert config.narrow_start == (start == "all")
            assert (config.optimizer.learning_rate == 1e-3) == ("rate" in start)


def test_settings_of_contenders_and_of_random_weights(tmp_path):
    for contender in table6.CONTENDERS:
        _, *words = table6.pretraining(contender, 3, "corpus").command(tmp_path)
        config = COMMANDS["compare"].parse(words)
        assert (config.objectives, config.seeds) == ((contender,), (3,))
    (tmp_path / "plm-seed-1" / "plm" / "seed-1" / "pretrained").mkdir(parents=True)
    (tmp_path / "reviews").mkdir()
    for part in ("train", "dev"):
        (tmp_path / "reviews" / f"{part}.tsv").touch()
    trained, drawn = (
        COMMANDS["finetune"].parse(
            table6.finetuning(contender, 1, tmp_path, tmp_path / "reviews").command(tmp_path)[1:]
        )
        for contender in ("plm", table6.RANDOM)
    )
    assert drawn == dataclasses.replace(trained, reinitialize=True)
    assert len(trained.seeds) == table6.FINETUNINGS


# The least loss of short runs is at the second rate, and the full run below it is worse.
ANY_ORDER_LOSSES = {
    any_order_study.Run(contender, rate, 1, kind=kind).name: {"loss": abs(place - 1)}
    for contender in any_order_study.CONTENDERS
    for place, rate in enumerate(any_order_study.RATES)
    for kind in ("tune", "full")
}
ANY_ORDER_TUNING = [
    run for name in any_order_study.CONTENDERS for run in any_order_study.tuning(name, lambda: ANY_ORDER_LOSSES)
]
ANY_ORDER_RUNS = [*ANY_ORDER_TUNING, *any_order_study.runs_of(ANY_ORDER_LOSSES)]


def test_contenders_of_any_order_differ_only_in_what_is_compared(tmp_path):
    """They have the rate of the lowest held-out loss, here the second one, and the FLOPs or the tokens of plm."""
    plm = any_order_study.STEPS * any_order_study.cost("plm")
    for run in ANY_ORDER_RUNS:
        words = run.command("corpus", tmp_path)
        is_variant = run.contender in any_order_study.VARIANTS
        module = (
            ["benchmarks.mdlm_variants", run.contender.removeprefix("mdlm-")] if is_variant else ["xlnet_jax.train"]
        )
        assert words[: len(module)] == module
        config = COMMANDS["train"].parse(words[len(module) :])
        is_tuned = run.kind in ("flops", "tokens")
        assert config.optimizer.learning_rate == (any_order_study.RATES[1] if is_tuned else run.rate)
        assert (config.data.seq_len, config.model.mem_len, config.data.bidirectional) == (128, 0, False)
        assert config.objective != "plm" or config.data.perm_size == (32 if run.contender == "plm-blocks" else 128)
        if run.kind == "tokens":
            assert config.steps == any_order_study.STEPS
        else:
            share = any_order_study.TUNING if run.kind == "tune" else 1
            assert run.steps * any_order_study.cost(run.contender) == pytest.approx(share * plm, rel=0.01)


def test_a_learning_rate_is_that_of_the_best_full_run_at_or_below_the_best_rate_of_short_ones():
    """The full runs follow one another downwards from there, until the loss rises."""
    rates, name_of = (1, 2, 4, 8, 16), "{}-{}".format

    def full_rates(short_losses, full_losses):
        losses = {
            name_of(kind, rate): {"loss": loss}
            for kind, of in (("tune", short_losses), ("full", full_losses))
            for rate, loss in zip(rates, of, strict=False)
        }
        runs = [*studies.tuning(name_of, rates, lambda: losses)]
        assert runs[:5] == [("tune", rate) for rate in rates]
        return [rate for _, rate in runs[5:]], studies.best_rate(name_of, rates, losses)

    assert full_rates([5, 4, 3, 2, 1], [9, 8, 6, 7, 8]) == ([16, 8, 4, 2], 4)
    assert full_rates([5, 4, 1, 2, 3], [0, 7, 6, 0, 0]) == ([4, 2], 4)
    assert full_rates([1, 2, 3, 4, 5], [6]) == ([1], 1)
    assert full_rates([1, 2, 3, 4, 5], []) == ([1], None)
    assert full_rates([1, 2, 3, 4], []) == ([], None)


def test_any_order_is_reported_for_every_contender(tmp_path, monkeypatch, capsys):
    """The numbers of a record are those of its seed, so that all intervals are those of 0 and 1."""
    monkeypatch.setattr(any_order_study, "keep_table", lambda name, head, rows: print(name, head, *rows, sep="\n"))
    quality = ("nats", "repeated", "distinct", "nats_per_character", "per_second")
    ways = [any_order_study._name(way) for way in any_order_study.BY_QUERY]
    measured = {}
    for run in ANY_ORDER_RUNS:
        if run.seed < 2:
            value = float(run.seed)
            sampled = {"clm": ways[:1], "mlm": ["all in one pass"]}.get(run.contender)
            sampled = sampled or (ways[1:5] if run.contender.startswith("mdlm") else ways)
            measured[run.name] = {
                "run": {"contender": run.contender, "kind": run.kind, "seed": run.seed}, "steps": run.steps,
                "loss": value, "seconds": 1.0, "likelihood": {"random orders": value, "bound": value},
                "hidden": dict.fromkeys(any_order_study.HIDDEN_WAYS, value),
                "samples": {way: dict.fromkeys(quality, 1 + value) for way in (*sampled, "the text itself")},
            }  # fmt: skip
    any_order_study.report(measured)
    printed = capsys.readouterr().out
    for name in (*any_order_study.CONTENDERS, *any_order_study.VARIANTS):
        assert f"['{name}, equal FLOPs', '2', " in printed
    assert "'0.500 ± 6.353', '0.500 ± 6.353', '+0.000 ± 0.000']" in printed  # Student's t with one degree of freedom
    any_order_study.draw(measured, tmp_path / "samples.png")
    assert (tmp_path / "samples.png").stat().st_size > 1000


def test_records_of_any_order_have_the_commands_of_their_runs(tmp_path):
    measured = studies.read(studies.MEASURED / any_order_study.NAME)
    tuning = [run for name in any_order_study.CONTENDERS for run in any_order_study.tuning(name, lambda: measured)]
    runs = {run.name: run for run in (*tuning, *any_order_study.runs_of(measured))}
    for name, record in measured.items():
        assert studies.shown(runs[name].command("CORPUS", tmp_path), tmp_path) == record["command"]


@pytest.mark.parametrize("name", mdlm_variants.VARIANTS)
def test_a_variant_of_masked_diffusion_changes_only_its_part(name):
    data = DataConfig(seq_len=64, batch_size=16)
    draws = np.random.default_rng(0).random((16, 65))
    arrays = {"input_ids": np.random.default_rng(1).integers(9, 99, (16, 64)).astype(np.int32)}
    windows = Windows(
        arrays, np.ones(99, bool), lambda _, width: draws[:, :width], data, False, stratum_B=np.arange(16)
    )
    ordinary, changed = mdlm.fill(windows), mdlm_variants.VARIANTS[name](windows)
    assert {field: (of.dtype, of.shape) for field, of in changed.items()} == {
        field: (of.dtype, of.shape) for field, of in ordinary.items()
    }
    counts = [(batch["target_weights"] > 0).sum(1) for batch in (ordinary, changed)]
    np.testing.assert_allclose(ordinary["target_weights"].sum(1), counts[0])
    np.testing.assert_allclose(changed["target_weights"].sum(1), 64, rtol=1e-5)
    if name == "bound":
        np.testing.assert_array_equal(*counts)
    elif name == "interval":
        assert (counts[1].min(), counts[1].max()) == (1 + int(0.1 * 64 + 0.9 * 64 * draws[0, 0] / 16), counts[1][15])
    else:
        np.testing.assert_array_equal(counts[1], 1 + (64 * draws[:, 0]).astype(int))
    held_out = dataclasses.replace(windows, stratum_B=None, is_held_out=True)
    for field, array in mdlm.fill(held_out).items():
        np.testing.assert_array_equal(mdlm_variants.VARIANTS[name](held_out)[field], array)


MODERN_RUNS = [
    *modern.tuning("adamw"),
    *modern.tuning("modern"),
    *modern.tuning("same-parts"),
    *modern.same_parts(8e-3),
    *modern.variants(1.6e-2),
    *modern.of_law(1.6e-2),
    *modern.comparison({"adamw": 4e-3, "modern": 1.6e-2}),
]


def test_runs_of_the_modern_recipe_are_commands_of_train_and_modern_spends_half_of_adamw(tmp_path):
    for run in MODERN_RUNS:
        module, *words = run.command("corpus", run.steps(8_000), tmp_path)
        config = COMMANDS["train"].parse(words)
        assert (module, config.optimizer.method) == ("xlnet_jax.train", run.settings["optimizer.method"])
        a_step = step_operations(with_values(config, {"model.vocab_size": 8_000}))
        assert 0 <= run.flops - config.steps * a_step < a_step
        assert config.optimizer.method == "muon" or config.optimizer.matrix_rate <= 1
    compared = {run.name: run for run in MODERN_RUNS}
    for width in modern.BUDGETS:
        adamw, less = (compared[f"compare-{width}-{recipe}-seed-0"] for recipe in modern.COMPARED)
        assert less.flops == adamw.flops / 2


def test_records_of_the_modern_recipe_have_the_commands_of_their_runs(tmp_path):
    commands = {run.name: (run.command, ("CORPUS", run.steps(8_000))) for run in MODERN_RUNS}
    commands |= {job.name: (job.command, ()) for job in modern.transfers(Path("DATA"), Path("runs"))}
    for name, record in studies.read(studies.MEASURED / modern.NAME).items():
        command, arguments = commands.pop(name)
        assert record["command"] == studies.shown(
            command(*arguments, tmp_path), tmp_path, PRETRAINED=f"runs/compare-160-{name.rpartition('-')[2]}-seed-0"
        )
    assert not commands


def test_records_of_the_eight_tasks_have_the_commands_of_their_tasks(tmp_path):
    measured = studies.read(studies.MEASURED / eight_tasks.NAME)
    for name, record in measured.items():
        task = next(task for task in TASKS if name.startswith(f"{task.name}-"))
        start, _, tuned = name.removeprefix(f"{task.name}-").partition("-tune-")
        files = [Path("DATA", task.train), Path("DATA", task.dev)]
        if tuned:
            files = [Path("SPLIT", task.name, f"{part}{Path(task.train).suffix}") for part in ("learn", "aside")]
        seeds = [eight_tasks.TUNING_SEED] if tuned else eight_tasks.SEEDS
        command = task.command(start, record["rate"], seeds, tuple(files), task.network.upper(), tmp_path)
        assert studies.shown(command, tmp_path) == record["command"]
        assert len(record["scores"]) == len(seeds)


def test_records_of_the_scaling_study_have_the_commands_of_their_runs(tmp_path):
    fields = ("name", "layers", "width", "steps", "rate", "rule", "seed")
    for record in studies.read(studies.MEASURED / SMALL.name).values():
        run = scaling.Run(**{field: record[field] for field in fields})
        assert studies.shown(run.command(SMALL, "CORPUS", tmp_path), tmp_path) == record["command"]
        assert record["loss"] < record["unigram"]


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_runs_of_the_scaling_study_spend_equal_flops(scale, tmp_path):
    groups = scaling.groups(scale, 1e-3, "muP", 8_000)
    for budget in scale.budgets:
        of_group = [run for run in groups if run.name.startswith(f"isoflop-{budget:g}-")]
        assert of_group
        for run in of_group:
            a_step = step_flops(scale.config(run.layers, run.width, 8_000))
            assert 0 <= budget - run.steps * a_step < a_step
    for run in (scaling.tuning(scale)[0], scaling.transfers(scale, 1e-3)[0], groups[0]):
        module, *flags = run.command(scale, str(tmp_path), tmp_path)
        assert module == "xlnet_jax.train"
        parsed = parse(Config, flags, "train", "")
        assert parsed.model.d_model == run.width == parsed.model.num_heads * scale.d_head


def test_a_chain_of_jobs_runs_in_its_order_and_once_and_ends_where_one_fails(tmp_path, monkeypatch):
    def copying(source, target):
        source, target = tmp_path / source, tmp_path / target
        return Job(
            target.name, lambda _: ["json.tool", str(source), str(target)], lambda _: json.loads(target.read_text())
        )

    monkeypatch.setattr(studies, "MEASURED", tmp_path / "measured")
    study = Study("copies", tmp_path / "workdirs", 2)
    (tmp_path / "a").write_text('{"loss": 1}')
    chains = [[copying("a", "b"), copying("b", "c")], [copying("a", "d")]]
    study.run_chains(chains)
    (tmp_path / "a").unlink()
    study.run_chains(chains)  # would fail without its source
    with pytest.raises(SystemExit, match=r"missing ended with exit code \d+: .*output\.txt"):
        study.run_chains([[copying("none", "missing"), copying("b", "e")]])
    assert study.measured() == {name: {"loss": 1} for name in "bcd"}

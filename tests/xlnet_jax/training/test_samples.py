"""A run continues a held-out passage and fills a gap in it at each evaluation, and this changes nothing else."""

import json
import time
from dataclasses import replace

import pytest

import xlnet_jax
from data_pipelines.corpus import Corpus
from tests.xlnet_jax.training.test_records_run import FIELDS, pretrain, rows
from tests.xlnet_jax.training.tiny_run import arguments, assert_same, records_of, state_of
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.training import samples
from xlnet_jax.training.samples import Sample

train = COMMANDS["train"]
PROTEIN = "ABCDEFGHIKLMNOPQRSTUVWXYZ"
WITH = "--eval.samples"
SHORT = ("--optimizer.decay-steps", "12", "--steps", "6")
KINDS = {
    "plm": ["continued", "filled"],
    "mdlm": ["continued", "filled"],
    "clm": ["continued"],
    "prefix": ["continued"],
    "mlm": ["filled"],
    "rtd": [],
}
OWN = {  # flags besides the objective
    "clm": "--data.num-predict None --data.reuse-len 32 --data.perm-size 32",
    "prefix": "--model.mem-len 0 --data.reuse-len 0 --data.perm-size 32 --data.num-predict None",
    "mdlm": "--model.mem-len 0 --data.reuse-len 0 --data.perm-size 32 --data.num-predict None",
    "mlm": "--model.mem-len 0 --data.reuse-len 0 --data.perm-size 32",
    "rtd": "--model.mem-len 0 --data.reuse-len 0 --data.perm-size 32",
}


def samples_of(workdir):
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["split"] == "sample"]


@pytest.fixture(scope="module")
def speaking(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("speaking") / "run"
    assert train.main(arguments(text, folder, WITH)) == 0
    return folder


@pytest.mark.contract
def test_a_run_with_samples_is_bit_identical_to_one_without(speaking, straight):
    assert_same(state_of(speaking), state_of(straight))
    assert records_of(speaking) == records_of(straight)
    assert not samples_of(straight)
    assert [(r["step"], r["kind"]) for r in samples_of(speaking)] == [
        (step, kind) for step in (6, 12) for kind in KINDS["plm"]
    ]


def test_a_resumed_run_draws_the_same_samples(speaking, text, tmp_path):
    run = tmp_path / "run"
    assert train.main(arguments(text, run, WITH, *SHORT)) == 0
    assert train.main(arguments(text, run, WITH, "--optimizer.decay-steps", "12")) == 0
    assert samples_of(run) == samples_of(speaking)


def test_a_sample_is_a_passage_of_the_held_out_text(speaking):
    corpus = Corpus(speaking / "corpus")
    whole = " ".join(corpus.tokenizer.decode(ids) for ids in corpus.documents("validation"))
    for record in samples_of(speaking):
        passage = record["before"] + record["held_out"] + record["after"]
        assert len(passage) > 20
        assert passage in whole
        assert record["drawn"] != record["held_out"]


def test_samples_are_in_the_log_and_in_tensorboard(text, tmp_path, capsys):
    assert train.main(arguments(text, tmp_path / "run", WITH)) == 0
    out = capsys.readouterr().out.splitlines()
    place = next(i for i, line in enumerate(out) if line.startswith("held out at step 6"))
    assert [line.split()[0] for line in out[place + 1 : place + 3]] == KINDS["plm"]
    assert all("[" in line and "]" in line and len(line) < 250 for line in out[place + 1 : place + 3])
    (events,) = (tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*")
    for kind in KINDS["plm"]:
        assert events.read_bytes().count(f"samples/{kind}/text_summary".encode()) >= 2
        assert events.read_bytes().count(out[place + 1 + KINDS["plm"].index(kind)].split(maxsplit=1)[1].encode()) == 1


@pytest.mark.parametrize("objective", KINDS)
def test_each_objective_draws_what_it_can(objective, text, tmp_path, capsys):
    own = OWN.get(objective, "").split()
    assert train.main(arguments(text, tmp_path / "run", WITH, "--objective", objective, *own, *SHORT)) == 0
    assert [r["kind"] for r in samples_of(tmp_path / "run")] == KINDS[objective]
    assert "samples     none" not in capsys.readouterr().out


@pytest.mark.parametrize("objective", ["plm", "clm", "mlm"])
def test_records_are_continued_and_filled_with_symbols_of_their_fields(objective, tmp_path, capsys):
    file = tmp_path / "receptors.tsv"
    file.write_text("\n".join(["cdr3\tv\tj", *(f"{cdr3}\t{v}\t{j}" for v, cdr3, j in rows())]))
    pretrain(tmp_path / "run", corpus=str(file), fields=FIELDS, objective=objective)
    assert "samples     none" not in capsys.readouterr().out
    found = samples_of(tmp_path / "run")
    assert [r["kind"] for r in found] == KINDS[objective]
    for record in found:
        fields = (record["before"] + record["drawn"] + record["after"]).split("\t")
        assert fields[0].startswith("TRBV")
        assert len(fields) == 3 or objective == "clm"
        assert set(fields[1]) <= set(PROTEIN)


def test_seconds_and_speed_of_steps_exclude_samples(text, tmp_path, monkeypatch):
    slow, passed, drawn, real = 1e4, [0.0], samples._draw, time.perf_counter

    def draw(*arguments):
        passed[0] += slow
        return drawn(*arguments)

    monkeypatch.setattr(time, "perf_counter", lambda: real() + passed[0])
    monkeypatch.setattr(samples, "_draw", draw)
    run = tmp_path / "run"
    assert train.main(arguments(text, run, WITH, "--eval.every-steps", "3", "--log.every-steps", "1")) == 0
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(r.get("seconds_per_step", 0) for r in records) < slow
    last = [r for r in records if r["split"] == "time"][-1]
    assert last["evaluation"] > 4 * slow
    assert last["updates"] < slow


def test_an_error_ends_the_samples_and_not_the_run(text, tmp_path, monkeypatch, capsys):
    def fail(*arguments):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(samples, "_draw", fail)
    assert train.main(arguments(text, tmp_path / "run", WITH)) == 0
    assert capsys.readouterr().out.count("samples     none: RESOURCE_EXHAUSTED: out of memory") == 1


def test_weights_that_several_devices_share_are_gathered_or_the_reason_is_printed(text, tmp_path, monkeypatch, capsys):
    sharded = ("--mesh.fsdp", "2")
    assert train.main(arguments(text, tmp_path / "run", WITH, *SHORT, *sharded)) == 0
    assert len(samples_of(tmp_path / "run")) == 2
    monkeypatch.setattr(samples, "GATHERED_BYTES", 1000)
    assert train.main(arguments(text, tmp_path / "other", WITH, *SHORT, *sharded)) == 0
    assert "samples     none: the weights are divided among devices, and too large for one" in capsys.readouterr().out
    assert not samples_of(tmp_path / "other")


def test_ids_and_networks_of_ones_own_draw_nothing(tmp_path):
    ids = {"train": [9, 10, 11] * 8000, "validation": [9, 10, 11] * 8000}
    config = xlnet_jax.preset("demo", workdir=str(tmp_path / "run"), steps=1)
    small = replace(config.model, vocab_size=20, num_layers=1, d_model=16, num_heads=1, d_head=16, d_ff=16)
    xlnet_jax.pretrain(replace(config, model=small), dataset=ids)
    assert not samples_of(tmp_path / "run")


def test_a_line_is_short_and_has_no_tabs_or_line_ends():
    sample = Sample("filled", "many words " * 30 + "and\n", " so\ton", " more words" * 30, "")
    line = sample.line()
    assert len(line) < 130
    assert line.startswith("…")
    assert line.endswith("…")
    assert "[so  on]" in line
    assert "\n" not in line

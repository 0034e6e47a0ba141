"""Checkpoints, workdirs and prepared corpora of version 0.1.0 keep working (README.md)."""

import json
import shutil
from importlib import import_module

import numpy as np
import pytest

import xlnet_jax
from data_pipelines.corpus import Corpus
from tests.legacy import continued

evaluate = import_module("xlnet_jax.evaluate")

NAMES = list(continued.RUNS)
RECORDED = 4  # rows of metrics.jsonl that version 0.1.0 wrote before it stopped: three steps and an evaluation
EXACT = ("objective", "targets", "windows", "pieces", "characters", "bytes", "words", "unknown", "documents")


@pytest.fixture(scope="module")
def yesterday(tmp_path_factory):
    folder = tmp_path_factory.mktemp("yesterday")
    continued.unpack(folder)
    return folder


def kept(before, after):
    """Return the settings of today that yesterday had too: settings may be added, and none may change."""
    if not isinstance(before, dict):
        return after
    return {name: kept(value, after[name]) for name, value in before.items()}


@pytest.mark.parametrize("name", NAMES)
def test_the_command_of_yesterday_continues_its_run_to_the_same_losses(name, yesterday, tmp_path, capsys):
    """Without dropout: its masks have changed since."""
    folder = tmp_path / "today"
    shutil.copytree(yesterday, folder)

    assert continued.go_on(name, folder, dropout=False) == 0

    said = capsys.readouterr().out
    assert "resumed     at step 3 of 6" in said
    assert "cannot be read" not in said
    assert "dropout masks" not in said
    ours = continued.losses(folder / name)
    theirs = continued.RUNS[name]["losses"][:RECORDED] + continued.RUNS[name]["without_dropout"]["losses"]
    assert [list(row) for row in ours] == [list(row) for row in theirs]
    for row, expected in zip(ours, theirs, strict=True):
        assert row == pytest.approx(expected, abs=1e-5), f"{row} against {expected}"


@pytest.mark.parametrize("name", ["plm", "finetuned"])
def test_a_run_of_yesterday_goes_on_with_other_dropout_masks_and_says_so(name, yesterday, tmp_path, capsys):
    folder = tmp_path / "today"
    shutil.copytree(yesterday, folder)
    before = json.loads((folder / name / "config.json").read_text())

    assert continued.go_on(name, folder, dropout=True) == 0

    line = "this run began with other dropout masks: from step 3 on they are made by a hash of place and step"
    assert capsys.readouterr().out.count(line) == 1
    after = json.loads((folder / name / "config.json").read_text())
    assert kept(before, after) == before
    ours, theirs = continued.losses(folder / name), continued.RUNS[name]["losses"]
    assert [list(row) for row in ours] == [list(row) for row in theirs]
    assert ours[:RECORDED] == theirs[:RECORDED]
    for row, expected in zip(ours[RECORDED:], theirs[RECORDED:], strict=True):
        assert row == pytest.approx(expected, abs=0.2), f"{row} against {expected}"
    assert ours[RECORDED:] != theirs[RECORDED:]


@pytest.mark.parametrize("name", [*NAMES, "complete"])
def test_a_checkpoint_of_yesterday_is_loaded(name, yesterday):
    pretrained = xlnet_jax.load(yesterday / name)

    hidden = pretrained.hidden_states(*pretrained.encode(["It is so."]))

    assert hidden.shape[-1] == 16
    assert np.isfinite(hidden).all()
    assert (pretrained.head is not None) == (name in ("finetuned", "complete"))


def test_evaluate_measures_what_it_measured_yesterday(yesterday, tmp_path):
    out = tmp_path / "evaluate.json"

    assert evaluate.main([str(yesterday / "plm"), "--out", str(out)]) == 0

    found, expected = json.loads(out.read_text()), continued.RUNS["plm"]["evaluate"]
    assert {name: found[name] for name in EXACT} == {name: expected[name] for name in EXACT}
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    assert found["unigram"] == pytest.approx(expected["unigram"], abs=1e-5)


def test_a_finetuning_run_that_ended_yesterday_keeps_its_results(yesterday, tmp_path):
    shutil.copytree(yesterday, tmp_path / "today")
    results = json.loads((yesterday / "complete" / "results.json").read_text())
    shutil.rmtree(tmp_path / "today" / "finetuned")
    (tmp_path / "today" / "complete").rename(tmp_path / "today" / "finetuned")

    assert continued.go_on("finetuned", tmp_path / "today", dropout=True) == 0

    again = json.loads((tmp_path / "today" / "finetuned" / "results.json").read_text())
    assert again.pop("metrics") == pytest.approx(results.pop("metrics"), abs=1e-5)
    assert again == results


def test_a_corpus_prepared_yesterday_is_whole(yesterday):
    corpus = Corpus(yesterday / "corpus")

    assert [corpus.num_blocks(split) for split in ("train", "validation")] == [114, 53]
    assert corpus.tokenizer.vocab_size == 80

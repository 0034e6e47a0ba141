"""Commands of studies, some of which run for hours: all their settings exist and agree with each other."""

import argparse
import dataclasses
from pathlib import Path

import pytest

from benchmarks import chinese, english, long_recall, narrow_start, table6, tiny
from benchmarks.eight_tasks import STARTS, TASKS
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.comparison.settings import parse_comparison
from xlnet_jax.objectives import command_line

finetune = COMMANDS["finetune"].parse
GOES_ON = ["--init", "tiny"]
"""excludes settings that come with weights"""
PRETRAININGS = {
    "chinese": chinese.SETTINGS,
    "english": [*english.SETTINGS, *GOES_ON],
    "long_recall": long_recall.SETTINGS,
    **{f"tiny, {n}": stage.settings(GOES_ON if n else tiny.NETWORK) for n, stage in enumerate(tiny.STAGES)},
}


@pytest.mark.parametrize("name", PRETRAININGS)
def test_of_pretraining(name):
    config = command_line.parse_config([*PRETRAININGS[name], "--corpus", "corpus", "--workdir", "run"], "train", "")
    assert config.corpus == ("corpus",)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_of_finetuning(task, start, tmp_path, monkeypatch):
    _, *words = task.command(start, 1e-3, [0, 1], (Path("train"), Path("dev")), "tiny", tmp_path)
    config = finetune(words)
    assert (config.reinitialize, config.seeds) == (start == "random", (0, 1))


@pytest.mark.parametrize("start", narrow_start.STARTS)
@pytest.mark.parametrize("name", narrow_start.NAMES)
def test_of_a_narrow_start(start, name, tmp_path, monkeypatch):
    """Each start takes its part of what the last has by default."""
    monkeypatch.setattr(narrow_start, "parts_of", lambda *_: (Path("learn"), Path("aside")))
    (task,) = (task for task in TASKS if task.name == name)
    given = argparse.Namespace(data=Path("data"), workdir=tmp_path)
    _, *words = narrow_start.job(task, start, given).command(tmp_path)
    config = finetune(words)
    assert config.narrow_start == (start == "all")
    assert (config.optimizer.learning_rate == 1e-3) == ("rate" in start)
    assert (config.model.dropout == config.model.attention_dropout == 0) == ("dropout" in start)
    assert (config.head.summary == "mean") == ("summary" in start)


@pytest.fixture
def reviews(tmp_path):
    """Return the folder of the reviews that contenders learn from."""
    folder = tmp_path / table6.FOLDER
    folder.mkdir()
    for part in ("train", "dev"):
        (folder / f"{part}.tsv").write_text("label\ttext_a\n" + "1\t好\n" * 3_000)
    return table6.few_examples(tmp_path, tmp_path / "few")


@pytest.mark.parametrize("contender", table6.CONTENDERS)
def test_of_a_contender(contender, tmp_path):
    _, *words = table6.pretraining(contender, 3, "corpus").command(tmp_path)
    asked = parse_comparison(words, "compare", "")
    assert (asked.objectives, asked.seeds) == ((contender,), (3,))


def test_random_weights_are_finetuned_as_contenders_are(reviews, tmp_path, monkeypatch):
    (tmp_path / "plm-seed-1" / "plm" / "seed-1" / "pretrained").mkdir(parents=True)
    trained, drawn = (
        finetune(table6.finetuning(contender, 1, tmp_path, reviews).command(tmp_path / "run")[1:])
        for contender in ("plm", table6.RANDOM)
    )
    assert drawn == dataclasses.replace(trained, reinitialize=True)
    assert len(trained.seeds) == table6.FINETUNINGS


def test_a_pretrained_network_that_is_gone_is_named(reviews, tmp_path):
    with pytest.raises(SystemExit, match=r"bert-seed-1 is gone: remove .*table6/bert-seed-1.json, to pre"):
        table6.finetuning("bert", 1, tmp_path, reviews).command(tmp_path / "run")


def test_contenders_learn_from_few_examples_and_are_measured_on_all(reviews):
    lines = {part: (reviews / f"{part}.tsv").read_text().splitlines() for part in ("train", "dev")}
    assert [len(lines[part]) for part in ("train", "dev")] == [table6.EXAMPLES + 1, 3_001]
    assert lines["train"][0] == "label\ttext_a"

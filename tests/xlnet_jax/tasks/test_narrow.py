"""The settings from which a narrow network is finetuned, and those with which a run began."""

import json
import shutil
from dataclasses import replace
from importlib import import_module

import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import random_model
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.settings.config import HeadConfig, ModelConfig
from xlnet_jax.tasks import narrow
from xlnet_jax.tasks.defaults import DEFAULTS

finetune = import_module("xlnet_jax.finetune")

TASKS_OWN = {
    "optimizer.learning-rate": 2e-5, "model.dropout": 0.1, "model.attention-dropout": 0.1, "head.summary": "last"
}  # fmt: skip
GIVEN = ["--optimizer.learning-rate", "5e-4"]


def words(init, table, steps=1):
    more = f"--data.batch-size 8 --data.seq-len 32 --steps {steps}"
    return ["--task", "classification", "--init", str(init), "--train", str(table), *more.split()]


def begun_with(folder):
    """Return the settings of a run that a narrow start may change."""
    settings = json.loads((folder / "config.json").read_text())
    sections = (name.split(".") for name in TASKS_OWN)
    return [settings[section][name.replace("-", "_")] for section, name in sections]


@pytest.fixture(scope="session")
def without_dropout(tokenizer, tmp_path_factory):
    """The folder of a network of a width of 16 that was pretrained without dropout."""
    model = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=1, d_model=16, num_heads=2, d_head=8, d_ff=32, mem_len=0,
        dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("without-dropout") / "checkpoint"
    xlnet_jax.save(random_model(model, None, tokenizer), folder)
    return folder


def test_a_narrow_network_starts_from_settings_that_suit_it(without_dropout, table, tmp_path, capsys):
    begun = {}
    for name, given in (
        ("nothing", []),
        ("two", ["--optimizer.learning-rate", "5e-4", "--head.summary", "attn"]),
        ("rate", ["--no-rate-for-width"]),
        ("others", ["--no-narrow-start"]),
    ):
        assert finetune.main([*words(without_dropout, table), *given, "--workdir", str(tmp_path / name)]) == 0
        told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("narrow")]
        begun[name] = (begun_with(tmp_path / name), told)
    dropout = "model.dropout 0 (0.1), model.attention-dropout 0 (0.1)"
    rate, summary = "optimizer.learning-rate 0.001 (2e-05)", "head.summary mean (last)"
    ending = (
        "; the task's settings, in parentheses, are for networks of 768 and more, this one is 16 wide: "
        "--no-rate-for-width and --no-narrow-start keep them"
    )
    assert begun == {
        "nothing": ([1e-3, 0, 0, "mean"], [f"narrow      {dropout}, {rate}, {summary}{ending}"]),
        "two": ([5e-4, 0, 0, "attn"], [f"narrow      {dropout}{ending}"]),
        "rate": ([2e-5, 0, 0, "mean"], [f"narrow      {dropout}, {summary}{ending}"]),
        "others": ([1e-3, 0.1, 0.1, "last"], [f"narrow      {rate}{ending}"]),
    }


@pytest.mark.parametrize(
    ("began", "again"),
    [
        (["--no-rate-for-width", "--no-narrow-start"], [2e-5, 0.1, 0.1, "last"]),
        (["--no-narrow-start"], [1e-3, 0.1, 0.1, "last"]),
        (["--no-narrow-start", *GIVEN], [5e-4, 0.1, 0.1, "last"]),
    ],
    ids=["first", "with a rate for the width", "with a rate that is given"],
)
def test_a_run_of_an_earlier_version_goes_on_as_it_began(without_dropout, table, tmp_path, began, again):
    """Earlier versions knew neither setting, or the first alone."""
    argv = [*words(without_dropout, table), "--seeds", "0", "1", "--workdir", str(tmp_path)]
    assert finetune.main([*argv, *began]) == 0
    shutil.rmtree(tmp_path / "seed-1")
    yesterdays = json.loads((tmp_path / "seed-0" / "config.json").read_text())
    del yesterdays["narrow_start"], yesterdays["rate_for_width"]
    (tmp_path / "seed-0" / "config.json").write_text(json.dumps(yesterdays))
    argv += GIVEN if GIVEN[0] in began else []
    for _ in range(2):  # the first writes the settings anew
        assert finetune.main(argv) == 0
        assert [begun_with(tmp_path / f"seed-{seed}") for seed in (0, 1)] == [again] * 2


def test_a_run_from_a_narrow_start_resumes_without_its_source(without_dropout, table, tmp_path, capsys):
    source = shutil.copytree(without_dropout, tmp_path / "source")
    more = ["--workdir", str(tmp_path / "run"), "--optimizer.decay-steps", "4", "--optimizer.warmup-steps", "1"]
    assert finetune.main([*words(source, table, steps=2), *more]) == 0
    shutil.rmtree(source)
    assert finetune.main([*words(source, table, steps=4), *more]) == 0
    assert begun_with(tmp_path / "run") == [1e-3, 0, 0, "mean"]
    assert "resumed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "summary"),
    [
        ({}, "mean"),
        ({"task": "dream"}, "mean"),
        ({"task": "ranking"}, "mean"),
        ({"task": "ner"}, "last"),  # has no summary
        ({"network": "bert"}, "last"),  # its pretraining reads <cls>
        ({"d_model": 768}, "last"),
        ({"head": HeadConfig("classification", 3, "attn")}, "attn"),
        ({"head": HeadConfig("question_answering")}, "mean"),
    ],
)
def test_the_summary_of_a_narrow_start(change, summary):
    """A checkpoint with a head that reads a summary goes on with it."""
    task, head = change.pop("task", "rte"), change.pop("head", None)
    network = ModelConfig(**{"d_model": 64, "dropout": 0.0} | change)
    own = DEFAULTS[task]()
    config = replace(own, model=replace(own.model, d_model=network.d_model, network=network.network))
    begun, _ = narrow.narrow_start(config, Pretrained(network, {}, None, head=head))
    assert begun.head == replace(config.head, summary=summary)


@pytest.mark.parametrize(
    ("task", "dropout"), [("rte", 0.0), ("sts-b", 0.0), ("dream", 0.0), ("ranking", 0.0), ("squad", 0.0), ("ner", 0.1)]
)
def test_dropout_is_that_of_pretraining_but_for_labels_of_words(task, dropout):
    own = DEFAULTS[task]()
    config = replace(own, model=replace(own.model, d_model=64))
    begun, _ = narrow.narrow_start(config, Pretrained(ModelConfig(dropout=0.0, attention_dropout=0.0), {}, "plm"))
    assert (begun.model.dropout, begun.model.attention_dropout) == (dropout, dropout)
    assert begun.optimizer.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("task", "width", "rate"),
    [("sts-b", 64, 1e-3), ("sts-b", 128, 1e-3), ("sts-b", 256, 5e-4), ("sts-b", 768, 5e-5), ("yelp-5", 1024, 1e-5)],
)
def test_the_rate_falls_with_the_width_down_to_that_of_the_task(task, width, rate):
    assert narrow.learning_rate_of(task, width) == rate

"""The settings from which a narrow network is finetuned, and what counts as given."""

from dataclasses import replace

import pytest
from rich.console import Console

import xlnet_jax
from tests.xlnet_jax.random_models import random_model
from tests.xlnet_jax.tasks.task_runs import tiny
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.settings import parser
from xlnet_jax.settings.config import HeadConfig, ModelConfig
from xlnet_jax.settings.fields import with_values
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.prepare import narrow_start, prepare
from xlnet_jax.training.workdir import Workdir


@pytest.fixture(scope="module")
def without_dropout(tokenizer, tmp_path_factory):
    """The folder of a network of a width of 16 that was pretrained without dropout."""
    model = replace(tiny(tokenizer.vocab_size), init_std=0.05)
    folder = tmp_path_factory.mktemp("without-dropout") / "checkpoint"
    xlnet_jax.save(random_model(model, None, tokenizer), folder)
    return folder


@pytest.fixture
def words(without_dropout, table):
    more = "--data.batch-size 8 --data.seq-len 32 --steps 130"
    return ["--task", "classification", "--init", str(without_dropout), "--train", str(table), *more.split()]


@pytest.fixture
def prepared(tmp_path):
    return lambda config: prepare(config, 0, [Workdir(tmp_path / "run")], Console(quiet=True)).settings.final()


def parsed(words):
    return parser.parse(FinetuneConfig, words, "", "", DEFAULTS["classification"]())


def narrowed(config):
    """Return the settings that a narrow start may change."""
    return [config.optimizer.learning_rate, config.model.dropout, config.model.attention_dropout, config.head.summary]


@pytest.mark.parametrize(
    ("given", "begun"),
    [
        ("", [1e-3, 0, 0, "mean"]),
        (
            "--optimizer.learning-rate 2e-5 --model.dropout 0.1 --head.summary last",
            [2e-5, 0.1, 0, "last"],
        ),  # the task's
        ("--no-narrow-start", [2e-5, 0.1, 0.1, "last"]),
    ],
)
def test_a_narrow_network_starts_from_what_suits_it_where_nothing_is_given(words, prepared, given, begun):
    assert narrowed(prepared(parsed([*words, *given.split()]))) == begun


def test_settings_that_are_handed_over_whole_are_all_given(words, prepared, without_dropout, table, monkeypatch):
    handed = []
    monkeypatch.setattr("xlnet_jax.tasks.finetune.finetune_as", lambda _, config, __: handed.append(config))
    xlnet_jax.finetune(DEFAULTS["classification"](), init=str(without_dropout), train=str(table), steps=130)
    for config, expected in ((handed[0], (2e-5, 120, 0.02)), (parsed(words), (1e-3, 13, 0.05))):  # 120 of 1,200 steps
        found = prepared(config)
        assert (found.optimizer.learning_rate, found.optimizer.warmup_steps, found.model.init_std) == expected


@pytest.mark.parametrize(
    ("task", "network", "head", "begun"),
    [
        ("rte", {}, None, (1e-3, 0, "mean")),
        ("squad", {}, None, (1e-3, 0, "last")),  # has no summary
        ("ner", {}, None, (1e-3, 0.1, "last")),  # and keeps its dropout
        ("rte", {"positions": "learned"}, None, (1e-3, 0, "last")),  # whose pretraining reads <cls>
        ("rte", {}, HeadConfig("classification", 3, "attn"), (1e-3, 0, "attn")),
        ("rte", {}, HeadConfig("question_answering"), (1e-3, 0, "mean")),
        ("sts-b", {"d_model": 256}, None, (5e-4, 0, "mean")),
        ("sts-b", {"d_model": 768}, None, (5e-5, 0.1, "last")),
    ],
)
def test_rate_dropout_and_summary_of_a_task_follow_the_network_and_the_head_of_its_checkpoint(
    task, network, head, begun
):
    network = ModelConfig(**{"d_model": 64, "dropout": 0.0, "attention_dropout": 0.0} | network)
    own = DEFAULTS[task]()
    config = replace(own, model=replace(own.model, d_model=network.d_model, positions=network.positions))
    values = narrow_start(config, Pretrained(network, {}, "plm", head=head))
    found = with_values(config, values)
    rate, dropout, summary = begun
    assert narrowed(found) == [rate, dropout, dropout, summary]

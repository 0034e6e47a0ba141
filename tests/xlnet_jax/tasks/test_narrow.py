"""The settings from which a narrow network is finetuned, and what counts as given."""

import json
from dataclasses import replace
from importlib import import_module

import pytest
from rich.console import Console

import xlnet_jax
from tests.xlnet_jax.random_models import random_model
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.errors import InputError
from xlnet_jax.settings import parser
from xlnet_jax.settings.config import HeadConfig, ModelConfig
from xlnet_jax.settings.files import to_dict
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.prepare import narrow_start, prepare
from xlnet_jax.training.workdir import Workdir

finetune = import_module("xlnet_jax.finetune")


def words(init, table, steps=1):
    more = f"--data.batch-size 8 --data.seq-len 32 --steps {steps}"
    return ["--task", "classification", "--init", str(init), "--train", str(table), *more.split()]


def parsed(init, table, *more, steps=1):
    argv = [*words(init, table, steps), *more]
    return parser.parse(FinetuneConfig, argv, "", "", DEFAULTS["classification"]())


def prepared(config, tmp_path):
    return prepare(config, [Workdir(tmp_path / "none")], Console(soft_wrap=True, highlight=False, markup=False))


def narrowed(config):
    """Return the settings that a narrow start may change."""
    return [config.optimizer.learning_rate, config.model.dropout, config.model.attention_dropout, config.head.summary]


@pytest.fixture(scope="session")
def without_dropout(tokenizer, tmp_path_factory):
    """The folder of a network of a width of 16 that was pretrained without dropout."""
    model = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=1, d_model=16, num_heads=2, d_head=8, d_ff=32, mem_len=0,
        dropout=0.0, attention_dropout=0.0, init_std=0.05,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("without-dropout") / "checkpoint"
    xlnet_jax.save(random_model(model, None, tokenizer), folder)
    return folder


DROPOUT = "model.dropout 0 (0.1), model.attention-dropout 0 (0.1)"
RATE, SUMMARY = "optimizer.learning-rate 0.001 (2e-05)", "head.summary mean (last)"


@pytest.mark.parametrize(
    ("given", "begun", "changed"),
    [
        ("", [1e-3, 0, 0, "mean"], [DROPOUT, RATE, SUMMARY]),
        ("--optimizer.learning-rate 5e-4 --head.summary attn", [5e-4, 0, 0, "attn"], [DROPOUT]),
        (
            "--optimizer.learning-rate 2e-5 --model.dropout 0.1 --head.summary last",  # the task's own
            [2e-5, 0.1, 0, "last"], ["model.attention-dropout 0 (0.1)"],
        ),
        ("--no-narrow-start", [2e-5, 0.1, 0.1, "last"], []),
    ],
)  # fmt: skip
def test_a_narrow_network_starts_from_what_suits_it_where_nothing_is_given(
    without_dropout, table, tmp_path, capsys, given, begun, changed
):
    found = prepared(parsed(without_dropout, table, *given.split()), tmp_path)
    assert narrowed(found.config) == begun
    line = f"narrow      {', '.join(changed)}; --no-narrow-start keeps the values in parentheses\n"
    assert capsys.readouterr().out.partition("\n")[2] == (line if changed else "")


def test_given_means_the_same_for_flags_files_and_python(without_dropout, table, tmp_path, monkeypatch):
    """The learning rate, the warmup and the deviation of the weights are those of the task, and given all the same."""
    values = {"optimizer": {"learning_rate": 2e-5, "warmup_steps": 120}, "model": {"init_std": 0.02}}
    flags = "--optimizer.learning-rate 2e-5 --optimizer.warmup-steps 120 --model.init-std 0.02".split()
    (tmp_path / "hand.json").write_text(json.dumps(values))
    shared = {"init": str(without_dropout), "train": str(table), "data": {"batch_size": 8, "seq_len": 32}, "steps": 130}

    def resolved(config):
        found = prepared(config, tmp_path).config
        return found.optimizer.learning_rate, found.optimizer.warmup_steps, found.model.init_std

    def of_flags(*more):
        return parsed(without_dropout, table, *more, steps=130)

    (tmp_path / "config.json").write_text(json.dumps(to_dict(prepared(of_flags(*flags), tmp_path).config)))
    handed = []
    monkeypatch.setattr("xlnet_jax.tasks.finetune.run", lambda config: handed.append(config) or ("a result", 0))
    own = DEFAULTS["classification"]()
    whole = replace(own, data=replace(own.data, batch_size=8, seq_len=32), model=replace(own.model, init_std=0.02))
    xlnet_jax.finetune(whole, **shared)  # settings that are handed over whole are all given
    xlnet_jax.finetune(**shared | values)
    asked = {
        "nothing": of_flags(),
        "flags": of_flags(*flags),
        "hand": of_flags("--config", str(tmp_path / "hand.json")),
        "config.json": of_flags("--config", str(tmp_path / "config.json")),
        "whole": handed[0],
        "keywords": handed[1],
    }
    found = {name: resolved(config) for name, config in asked.items()}
    assert found == {"nothing": (1e-3, 13, 0.05)} | dict.fromkeys([*asked][1:], (2e-5, 120, 0.02))  # 120 of 1,200 steps


def test_checks_that_cost_nothing_come_before_the_line_about_a_narrow_network(without_dropout, table, tmp_path, capsys):
    argv = [*words(without_dropout, table), "--workdir", str(tmp_path / "run")]
    with pytest.raises(InputError, match="no such file"):
        finetune.main([*argv, "--eval", str(tmp_path / "none.tsv")])
    with pytest.raises(InputError, match="mesh"):
        finetune.main([*argv, "--mesh.tensor", "3"])
    assert "narrow" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("task", "network", "head", "begun"),
    [
        ("rte", {}, None, (1e-3, 0, "mean")),
        ("dream", {}, None, (1e-3, 0, "mean")),
        ("ranking", {}, None, (1e-3, 0, "mean")),
        ("squad", {}, None, (1e-3, 0, "last")),  # has no summary
        ("ner", {}, None, (1e-3, 0.1, "last")),  # and keeps its dropout
        ("rte", {"positions": "learned"}, None, (1e-3, 0, "last")),  # whose pretraining reads <cls>
        ("rte", {}, HeadConfig("classification", 3, "attn"), (1e-3, 0, "attn")),
        ("rte", {}, HeadConfig("question_answering"), (1e-3, 0, "mean")),
        ("sts-b", {"d_model": 128}, None, (1e-3, 0, "mean")),
        ("sts-b", {"d_model": 256}, None, (5e-4, 0, "mean")),
        ("sts-b", {"d_model": 768}, None, (5e-5, 0.1, "last")),
        ("yelp-5", {"d_model": 1024}, None, (1e-5, 0.1, "last")),
    ],
)
def test_rate_dropout_and_summary_of_a_task_follow_the_network_and_the_head_of_its_checkpoint(
    task, network, head, begun
):
    network = ModelConfig(**{"d_model": 64, "dropout": 0.0, "attention_dropout": 0.0} | network)
    own = DEFAULTS[task]()
    config = replace(own, model=replace(own.model, d_model=network.d_model, positions=network.positions))
    found, _ = narrow_start(config, Pretrained(network, {}, "plm", head=head))
    rate, dropout, summary = begun
    assert narrowed(found) == [rate, dropout, dropout, summary]

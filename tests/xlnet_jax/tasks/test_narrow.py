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
from xlnet_jax.tasks.prepare import learning_rate_of, narrow_start, prepare
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
    ("change", "summary"),
    [
        ({}, "mean"),
        ({"task": "dream"}, "mean"),
        ({"task": "ranking"}, "mean"),
        ({"task": "ner"}, "last"),  # has no summary
        ({"positions": "learned"}, "last"),  # its pretraining reads <cls>
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
    config = replace(own, model=replace(own.model, d_model=network.d_model, positions=network.positions))
    begun, _ = narrow_start(config, Pretrained(network, {}, None, head=head))
    assert begun.head == replace(config.head, summary=summary)


@pytest.mark.parametrize(("task", "dropout"), [("rte", 0.0), ("ranking", 0.0), ("squad", 0.0), ("ner", 0.1)])
def test_dropout_is_that_of_pretraining_but_for_labels_of_words(task, dropout):
    own = DEFAULTS[task]()
    config = replace(own, model=replace(own.model, d_model=64))
    begun, _ = narrow_start(config, Pretrained(ModelConfig(dropout=0.0, attention_dropout=0.0), {}, "plm"))
    assert (begun.model.dropout, begun.model.attention_dropout) == (dropout, dropout)


@pytest.mark.parametrize(
    ("task", "width", "rate"),
    [("sts-b", 64, 1e-3), ("sts-b", 128, 1e-3), ("sts-b", 256, 5e-4), ("sts-b", 768, 5e-5), ("yelp-5", 1024, 1e-5)],
)
def test_the_rate_falls_with_the_width_down_to_that_of_the_task(task, width, rate):
    assert learning_rate_of(task, width) == rate

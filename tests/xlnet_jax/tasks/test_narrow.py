"""The settings from which a narrow network is finetuned, and what counts as given."""

import json
import shutil
from dataclasses import replace
from importlib import import_module

import pytest
from rich.console import Console

import xlnet_jax
from tests.xlnet_jax.random_models import random_model
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.errors import InputError
from xlnet_jax.settings import cli
from xlnet_jax.settings.config import HeadConfig, ModelConfig
from xlnet_jax.settings.keywords import with_keywords
from xlnet_jax.settings.plain import to_dict
from xlnet_jax.tasks import narrow
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.prepare import prepare
from xlnet_jax.training.run.workdir import Workdir

finetune = import_module("xlnet_jax.finetune")

TASKS_OWN = {
    "optimizer.learning-rate": 2e-5, "model.dropout": 0.1, "model.attention-dropout": 0.1, "head.summary": "last"
}  # fmt: skip


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
        dropout=0.0, attention_dropout=0.0, init_std=0.05,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("without-dropout") / "checkpoint"
    xlnet_jax.save(random_model(model, None, tokenizer), folder)
    return folder


SAME_AS_THE_TASKS = ["--optimizer.learning-rate", "2e-5", "--model.dropout", "0.1", "--head.summary", "last"]
DROPOUT = "model.dropout 0 (0.1), model.attention-dropout 0 (0.1)"
RATE, SUMMARY = "optimizer.learning-rate 0.001 (2e-05)", "head.summary mean (last)"


@pytest.mark.parametrize(
    ("given", "begun", "changed"),
    [
        ([], [1e-3, 0, 0, "mean"], [DROPOUT, RATE, SUMMARY]),
        (["--optimizer.learning-rate", "5e-4", "--head.summary", "attn"], [5e-4, 0, 0, "attn"], [DROPOUT]),
        (SAME_AS_THE_TASKS, [2e-5, 0.1, 0, "last"], ["model.attention-dropout 0 (0.1)"]),
        (["--no-narrow-start"], [2e-5, 0.1, 0.1, "last"], []),
    ],
    ids=["nothing", "other values", "the task's values", "no narrow start"],
)
def test_a_narrow_network_starts_from_what_suits_it_where_nothing_is_given(
    without_dropout, table, tmp_path, capsys, given, begun, changed
):
    """Values that are given count, those of the task too."""
    argv = [*words(without_dropout, table), "--workdir", str(tmp_path / "run")]
    assert finetune.main([*argv, *given]) == 0
    assert begun_with(tmp_path / "run") == begun
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("narrow")]
    ending = "; --no-narrow-start keeps the values in parentheses"
    assert printed == [f"narrow      {', '.join(changed)}{ending}"] * bool(changed)


def test_given_means_the_same_for_flags_files_and_python(without_dropout, table, tmp_path):
    """The learning rate, the warmup and the deviation of the weights are those of the task, and given all the same."""
    values = {"optimizer": {"learning_rate": 2e-5, "warmup_steps": 120}, "model": {"init_std": 0.02}}
    flags = "--optimizer.learning-rate 2e-5 --optimizer.warmup-steps 120 --model.init-std 0.02".split()
    (tmp_path / "hand.json").write_text(json.dumps(values))
    steps = {"steps": 130}  # 120 of 1,200 would become 13
    shared = {"init": str(without_dropout), "train": str(table), "data": {"batch_size": 8, "seq_len": 32}} | steps

    def resolved(config):
        prepared = prepare(config, [Workdir(tmp_path / "none")], Console(quiet=True)).config
        return prepared.optimizer.learning_rate, prepared.optimizer.warmup_steps, prepared.model.init_std

    def parsed(*argv):
        return cli.parse(
            FinetuneConfig, [*words(without_dropout, table, 130), *argv], "", "", DEFAULTS["classification"]()
        )

    asked = {
        "nothing": parsed(),
        "flags": parsed(*flags),
        "hand": parsed("--config", str(tmp_path / "hand.json")),
        "keywords": with_keywords(DEFAULTS["classification"](), shared | values),
    }
    of_run = prepare(asked["flags"], [Workdir(tmp_path / "none")], Console(quiet=True)).config
    (tmp_path / "config.json").write_text(json.dumps(to_dict(of_run)))
    asked["config.json"] = parsed("--config", str(tmp_path / "config.json"))
    as_given = (2e-5, 120, 0.02)
    assert {name: resolved(config) for name, config in asked.items()} == {
        "nothing": (1e-3, 13, 0.05),
    } | dict.fromkeys(("flags", "hand", "keywords", "config.json"), as_given)


def test_settings_that_are_handed_to_finetune_whole_are_all_given(without_dropout, table, tmp_path):
    own = DEFAULTS["classification"]()
    config = replace(own, data=replace(own.data, batch_size=8, seq_len=32))
    shared = {"init": str(without_dropout), "train": str(table), "steps": 1}
    xlnet_jax.finetune(config, **shared, workdir=tmp_path / "whole")
    xlnet_jax.finetune(**shared, data={"batch_size": 8, "seq_len": 32}, workdir=tmp_path / "keywords")
    assert begun_with(tmp_path / "whole") == [2e-5, 0.1, 0.1, "last"]
    assert begun_with(tmp_path / "keywords") == [1e-3, 0, 0, "mean"]


def test_a_learning_rate_that_is_given_outlives_a_resume(without_dropout, table, tmp_path):
    more = "--optimizer.learning-rate 2e-5 --optimizer.decay-steps 4 --optimizer.warmup-steps 1".split()
    for steps in (2, 4):
        argv = [*words(without_dropout, table, steps), *more, "--workdir", str(tmp_path / "run")]
        assert finetune.main(argv) == 0
        assert begun_with(tmp_path / "run")[0] == 2e-5


def test_fewer_steps_than_a_checkpoint_has_are_refused(without_dropout, table, tmp_path):
    more = ["--optimizer.decay-steps", "4", "--optimizer.warmup-steps", "1", "--workdir", str(tmp_path / "run")]
    assert finetune.main([*words(without_dropout, table, steps=2), *more]) == 0
    with pytest.raises(
        InputError, match=r"--steps 1: workdir .*run holds a checkpoint after 2 steps: give --steps 2 or"
    ):
        finetune.main([*words(without_dropout, table, steps=1), *more])
    with pytest.raises(InputError, match=r"`steps` 1: workdir .* holds a checkpoint after 2 steps"):
        xlnet_jax.finetune(
            init=str(without_dropout), train=str(table), steps=1, workdir=tmp_path / "run",
            data={"batch_size": 8, "seq_len": 32}, optimizer={"decay_steps": 4, "warmup_steps": 1},
        )  # fmt: skip


def test_checks_that_cost_nothing_come_before_the_line_about_a_narrow_network(without_dropout, table, tmp_path, capsys):
    argv = [*words(without_dropout, table), "--workdir", str(tmp_path / "run")]
    with pytest.raises(InputError, match="no such file"):
        finetune.main([*argv, "--eval", str(tmp_path / "none.tsv")])
    with pytest.raises(InputError, match="mesh"):
        finetune.main([*argv, "--mesh.tensor", "3"])
    assert "narrow" not in capsys.readouterr().out


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

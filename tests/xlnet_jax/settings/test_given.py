"""A setting that was given counts, whatever its value: nothing that a command derives takes its place."""

import json
from dataclasses import replace
from importlib import import_module

import pytest

import xlnet_jax
from xlnet_jax.errors import InputError
from xlnet_jax.measurement.evaluate import EvaluateSettings
from xlnet_jax.objectives import presets
from xlnet_jax.planning.settings import PlanConfig, check_plan
from xlnet_jax.settings import parser
from xlnet_jax.settings.config import Config, DataConfig, OptimizerConfig
from xlnet_jax.settings.fields import to_dict
from xlnet_jax.settings.parser import with_keywords
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import validate_finetuning
from xlnet_jax.training.initial import begin_from


def parsed(kind, *words):
    return parser.parse(kind, words, "command", "", None if kind is FinetuneConfig else kind())


def test_flags_keywords_and_files_are_given_even_where_they_change_nothing(tmp_path):
    names = {"tpu", "steps", "optimizer.learning_rate", "data.bidirectional"}
    words = "--no-tpu --steps 500000 --optimizer.learning_rate=4e-4 --data.bidirectional".split()
    (tmp_path / "few.json").write_text(
        '{"tpu": false, "steps": 500000, "optimizer": {"learning_rate": 4e-4}, "data.bidirectional": true}'
    )
    keywords = {"tpu": False, "steps": 500_000, "optimizer": {"learning_rate": 4e-4}, "data": {"bidirectional": True}}
    for config in (
        parsed(Config, *words),
        parsed(Config, "--config", str(tmp_path / "few.json")),
        with_keywords(Config(), keywords),
    ):
        assert config == Config()
        assert config.given == names
    assert parsed(Config, "--data.no-bidirectional").given == {"data.bidirectional"}
    changed = Resolution.of(replace(Config(), steps=3), Config())
    assert not changed.is_open("steps")
    assert changed.is_open("seed")
    whole = with_keywords(Config(), {"optimizer": OptimizerConfig()})
    assert {name.partition(".")[0] for name in whole.given} == {"optimizer"}


def test_every_setting_in_the_file_of_a_run_is_given_and_the_list_is_not_written(tmp_path):
    run = parsed(Config, "--steps", "3")
    assert "given" not in to_dict(run)
    (tmp_path / "config.json").write_text(json.dumps(to_dict(run)))
    again = parsed(Config, "--config", str(tmp_path / "config.json"))
    assert again == run
    assert {"steps", "model.init_std", "log.wandb"} <= again.given


def test_steps_beside_epochs_are_refused_and_a_flag_replaces_those_of_a_file(tmp_path):
    shared = ["--init", "tiny", "--train", "a.tsv"]
    with pytest.raises(InputError, match="`epochs` 2 and `steps` 10000 both say how long to train: leave one of them"):
        validate_finetuning(parsed(FinetuneConfig, *shared, "--steps", "10000", "--epochs", "2"))
    for value, flag, other in (({"steps": 7}, "--epochs", "steps"), ({"epochs": 3}, "--steps", "epochs")):
        (tmp_path / "file.json").write_text(json.dumps(value))
        config = parsed(FinetuneConfig, *shared, "--config", str(tmp_path / "file.json"), flag, "2")
        validate_finetuning(config)
        assert getattr(config, other) == getattr(FinetuneConfig(), other)


def test_a_batch_of_a_plan_replaces_that_of_a_file(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(to_dict(Config())))
    words = ["--topology", "v5e-1", "--batch-per-device", "8", "--config", str(tmp_path / "config.json")]
    check_plan(parsed(PlanConfig, *words))


def test_a_network_that_is_given_is_not_replaced_by_that_of_the_weights():
    usual = xlnet_jax.preset("demo")
    settings = Resolution.of(replace(usual, init="tiny"), usual)
    begin_from(settings, None)
    assert settings.final().model.num_layers == 4
    asked = xlnet_jax.preset("demo", init="tiny", model={"num_layers": usual.model.num_layers})
    assert asked == replace(usual, init="tiny")
    with pytest.raises(InputError, match=r"`model.num_layers` 2: the weights of `init` tiny have 4"):
        begin_from(Resolution.of(asked, usual), None)


def test_windows_that_are_given_change_those_of_a_run_where_they_are_the_defaults_too():
    own = Config(data=DataConfig(seq_len=64, batch_size=2))
    for asked in (
        with_keywords(EvaluateSettings("x"), {"data": {"seq_len": 512}}),
        parser.parse(EvaluateSettings, ["x", "--data.seq-len", "512"], "", ""),
    ):
        settings = Resolution(own).give(asked, EvaluateSettings("x"), "data")
        assert settings.final().data == replace(own.data, seq_len=512)


def test_the_vocabulary_that_is_given_is_that_of_the_tokenizer(tmp_path):
    tokenizer = xlnet_jax.load("tiny").tokenizer
    tokenizer.save(tmp_path / "tokenizer")
    text = import_module("xlnet_jax.training.resolve").Text.of(Config())
    words = ["--tokenizer", str(tmp_path / "tokenizer"), "--model.vocab-size", "4000"]
    size = tokenizer.vocab_size
    with pytest.raises(
        InputError, match=rf"`model.vocab_size` 4000: the tokenizer of .* has {size:,} pieces; leave it"
    ):
        text.required_tokenizer(Resolution.of(presets.parse_config(words, "train", "")), None)


def test_each_step_keeps_what_was_given_and_the_log_says_what_it_chose():
    settings = Resolution(Config(), ["data.seq_len", "seed"])
    assert settings.choose({"data.seq_len": 64, "steps": 9, "data.batch_size": 8192}, "the text is short") == {
        "steps": 9
    }
    settings.choose({"data.batch_size": 8}, "the text is short")
    settings.choose({"model.mem_len": 16})
    assert settings.log == ["chosen      --steps 9 (not 500000), --data.batch-size 8 (not 8192), as the text is short"]
    settings.require({"model.num_layers": 2, "seed": 0}, str)
    with pytest.raises(InputError, match=r"`data.seq_len` 512: there are 64"):
        settings.require({"data.seq_len": 64}, lambda value: f"there are {value}")
    settings.refuse("steps", InputError("no steps here"))
    with pytest.raises(InputError, match="no seed here"):
        settings.refuse("seed", InputError("no seed here"))
    final = settings.final()
    assert (final.steps, final.data.seq_len, final.model.mem_len, final.model.num_layers) == (9, 512, 16, 2)
    assert Config(given=frozenset({"seed"})).given != final.given == frozenset()


def test_settings_that_change_together_stay_together():
    sizes = [{"data.seq_len": length, "data.batch_size": length // 8} for length in (512, 256, 128)]
    for given, together, found in (
        ([], [], (256, 32)),
        (["data.batch_size"], [], (256, 8192)),
        (["data.batch_size"], ["data.batch_size", "data.seq_len"], (512, 8192)),
    ):
        settings = Resolution(Config(), given)
        settings.choose_first(sizes, lambda config: config.data.seq_len < 300, "it must", together=together)
        assert (settings.config.data.seq_len, settings.config.data.batch_size) == found

"""From a text file to a checkpoint by one command, run once or resumed."""

import json
import os
import re
import shlex
import shutil
import signal
import threading
from dataclasses import replace

import pytest

import xlnet_jax
from data_pipelines import sources
from data_pipelines.corpus import Corpus
from data_pipelines.tokenizer import Tokenizer
from tests.xlnet_jax.training.tiny_run import arguments, assert_same, records_of, state_of
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError
from xlnet_jax.inference.requests import GenerateSettings
from xlnet_jax.objectives import presets
from xlnet_jax.objectives.presets import demo, with_objective
from xlnet_jax.settings import parser
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import with_values
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS, validate_finetuning
from xlnet_jax.training.metrics import read_records
from xlnet_jax.training.pretrain import propose_next
from xlnet_jax.training.resolve import folder_of
from xlnet_jax.training.workdir import Workdir

train = COMMANDS["train"]


def test_a_run_leaves_all_that_it_promises(straight):
    names = "tokenizer/spiece.model corpus/manifest.json checkpoints/12/params config.json curves.png".split()
    assert all((straight / name).exists() for name in names)
    assert list((straight / "tensorboard").glob("events.out.tfevents.*"))
    records = list(map(json.loads, (straight / "metrics.jsonl").read_text().splitlines()))
    trained, held_out, times = ([r for r in records if r.get("split") == n] for n in ("train", "validation", "time"))
    assert [r["step"] for r in trained] == [1, 3, 6, 9, 12]
    assert [r["step"] for r in held_out] == [6, 12]
    assert len({r["unigram"] for r in trained + held_out}) == 1
    assert {"loss", "gradient_norm", "parameter_norm", "learning_rate", "skipped"} <= trained[0].keys()
    assert all(r["seconds_per_step"] > 0 for r in trained[1:])  # the first step compiles
    assert sorted({r["step"] for r in times}) == [0, 1, 3, 4, 6, 8, 9, 12]
    assert 0 < times[-1]["goodput"] < 1


def test_a_finished_run_is_not_trained_again_and_says_where_everything_is(straight, text, capsys):
    before = (straight / "metrics.jsonl").read_text()
    assert train.main(arguments(text, straight)) == 0
    assert (straight / "metrics.jsonl").read_text() == before
    out = capsys.readouterr().out
    assert "resumed     at step 12 of 12" in out
    corpus = Corpus(straight / "corpus")
    unknown = r"unknown     \d\.\d\d% of the training text and \d\.\d\d% of the held-out targets are <unk>"
    assert re.search(unknown, out)
    there = 4 * corpus.num_blocks("validation")
    assert f"held out    32 of {there} windows, in blocks at even distances: --eval.max-windows 32" in out
    last = out[out.index("\nheld-out loss") + 1 :].splitlines()[1:]
    *places, last_proposal = last
    assert [line.split()[0] for line in places] == "checkpoint curves report next generate".split()
    assert last_proposal.split()[0] == ("from" if "above the unigram line" in out else "longer")
    assert all(str(straight) in line for line in last if line != "next")


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (("--seed", "1", "--model.d-ff", "32"), r"\(--seed: 0 there, 1 here; --model\.d-ff: 16 there, 32 here\)"),
        (("--corpus", sources.embedded()[1]), r"corpus .*: its training text differs; give another --out or --workdir"),
    ],
    ids=["settings", "text"],
)
def test_another_experiment_is_refused_and_the_difference_named(straight, text, more, line):
    with pytest.raises(InputError, match=line):
        train.main(arguments(text, straight, *map(str, more)))


def test_what_the_devices_cannot_do_is_refused_before_any_work_on_the_text(text, tmp_path):
    with pytest.raises(InputError, match=r"mesh\.fsdp 3 x .* does not divide"):
        train.main(arguments(text, tmp_path / "run", "--mesh.fsdp", "3"))
    with pytest.raises(
        InputError, match=r"^--model\.attention fused: the device is cpu, and there is no kernel for it"
    ):
        train.main(arguments(text, tmp_path / "run", "--model.attention", "fused"))
    assert not (tmp_path / "run").exists()


def test_a_damaged_file_of_a_run_is_passed_over_or_named(straight, text, tmp_path):
    shutil.copytree(straight, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b'{"format_version": 1}\n17\n[1,2]\n{"a":1}\n\xff\xfe\x00')
    assert train.main(arguments(text, tmp_path / "run")) == 0
    (tmp_path / "run" / "config.json").write_bytes(b'{"model": null}')
    with pytest.raises(InputError, match=r"config\.json does not hold settings of a run"):
        train.main(arguments(text, tmp_path / "run"))


def test_a_mistake_at_the_first_try_does_not_claim_the_workdir(text, tmp_path):
    words = arguments(text, tmp_path / "run")
    with pytest.raises(InputError, match=r"--model\.vocab-size 9000 is too large for this text: the largest that wor"):
        train.main([*words, "--model.vocab-size", "9000"])
    Workdir(tmp_path / "run").claim(presets.parse_config(words, "train", ""))


def test_a_run_with_a_schedule_of_its_own_can_be_prolonged_and_not_shortened(straight, text, tmp_path):
    argv = arguments(text, tmp_path / "run", "--optimizer.decay-steps", "12")
    assert train.main([*argv, "--steps", "6"]) == 0
    assert train.main(argv) == 0
    assert_same(state_of(tmp_path / "run"), state_of(straight))
    message = rf"--steps 3: workdir {tmp_path}/run holds a checkpoint after 12 steps: give --steps 12 or more, or anot"
    with pytest.raises(InputError, match=message):
        train.main([*argv, "--steps", "3"])
    assert json.loads((tmp_path / "run" / "config.json").read_text())["steps"] == 12


@pytest.mark.contract
def test_a_finished_run_with_schedule_wsd_branches_before_its_decay(text, tmp_path, capsys):
    (tmp_path / "decay.json").write_text('{"optimizer": {"schedule": "wsd", "decay_share": 0.5}}')
    argv = [*arguments(text, tmp_path / "run"), "--config", str(tmp_path / "decay.json")]
    assert train.main([*argv, "--workdir", str(tmp_path / "whole")]) == 0
    assert train.main([*argv, "--steps", "10", "--checkpoint.keep", "1"]) == 0
    capsys.readouterr()
    assert train.main(argv) == 0
    said = (
        f"steps       12 in place of 10: continues from step 4, before the decay; what came after it is in {tmp_path}"
    )
    assert said in capsys.readouterr().out
    assert_same(state_of(tmp_path / "run"), state_of(tmp_path / "whole"))
    assert records_of(tmp_path / "run") == records_of(tmp_path / "whole")
    assert (tmp_path / "run" / "steps-10" / "checkpoints" / "10").is_dir()
    assert records_of(tmp_path / "run" / "steps-10")[-1]["step"] == 10


@pytest.mark.contract
def test_a_finished_run_with_another_schedule_goes_on_and_says_what_its_learning_rate_becomes(
    straight, text, tmp_path, capsys
):
    shutil.copytree(straight, tmp_path / "run")
    assert train.main(arguments(text, tmp_path / "run", "--steps", "18")) == 0
    said = "18 in place of 12: from step 12 on the learning rate follows schedule linear of the new steps, where it is "
    assert f"{said}2.10e-03 and not 0.00e+00" in capsys.readouterr().out
    records = [r for r in records_of(tmp_path / "run") if r["split"] == "train"]
    assert [r["step"] for r in records] == [1, 3, 6, 9, 12, 15, 18]
    assert records[-2]["learning_rate"] == pytest.approx(5.6e-3 * (18 - 14) / 16)


def test_a_run_that_python_code_starts_in_another_thread_is_the_same_run(straight, text, tmp_path):
    config, results = presets.parse_config(arguments(text, tmp_path / "run"), "train", ""), []
    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=lambda: results.append(xlnet_jax.pretrain(config)))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) == before
    (result,) = results
    assert (result.steps, result.stopped, result.metric) == (12, "", "loss")
    assert result.last_checkpoint == str(tmp_path / "run" / "checkpoints" / "12")
    held_out = {r["step"]: r["loss"] for r in read_records(tmp_path / "run" / "metrics.jsonl") if r["split"][0] == "v"}
    assert result.step == min(held_out, key=held_out.get)
    assert result.metrics["loss"] == held_out[result.step]
    assert xlnet_jax.pretrain(config) == result
    assert_same(state_of(tmp_path / "run"), state_of(straight))


def test_before_the_first_checkpoint_text_is_made_again_only_for_settings_that_decide_it(tmp_path):
    config, tokenizer = demo(), tmp_path / "tokenizer"
    Workdir(tmp_path).claim(config)
    tokenizer.mkdir()
    Workdir(tmp_path).claim(replace(config, optimizer=replace(config.optimizer, learning_rate=0.5), seed=7))
    assert tokenizer.exists()
    Workdir(tmp_path).claim(replace(config, data=replace(config.data, windows_per_block=32)))
    assert not tokenizer.exists()


def test_a_workdir_that_is_a_file_is_refused(text, tmp_path):
    (tmp_path / "file").write_text("")
    for workdir in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=r"workdir .* cannot be made a folder"):
            train.main(arguments(text, workdir))


def test_runs_of_other_objectives_have_folders_of_their_own():
    words = [["--objective", "plm"], ["--objective", "clm"], ["--preset", "bert-base"], ["--objective", "mlm"]]
    folders = [folder_of(presets.parse_config(each, "train", "")) for each in words]
    assert folders == [f"runs/austen-{name}" for name in ("demo", "demo-clm", "bert-base", "demo-mlm")]


def test_a_given_tokenizer_decides_the_vocabulary_of_a_new_run(straight, text, tmp_path):
    lines = list(sources.read_lines(sources.find([str(text)])))
    for size in (300, 400):
        Tokenizer.train(lines, size, "nfkc").save(tmp_path / str(size))
    with pytest.raises(InputError, match=r"its tokenizer is not .*400"):
        train.main(arguments(text, straight, "--tokenizer", str(tmp_path / "400")))
    words = arguments(text, tmp_path / "run", "--steps", "2", "--tokenizer", str(tmp_path / "300" / "spiece.model"))
    with pytest.raises(InputError, match=r"--model.vocab-size 400: the tokenizer of .* has 300 pieces; leave it out"):
        train.main(words)
    size = words.index("--model.vocab-size")
    assert train.main(words[:size] + words[size + 2 :]) == 0
    assert Workdir(tmp_path / "run").settings(Config).model.vocab_size == 300


def test_a_workdir_that_is_in_use_is_refused_and_its_process_named(straight, text):
    holder = Workdir(straight)
    holder.claim(presets.parse_config(arguments(text, straight), "train", ""))
    with pytest.raises(InputError, match=rf"is in use by process {os.getpid()} on .*: wait, or give another path"):
        train.main(arguments(text, straight))


# ---- what is proposed to run next ------------------------------------------------------------------------------------


@pytest.fixture
def proposed(tmp_path):
    """Return a function that returns the words of the commands after a run of these settings."""
    folder = tmp_path / "it's mine"
    Tokenizer.train(["a lovely walk", "a dreadful rain"] * 20, 33, "english").save(folder / "tokenizer")

    def of(config, **how):
        config = with_values(config, {"model.vocab_size": 33})
        Workdir(folder).write_settings(config)
        commands = propose_next(config, str(folder), **how)
        return {name: shlex.split(command)[2:] for name, command in commands.items()}

    return of


def parsed(words):
    assert words[0] == "xlnet_jax.train"
    return presets.parse_config(words[1:], "train", "")


@pytest.mark.parametrize(("decay", "kept"), [(None, None), (47, None), (48, 48)])
def test_a_longer_run_has_the_settings_of_the_run_and_learns_until_its_last_step(proposed, tmp_path, decay, kept):
    config = with_objective(replace(demo(), steps=12, corpus=("my text.txt",), init="weights"), "mlm")
    config = with_values(config, {"optimizer.decay_steps": decay, "optimizer.warmup_steps": 2})
    own = {"steps": 48, "optimizer.decay_steps": kept, "workdir": f"{tmp_path}/it's mine-longer"}
    assert parsed(proposed(config)["longer"]) == with_values(config, own | {"model.vocab_size": 33})


def test_two_commands_fit_what_was_done(proposed, tmp_path):
    own, folder = replace(demo(), corpus=("my text.txt",)), f"{tmp_path}/it's mine"
    assert list(proposed(demo())) == ["generate", "your text"]
    assert list(proposed(own)) == ["generate", "longer"]
    assert list(proposed(with_objective(own, "mlm"))) == ["finetune", "longer"]
    from_tiny = parsed(proposed(own, needs_tiny=True)["from tiny"])
    assert from_tiny == replace(own, init="tiny", workdir=f"{folder}-from-tiny")
    assert proposed(own, begin="你好")["generate"][-1] == "你好"
    config = with_objective(demo(), "clm")
    assert parsed(proposed(config)["your text"]) == replace(config, corpus=("my.txt",))
    settings = parser.parse(GenerateSettings, proposed(demo())["generate"][1:], "generate", "")
    assert (settings.checkpoint, settings.prompt) == (folder, ("She opened the letter and",))
    words = proposed(with_objective(demo(), "mlm"))
    start = parser.named_default(words["finetune"][1:], "--task", DEFAULTS, "")
    finetuning = parser.parse(FinetuneConfig, words["finetune"][1:], "finetune", "", start)
    validate_finetuning(finetuning)
    assert finetuning.init == folder

"""From a text file to a checkpoint by one command, run once or resumed."""

import json
import os
import re
import shlex
import shutil
from dataclasses import replace

import pytest

import xlnet_jax
from data_pipelines import sources
from data_pipelines.corpus import Corpus
from data_pipelines.tokenizer import UNK, Tokenizer
from tests.xlnet_jax.random_models import random_params
from tests.xlnet_jax.training.tiny_run import arguments, assert_same, state_of
from xlnet_jax import train
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.errors import InputError
from xlnet_jax.objectives import presets
from xlnet_jax.objectives.presets import PRESETS, demo, with_objective
from xlnet_jax.settings import parser
from xlnet_jax.settings.fields import with_values
from xlnet_jax.settings.files import to_dict
from xlnet_jax.storage.reading import write_versioned
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS, validate_finetuning
from xlnet_jax.training.loop import Loop
from xlnet_jax.training.pretrain import LARGER, propose_next
from xlnet_jax.training.resolve import folder_of
from xlnet_jax.training.workdir import Workdir


def test_a_run_leaves_all_that_it_promises(straight):
    for name in ("tokenizer/spiece.model", "corpus/manifest.json", "checkpoints/12/params"):
        assert (straight / name).exists(), name
    assert list((straight / "tensorboard").glob("events.out.tfevents.*"))
    assert json.loads((straight / "config.json").read_text())["model"]["vocab_size"] == 400
    assert (straight / "curves.png").read_bytes().startswith(b"\x89PNG")
    # ---- losses and rates -------------------------------------------------------------------------------------------
    records = list(map(json.loads, (straight / "metrics.jsonl").read_text().splitlines()))
    trained, held_out, times = ([r for r in records if r.get("split") == n] for n in ("train", "validation", "time"))
    assert [r["step"] for r in trained] == [3, 6, 9, 12]
    assert [r["step"] for r in held_out] == [6, 12]
    assert len({r["unigram"] for r in trained + held_out}) == 1
    assert 3.0 < trained[0]["unigram"] < 6.0
    assert {"loss", "gradient_norm", "parameter_norm", "learning_rate", "skipped"} <= trained[0].keys()
    assert all(r["seconds_per_step"] > 0 for r in trained)
    # ---- time -------------------------------------------------------------------------------------------------------
    assert sorted({r["step"] for r in times}) == [0, 3, 4, 6, 8, 9, 12]
    assert times[-1]["start"] > 0
    assert times[-1]["compilation"] > 0
    assert 0 < times[-1]["goodput"] < 1


def test_a_finished_run_is_not_trained_again_and_says_where_everything_is(straight, text, capsys):
    before = (straight / "metrics.jsonl").read_text()
    assert train.main(arguments(text, straight)) == 0
    assert (straight / "metrics.jsonl").read_text() == before
    out = capsys.readouterr().out
    assert "resumed     at step 12 of 12" in out
    # ---- of the text ------------------------------------------------------------------------------------------------
    corpus = Corpus(straight / "corpus")
    share = corpus.unigram_counts[UNK] / corpus.unigram_counts.sum()
    unknown = rf"unknown     {share:.2%} of the training text and 0\.\d\d% of the held-out targets are <unk>"
    assert re.search(unknown, out)
    there = 4 * corpus.num_blocks("validation")
    assert f"held out    32 of {there} windows, in blocks at even distances: eval.max-windows 32" in out
    assert "unigram     " in out
    # ---- of what is there, and of what comes next -------------------------------------------------------------------
    last = out[out.index("\nheld-out loss") + 1 :].splitlines()[1:]
    names = ["checkpoint", "curves", "tokenizer", "metrics", "next"]
    names += ["finetune", "convert", "longer", "larger", "your", "settings"]
    assert [line.split()[0] for line in last] == names
    assert all(str(straight) in line for line in last[:4] + last[5:8])


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            ("--seed", "1", "--model.d-ff", "32"),
            r"holds another run \(seed: 0 there, 1 here; model\.d-ff: 16 there, 32 here\)",
        ),
        (("--steps", "24"), r"steps: 12 there, 24 here.*only under an --optimizer\.decay-steps of their own"),
        (
            ("--corpus", sources.embedded()[1]),
            r"corpus .*: its training text differs; give another --out or --workdir",
        ),
    ],
    ids=["settings", "schedule", "text"],
)
def test_another_experiment_is_refused_and_the_difference_named(straight, text, more, line):
    with pytest.raises(InputError, match=line):
        train.main(arguments(text, straight, *map(str, more)))


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (("--mesh.fsdp", "3"), r"mesh\.fsdp 3 x .* does not divide"),
        (("--model.attention", "fused"), r"^model\.attention fused: the device is cpu, and there is no kernel for it"),
    ],
)
def test_what_the_devices_cannot_do_is_refused_before_any_work_on_the_text(text, tmp_path, more, line):
    with pytest.raises(InputError, match=line):
        train.main(arguments(text, tmp_path / "run", *more))
    assert not (tmp_path / "run").exists()


def test_a_damaged_file_of_a_run_is_passed_over_or_named(straight, text, tmp_path):
    shutil.copytree(straight, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b'{"format_version": 1}\n17\n[1,2]\n{"a":1}\n\xff\xfe\x00')
    assert train.main(arguments(text, tmp_path / "run")) == 0
    for content in (b"\xff", b"[]", b'{"model": null}'):
        (tmp_path / "run" / "config.json").write_bytes(content)
        with pytest.raises(InputError, match=r"config\.json is not the settings of a run"):
            train.main(arguments(text, tmp_path / "run"))


def test_a_run_whose_folder_is_moved_ends_in_one_line_and_goes_on_there(straight, text, tmp_path, monkeypatch):
    workdir, elsewhere, log = tmp_path / "run", tmp_path / "elsewhere", Loop._log

    def log_and_move(self, step, numbers):
        log(self, step, numbers)
        if step == 6:
            self.checkpoints.wait()
            shutil.move(workdir, elsewhere)

    monkeypatch.setattr(Loop, "_log", log_and_move)
    with pytest.raises(InputError, match=r"workdir .*run was moved or deleted while the run went on: give the same"):
        train.main(arguments(text, workdir))
    assert not workdir.exists()
    monkeypatch.undo()
    assert train.main(arguments(text, elsewhere)) == 0
    assert_same(state_of(elsewhere), state_of(straight))


def test_another_text_is_refused_though_the_corpus_was_deleted(straight, text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(text.read_text() + "One more line.\n")
    shutil.copytree(straight, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "corpus")
    with pytest.raises(InputError, match=r"holds another run \(its train is another\)"):
        train.main(arguments(other, tmp_path / "run"))


def test_a_mistake_at_the_first_try_does_not_claim_the_workdir(text, tmp_path):
    words, largest = arguments(text, tmp_path / "run"), r"the largest that works is (\d+)"
    with pytest.raises(InputError, match=rf"--model\.vocab-size 9000 is too large for this text: {largest}"):
        train.main([*words, "--model.vocab-size", "9000"])
    Workdir(tmp_path / "run").claim(presets.parse_config(words, "train", ""))


def test_a_run_with_a_schedule_of_its_own_can_be_prolonged_and_not_shortened(straight, text, tmp_path):
    argv = arguments(text, tmp_path / "run", "--optimizer.decay-steps", "12")
    assert train.main([*argv, "--steps", "6"]) == 0
    assert train.main(argv) == 0
    assert_same(state_of(tmp_path / "run"), state_of(straight))
    left = (tmp_path / "run" / "config.json").read_text()
    message = rf"--steps 3: workdir {tmp_path}/run holds a checkpoint after 12 steps: give --steps 12 or more, or anot"
    with pytest.raises(InputError, match=message):
        train.main([*argv, "--steps", "3"])
    with pytest.raises(InputError, match=r"`steps` 3: workdir .* holds a checkpoint after 12 steps"):
        xlnet_jax.pretrain(presets.parse_config([*argv, "--steps", "3"], "train", ""))
    assert (tmp_path / "run" / "config.json").read_text() == left


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


def test_another_tokenizer_is_refused(straight, text, tmp_path):
    Tokenizer.train(sources.read_lines(sources.find([str(text)]), "strict"), 400, "nfkc").save(tmp_path / "mine")
    with pytest.raises(InputError, match=r"its tokenizer is not .*mine"):
        train.main(arguments(text, straight, "--tokenizer", str(tmp_path / "mine")))


def test_a_given_tokenizer_decides_the_vocabulary(text, tmp_path):
    Tokenizer.train(sources.read_lines(sources.find([str(text)]), "strict"), 300, "english").save(tmp_path / "mine")
    model = tmp_path / "mine" / "spiece.model"
    words = arguments(text, tmp_path / "run", "--steps", "2", "--tokenizer", str(model))
    with pytest.raises(InputError, match=r"model.vocab-size 400: the tokenizer of .* has 300 pieces; leave it out"):
        train.main(words)
    size = words.index("--model.vocab-size")
    assert train.main(words[:size] + words[size + 2 :]) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["vocab_size"] == 300


def test_a_workdir_that_is_in_use_is_refused_and_its_process_named(straight, text):
    holder = Workdir(straight)
    holder.claim(presets.parse_config(arguments(text, straight), "train", ""))
    with pytest.raises(InputError, match=rf"is in use by process {os.getpid()} on .*: wait, or name another folder"):
        train.main(arguments(text, straight))


# ---- what is proposed to run next ------------------------------------------------------------------------------------


@pytest.fixture
def proposed(tmp_path):
    """Return a function: settings, vocabulary size -> the commands after their run."""
    tokenizer = Tokenizer.train(["a lovely walk", "a dreadful rain"] * 20, 33, "english")
    tokenizer.save(tmp_path / "it's mine" / "tokenizer")

    def of(config):
        config = with_values(config, {"model.vocab_size": tokenizer.vocab_size})
        folder = tmp_path / "it's mine"
        write_versioned(folder / "config.json", "run", to_dict(config))
        commands = propose_next(config, str(folder), str(folder / "tokenizer"))
        return {name: shlex.split(command)[2:] for name, command in commands.items()}

    return of


def parsed(words):
    assert words[0] == "xlnet_jax.train"
    return presets.parse_config(words[1:], "train", "")


@pytest.mark.parametrize(("decay", "kept"), [(None, None), (12, None), (47, None), (48, 48), (1_000, 1_000)])
def test_a_longer_run_has_the_settings_of_the_run_and_learns_until_its_last_step(proposed, tmp_path, decay, kept):
    config = with_objective(replace(demo(), steps=12, corpus=("my text.txt",), init="weights"), "mlm")
    config = with_values(config, {"optimizer.decay_steps": decay, "optimizer.warmup_steps": 2, "data.batch_size": 8})
    longer = parsed(proposed(config)["longer"])
    own = {"steps": 48, "optimizer.decay_steps": kept, "workdir": f"{tmp_path}/it's mine-longer"}
    assert longer == with_values(config, own | {"model.vocab_size": longer.model.vocab_size})


def test_a_larger_run_is_of_a_larger_network_for_the_same_text(proposed, tmp_path):
    for preset, next_one in LARGER.items():
        config = replace(PRESETS[preset](), corpus=("my text.txt",), text_field="body")
        larger = parsed(proposed(config)["larger"])
        assert (larger.preset, larger.corpus, larger.text_field) == (next_one, ("my text.txt",), "body")
        assert larger.tokenizer == f"{tmp_path}/it's mine/tokenizer"
        sizes = [c.model.num_layers * c.model.d_model for c in (config, larger)]
        assert sizes[0] < sizes[1]


def test_the_command_for_another_text_keeps_preset_and_objective(proposed):
    for config in (demo(), with_objective(demo(), "clm"), PRESETS["bert-base"](), PRESETS["vanilla"]()):
        assert parsed(proposed(config)["your text"]) == replace(config, corpus=("my.txt",))
    assert proposed(demo())["your text"][1:] == ["--corpus", "my.txt"]


def test_the_finetuning_that_is_proposed_is_one(proposed, tmp_path):
    words = proposed(demo())["finetune"]
    start = parser.named_default(words[1:], "--task", DEFAULTS, "")
    config = parser.parse(FinetuneConfig, words[1:], "finetune", "", start)
    validate_finetuning(config)
    assert (words[0], config.init) == ("xlnet_jax.finetune", f"{tmp_path}/it's mine")


@pytest.mark.parametrize("preset", ["demo", "bert-base", "roberta-base", "albert-base", "vanilla"])
def test_a_conversion_is_proposed_where_it_succeeds(preset, proposed, tmp_path):
    """Convert small networks of each kind."""
    folder, start = tmp_path / "it's mine", PRESETS[preset]()
    tokenizer = Tokenizer.load(folder / "tokenizer")
    for objective in ("clm", "mlm", "plm") if preset == "demo" else (start.objective,):
        config = with_objective(start, objective)
        sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_head": 4, "d_ff": 8, "max_positions": 8}
        model = replace(config.model, vocab_size=tokenizer.vocab_size, **sizes)
        made = Pretrained(model, random_params(model, None), objective, None, tokenizer)
        command = proposed(replace(config, model=model)).get("convert")
        if command is None:
            with pytest.raises(InputError, match="cannot hold"):
                xlnet_jax.save(made, tmp_path / objective, "hf")
        else:
            assert command == ["xlnet_jax.convert", str(folder), "it's mine-hf", "--to", "hf"]
            xlnet_jax.save(made, tmp_path / objective, "hf")
    assert (command is None) == (preset == "vanilla")

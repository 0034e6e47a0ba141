"""All commands read the checkpoints of a workdir in the same way, and `doctor` finds damage in every file."""

import json
import os
import re
import shlex
import shutil

import pytest

import xlnet_jax
from tests.xlnet_jax.training.conftest import straight, text  # noqa: F401
from tests.xlnet_jax.training.tiny_run import arguments
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.checkpoints.listing import damage_of, last_good, list_checkpoints
from xlnet_jax.errors import InputError
from xlnet_jax.training.workdir import Workdir

train = COMMANDS["train"]


@pytest.fixture
def run(straight, tmp_path):  # noqa: F811
    return shutil.copytree(straight, tmp_path / "run")


def flip_a_bit(file):
    """Flip the lowest bit of a digit, if there is one: JSON stays JSON."""
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    digit = re.search(rb"\d(?!\d)", content[middle:])
    content[middle + (digit.start() if digit else 0)] ^= 1
    file.write_bytes(content)


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def doctor(folder, capsys):
    """Return the exit code and the lines of the command."""
    code = COMMANDS["doctor"].main([str(folder)])
    return code, capsys.readouterr().out.splitlines()


def damaged(folder, capsys):
    """Return the lines of what is damaged."""
    code, lines = doctor(folder, capsys)
    assert code == 2
    return [line for line in lines if line.startswith("damaged")]


def files_of(workdir):
    skipped = {"tensorboard", "compiled", ".lock"}
    return sorted(
        p for p in workdir.rglob("*") if p.is_file() and not skipped.intersection(p.relative_to(workdir).parts)
    )


# ---- which checkpoints there are -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["²", "٣", "007", "+7", "-1", "1_0", "1e3", " 7", "7 ", "x", "9.orbax-checkpoint-tmp"])
def test_only_names_that_are_steps_are_checkpoints(tmp_path, name):
    for step in ("9", "10"):
        (tmp_path / "checkpoints" / step / "params").mkdir(parents=True)
    (tmp_path / "checkpoints" / name / "params").mkdir(parents=True)
    (tmp_path / "checkpoints" / "999").write_text("")
    assert list(list_checkpoints(tmp_path / "checkpoints")) == [9, 10]
    assert Workdir(tmp_path).newest_step == 10


@pytest.mark.slow
def test_a_run_goes_on_beside_what_is_no_checkpoint_and_sets_an_empty_one_aside(run, text, capsys):  # noqa: F811
    checkpoints = run / "checkpoints"
    shutil.copytree(checkpoints / "12", checkpoints / "²")
    (checkpoints / "999").write_text("")
    (checkpoints / "1000").mkdir()
    with pytest.raises(InputError, match=r"checkpoints/1000 is damaged: params is missing; .*/12 is not: give that$"):
        xlnet_jax.load(run)
    code, lines = doctor(run, capsys)
    assert code == 2
    assert f"note      {checkpoints}/²: no checkpoint: its name is not a step" in lines
    assert f"damaged   {checkpoints}/999: it is a file, not the folder of a checkpoint" in lines
    assert f"damaged   {checkpoints}/1000: params is missing" in lines
    assert lines[-1] == f"newest checkpoint without damage: {checkpoints}/12"
    assert train.main(arguments(text, run)) == 0
    assert "checkpoint 1000 cannot be read and was moved to" in capsys.readouterr().out
    assert (run / "broken-checkpoints" / "1000").is_dir()


@pytest.mark.slow
def test_a_damaged_tokenizer_in_a_checkpoint_is_noticed_by_all_and_the_one_before_is_named(run, text, capsys):  # noqa: F811
    flip_a_bit(run / "checkpoints" / "12" / "tokenizer" / "spiece.model")
    with pytest.raises(InputError, match=r"12 is damaged: tokenizer/spiece.model was changed; .*/8 is not: give that$"):
        xlnet_jax.load(run)
    for source in (run / "last-good", run / "checkpoints" / "last-good"):
        assert xlnet_jax.load(str(source)).model == xlnet_jax.load(run / "checkpoints" / "8").model
    assert train.main(arguments(text, run)) == 0
    assert "checkpoint 12 cannot be read and was moved" in capsys.readouterr().out
    assert xlnet_jax.load(run)


READERS = {
    "attention": "{run} --text a --out a.html",
    "convert": "{run} hf --to hf",
    "embed": "{run} --text text.txt --out a.npy",
    "evaluate": "{run}",
    "factorize": "{run} --text 'a b' --targets b",
    "finetune": "--task sst-2 --init {run} --train table.tsv --workdir w",
    "generate": "{run} a",
    "recl": "{run} --text text.txt",
    "score": "{run} --sentences a",
    "train": "--init {run} --corpus text.txt --workdir w",
}


@pytest.mark.parametrize("name", READERS)
def test_every_command_names_the_checkpoint_that_is_not_damaged(run, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("It was a truth.\n" * 100)
    (tmp_path / "table.tsv").write_text("sentence\tlabel\na\t0\nb\t1\n")
    words = [word.format(run=run) for word in shlex.split(READERS[name])]
    flip_a_bit(run / "checkpoints" / "12" / "config" / "metadata")
    with pytest.raises(InputError, match=r"12 is damaged: config/metadata.* was changed; .*/8 is not: give that$"):
        COMMANDS[name].main(words)
    (run / "checkpoints" / "1000").mkdir()
    with pytest.raises(InputError, match=r"1000 is damaged: (params|config) is missing; .*/8 is not: give that$"):
        COMMANDS[name].main(words)


def test_where_all_checkpoints_are_damaged_there_is_no_last_good_one(run):
    for step in (6, 8, 12):  # the newest three; 6 was the best so far
        flip_a_bit(run / "checkpoints" / str(step) / "config" / "metadata")
    with pytest.raises(InputError, match=r"checkpoints is without damage \(12: config/metadata was changed; 8: "):
        xlnet_jax.load(run / "last-good")


@pytest.mark.slow
def test_a_checkpoint_without_checksums_is_named_by_all(run, text, capsys):  # noqa: F811
    (run / "checkpoints" / "12" / "checksums.json").unlink()
    unverified = "has no checksums.json, so damage in it may go unnoticed"
    assert f"the checkpoint {unverified}" in xlnet_jax.load(run).notes
    assert damaged(run, capsys) == [f"damaged   {run}/checkpoints/12: {unverified}"]
    assert train.main(arguments(text, run)) == 0
    assert f"checkpoint 12 {unverified}" in capsys.readouterr().out


# ---- doctor ----------------------------------------------------------------------------------------------------------


def test_sound_runs_corpora_and_checkpoints_have_no_damage(straight, finetuned, pretrained, capsys):  # noqa: F811
    for folder in (straight, straight / "corpus", straight / "checkpoints", straight / "checkpoints" / "8", pretrained):
        code, lines = doctor(folder, capsys)
        assert (code, [line for line in lines if not line.startswith("ok")]) == (0, lines[-1:])
    code, lines = doctor(finetuned, capsys)
    assert code == 0, lines
    assert lines[-1].endswith(" checked, no damage")


WITHOUT_CHECKSUM = "features.json dataset_info.json thresholds.json _CHECKPOINT_METADATA commit_success.txt".split()


def test_a_flipped_bit_in_any_file_with_a_checksum_is_found(straight, finetuned, tmp_path):  # noqa: F811
    for workdir in (straight, finetuned):
        copy = shutil.copytree(workdir, tmp_path / workdir.parent.name)
        for part in ("checkpoints", "corpus", "tokenizer"):
            for file in files_of(copy / part) if (copy / part).exists() else ():
                if file.name in WITHOUT_CHECKSUM:
                    continue
                before = file.read_bytes()
                flip_a_bit(file)
                found = [one for one in xlnet_jax.examine(copy) if one.damage]
                assert any(str(file).startswith(str(one.path)) for one in found), (file, found)
                file.write_bytes(before)


def test_any_file_that_is_cut_or_gone_is_found(finetuned, straight, tmp_path):  # noqa: F811
    for workdir in (straight, finetuned):
        copy = shutil.copytree(workdir, tmp_path / workdir.parent.name)
        for file in files_of(copy):
            if file.suffix not in (".json", ".png") and file.parent.name != "config":
                continue
            before = file.read_bytes()
            cut(file)
            assert any(one.damage for one in xlnet_jax.examine(copy)), file
            file.write_bytes(before)
        newest = [*list_checkpoints(copy / "checkpoints").values()][-1]
        for part in ("params", "optimizer", "tokenizer", "data", "guard", "config"):
            shutil.move(newest / part, tmp_path / "away")
            assert any(one.damage for one in xlnet_jax.examine(copy)), part
            shutil.move(tmp_path / "away", newest / part)


def test_settings_of_another_run_are_found(run, capsys):
    content = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(content | {"seed": 17}))
    expected = f"damaged   {run}/config.json: it differs from {run}/checkpoints/12 (--seed: 0 there, 17 here)"
    assert damaged(run, capsys) == [expected]


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "1000").mkdir()
    with pytest.raises(InputError, match="has no checkpoint, corpus or run: give a workdir, a checkpoint or a corpus"):
        xlnet_jax.examine(tmp_path)
    with pytest.raises(InputError, match="gone is not a folder"):
        xlnet_jax.examine(tmp_path / "gone")
    assert last_good(tmp_path) is None
    assert damage_of(tmp_path / "1000") == "params is missing"
    assert os.listdir(tmp_path) == ["1000"]

"""Two commands with one output: the second ends in one line before it does any work, and nothing is lost."""

import multiprocessing
import os
import shlex
import time
from pathlib import Path

import pytest
from etils import epath

from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import beside
from xlnet_jax.storage.lock import lock
from xlnet_jax.storage.outputs import complete_folder, new_file

CASES = {  # each has a mistake in its input, which is noticed only by work that follows the lock
    "attention": "gone --text 'a b' --out made.html",
    "compare": "--corpus {given}/novel.txt --workdir made --objectives plm --budget 1e12 --tasks sst-2={given}",
    "convert": "gone made --to hf",
    "embed": "gone --text gone.txt --out made.npy",
    "evaluate": "gone --out made.json",
    "finetune": "--task sst-2 --init gone --train gone.tsv --workdir made",
    "finetune of several seeds": "--task sst-2 --init gone --train gone.tsv --workdir made --seeds 1 2",
    "finetune that predicts": "--task sst-2 --init gone --predict gone.tsv --workdir made",
    "generate": "gone text --picture made.png",
    "inspect": "gone --out made.png",
    "prepare": "--source {given}/novel.txt --tokenizer tiny --out made",
    "score": "gone --sentences a --out made.tsv",
    "tokenizer": "train --source gone.txt --out made",
    "train": "--init gone --workdir made",
}


@pytest.fixture
def given(tmp_path):
    """A text in an alphabet that tiny does not know, and tables without rows."""
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "novel.txt").write_text("В начале было слово.\n" * 200)
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n")
    return folder


def test_every_command_that_writes_an_output_is_tried():
    assert {name.partition(" ")[0] for name in CASES} == COMMANDS.keys() - {
        "doctor",
        "factorize",
        "plan",
        "play",
        "recl",
    }


@pytest.mark.parametrize("name", CASES)
def test_a_command_whose_output_is_being_made_ends_before_its_work(name, given, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    words = [word.format(given=given) for word in shlex.split(CASES[name])]
    output = epath.Path(next(word for word in words if word.startswith("made")))
    command = COMMANDS[name.partition(" ")[0]]
    held = lock(output if "--workdir" in words else beside(output), "another")
    with pytest.raises(InputError, match=rf"{output} is in use by process {os.getpid()} on .*: wait, or give another "):
        command.main(words)
    held.release()
    assert os.listdir() == []
    with pytest.raises(InputError) as mistake:
        command.main(words)
    assert "in use" not in str(mistake.value)
    assert os.listdir() == []


def make_again_and_again(make, out, number, results, begin):
    """Make one output, as another process does at the same time, until both have made it a few times."""
    begin.wait()
    until = time.monotonic() + 2
    while time.monotonic() < until:
        try:
            with make(out) as partial:
                file = partial / "a" if make is complete_folder else partial
                file.write_text(str(number))
                time.sleep(0.0005 * number)
        except InputError as refused:
            results.put(" ".join(str(refused).split()[1:3]))
        except BaseException as error:
            results.put(repr(error))
            raise
        else:
            there = (Path(out) / "a" if make is complete_folder else Path(out)).read_text()
            results.put("made" if there == str(number) else f"{there} in place of {number}")
            (Path(out) / "a" if make is complete_folder else Path(out)).unlink()
            if make is complete_folder:
                os.rmdir(out)


@pytest.mark.parametrize("make", [new_file, complete_folder])
def test_processes_that_make_one_output_at_once_each_make_all_of_it_or_are_refused(make, tmp_path):
    context = multiprocessing.get_context("spawn")
    results, begin, out = context.Queue(), context.Barrier(2), str(tmp_path / "out")
    makers = [context.Process(target=make_again_and_again, args=(make, out, i, results, begin)) for i in range(2)]
    for maker in makers:
        maker.start()
    found = []
    while any(maker.is_alive() for maker in makers) or not results.empty():
        while not results.empty():
            found.append(results.get())
        time.sleep(0.01)
    assert set(found) <= {"made", "is in", "exists: give", "exists: name"}
    assert found.count("made") > 9
    assert found.count("is in") > 9
    assert os.listdir(tmp_path) == []

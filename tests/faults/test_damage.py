"""A workdir with a damaged or a foreign file: the same command ends with the bits of the undamaged run, or in one line
that says what to do and changes nothing. Commands that read the run do the same, and none believes a damaged file. They
run in this process, where they share their compiled programs."""

import contextlib
import functools
import hashlib
import io
import re
import shutil

import pytest

from tests.faults import commands
from tests.faults.children import Outcome
from tests.faults.commands import learned, newest
from tests.faults.trials import difference
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.checkpoints.listing import UNVERIFIED
from xlnet_jax.errors import InputError, exit_code
from xlnet_jax.printing import tell


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file):
    file.write_bytes(b"")


def flip(file):
    """Change a bit in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def scatter(file):
    """Change a bit in one of 512 bytes: the highest, so that no digit becomes another."""
    content = bytearray(file.read_bytes())
    content[256::512] = bytes(byte ^ 128 for byte in content[256::512])
    file.write_bytes(content)


def remove(file):
    file.unlink()


DAMAGES = {damage.__name__: damage for damage in (cut, empty, flip, scatter, remove)}
NEWEST = """cut NEWEST/params/d/*
    flip NEWEST/params/ocdbt*/d/*
    empty NEWEST/params/_METADATA
    remove NEWEST/params/manifest.ocdbt
    flip NEWEST/optimizer/ocdbt*/d/*
    remove NEWEST/guard/d/*
    cut NEWEST/checksums.json
    remove NEWEST/checksums.json
    remove NEWEST/checksums.json + flip NEWEST/params/ocdbt*/d/*
    flip NEWEST/config/metadata
    empty NEWEST/data/metadata
    flip NEWEST/tokenizer/spiece.model
    remove NEWEST/tokenizer/tokenizer_settings.json""".splitlines()
"""What happens to the largest file of a pattern in the newest checkpoint"""
RUN = """cut config.json
    remove config.json
    empty text.json
    cut metrics.jsonl
    remove metrics.jsonl
    flip tokenizer/spiece.model
    cut corpus/manifest.json
    scatter corpus/corpus-train*
    remove corpus/corpus-train*""".splitlines()
"""and in the workdir"""
CASES = {
    "train": [*NEWEST, *RUN],
    "finetune": [*NEWEST[::4], "cut config.json", "scatter metrics.jsonl", "remove tokenizer/spiece.model"],
    "convert": NEWEST,
    "score": NEWEST[1::4],
}
LAST = {"train": "20", "finetune": "12"}
"""Checkpoints of the end of a run. Without them, steps are left to do"""
READERS = {
    "convert": "xlnet_jax.convert run hf --to hf",
    "score": "xlnet_jax.score run --sentences Rain. --out scores.jsonl",
}


def hashes(folder):
    """Return a hash of each file, except locks."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def run(words, folder):
    """Run a command in a folder."""
    out, error, code = io.StringIO(), io.StringIO(), 0
    tell.cache_clear()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = COMMANDS[words[0].rpartition(".")[2]].main(words[1:])
        except InputError as mistake:
            code = exit_code(mistake)
            print("error:", mistake, file=error)
    return Outcome(code, out.getvalue(), error.getvalue(), 0)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return the folder of what the commands read."""
    folder = tmp_path_factory.mktemp("given")
    commands.make_inputs(folder, run)
    return folder


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """Return a function that runs a command, once; it returns the folder in which it ran, and the command's words."""

    @functools.cache
    def run_it(name):
        folder = tmp_path_factory.mktemp(name)
        words = [*commands.COMMANDS[name].words(inputs), "--checkpoint.keep", "3"]
        outcome = run(words, folder)
        assert outcome.code == 0, outcome
        return folder, words

    return run_it


@pytest.fixture(scope="module")
def unfinished(whole, tmp_path_factory):
    """Return a function that returns the folder of a run with two checkpoints, and steps left to do."""

    @functools.cache
    def undo(name):
        copy = tmp_path_factory.mktemp(f"unfinished-{name}")
        ignored = shutil.ignore_patterns("results.json", "predictions", "*.png", "tensorboard", LAST[name])
        return shutil.copytree(whole(name)[0], copy, ignore=ignored, dirs_exist_ok=True)

    return undo


@pytest.fixture(scope="module")
def answers(unfinished, tmp_path_factory):
    """Return a function that returns what a command writes that reads the undamaged run."""

    @functools.cache
    def answer(name):
        folder = tmp_path_factory.mktemp(name)
        shutil.copytree(unfinished("train"), folder, dirs_exist_ok=True)
        before, outcome = hashes(folder), run(READERS[name].split(), folder)
        assert outcome.code == 0, outcome
        return {path: content for path, content in hashes(folder).items() if path not in before}

    return answer


@pytest.fixture
def run_damaged(whole, unfinished, answers, tmp_path):
    """Return a function that damages a run, runs a command on it, and checks the end."""

    def run_it(name, damage, unlike=()):
        of = "train" if name in READERS else name
        finished, again = whole(of)
        shutil.copytree(unfinished(of), tmp_path, dirs_exist_ok=True)
        damage(tmp_path / "run")
        without_checksums = not (newest(tmp_path / "run") / "checksums.json").exists()
        before, outcome = hashes(tmp_path), run(READERS[name].split() if name in READERS else again, tmp_path)
        after = hashes(tmp_path)
        assert outcome.code == 0 or (outcome.code == 2 and outcome.is_one_line), outcome
        if outcome.code == 2:
            del before["run/metrics.jsonl"]  # records after the checkpoint go when a run resumes
            assert before.items() <= after.items(), outcome
        elif UNVERIFIED in outcome.out:
            assert without_checksums, outcome
        elif name in READERS:
            assert {path: content for path, content in after.items() if path not in before} == answers(name), outcome
        else:
            ours = {what: found for what, found in learned(tmp_path).items() if what not in unlike}
            assert not difference(ours, learned(finished)), outcome
            aside = {path: content for path, content in after.items() if "/broken-checkpoints/" in path}
            assert aside.items() <= {p.replace("/c", "/broken-c", 1): content for p, content in before.items()}.items()
            assert not aside or "was moved to" in outcome.out, outcome
        return outcome

    return run_it


@pytest.mark.parametrize(
    ("name", "damage"), [(name, " ".join(damage.split())) for name, damages in CASES.items() for damage in damages]
)
def test_a_damaged_file_changes_no_result(name, damage, run_damaged):
    def do(run):
        last = f"checkpoints/{newest(run).name}"
        for how, pattern in map(str.split, damage.split(" + ")):
            DAMAGES[how](max(run.glob(pattern.replace("NEWEST", last)), key=lambda path: path.stat().st_size))

    # Evaluations that are lost are no longer compared, so another checkpoint may be the best.
    outcome = run_damaged(name, do, unlike=("records", "files") if "metrics.jsonl" in damage else ())
    if damage == "scatter metrics.jsonl":
        assert re.search(r"note: .*metrics.jsonl: \d+ damaged lines are skipped\n", outcome.error), outcome

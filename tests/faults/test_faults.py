"""A command that is killed, stopped, or stands before a full or failing disk, again and again, ends with the bits of an
undisturbed run. `make faults` does this at every call; here each command has a dozen moments."""

import re
import signal

import pytest

from tests.faults import shim
from tests.faults.children import Fault
from tests.faults.trials import ACTS, difference, ends_as_promised, points_of

KILLED, SAVED, INTERRUPTED = -signal.SIGKILL, 143, 130
SAID = r"stopped by (\w+) with step (\d+) saved; the same command continues from there\n"
ARRAYS = "run/checkpoints/*/d/*"
MOMENTS = {
    "train": [
        ("killed within", "write", "run/.corpus.partial/finished/*", KILLED),
        ("SIGHUP", "rename", "run/corpus", -signal.SIGHUP),  # there is nothing to save yet
        ("SIGTERM", "write", "run/metrics.jsonl", SAVED),
        ("killed within", "write", "run/*config.json*", KILLED),
        ("SIGHUP", "rename", "run/checkpoints/*", SAVED),  # during a save
        ("SIGINT", "unlink", "run/checkpoints/?/checksums.json", INTERRUPTED),  # an older checkpoint is deleted
        ("killed before", "sync", "run/checkpoints/*/checksums.json", KILLED),
        ("disk full", "write", ARRAYS, 2),
        ("killed after", "rename", "run/checkpoints/??", KILLED),
        ("killed within", "write", "run/metrics.jsonl", KILLED),
        ("I/O error", "sync", ARRAYS, 1),
        ("SIGTERM", "write", "run/.curves.png.partial", -signal.SIGTERM),  # all steps are done and saved
    ],
    "finetune": [
        ("killed before", "rename", "run/tokenizer", KILLED),
        ("SIGHUP", "write", "run/metrics.jsonl", SAVED),
        ("killed within", "write", ARRAYS, KILLED),
        ("SIGTERM", "sync", "run/checkpoints/*", SAVED),
        ("killed after", "rename", "run/checkpoints/?", KILLED),
        ("SIGINT", "write", "run/metrics.jsonl", INTERRUPTED),
        ("I/O error", "write", "run/predictions/eval/predictions.tsv", 1),
        ("SIGHUP", "open", "run/predictions/predict/*", -signal.SIGHUP),
        ("killed before", "rename", "run/results.json", KILLED),
    ],
    "prepare": [
        ("killed within", "write", ".corpus.partial/work/encoded-*", KILLED),
        ("SIGINT", "rename", ".corpus.partial/work/encoded-*", INTERRUPTED),
        ("SIGTERM", "sync", ".corpus.partial/finished/*", -signal.SIGTERM),
        ("disk full", "write", ".corpus.partial/finished/*", 2),
        ("SIGHUP", "write", ".corpus.partial/finished/dataset_info.json", -signal.SIGHUP),
        ("killed before", "rename", "corpus", KILLED),
        ("killed after", "rename", "corpus", KILLED),
    ],
    "tokenizer": [
        ("killed within", "write", ".tok.partial/finished/spiece.model", KILLED),
        ("SIGINT", "open", ".tok.partial/finished/*", INTERRUPTED),
        ("SIGTERM", "sync", ".tok.partial/*", -signal.SIGTERM),
        ("disk full", "write", ".tok.partial/*", 2),
        ("SIGHUP", "mkdir", ".tok.partial/finished", -signal.SIGHUP),
        ("killed before", "rename", "tok", KILLED),
        ("killed after", "rename", "tok", KILLED),
    ],
    "convert": [
        ("killed within", "write", ".hf.partial/finished/model.safetensors", KILLED),
        ("SIGINT", "open", ".hf.partial/finished/spiece.model", INTERRUPTED),
        ("SIGTERM", "sync", ".hf.partial/*", -signal.SIGTERM),
        ("I/O error", "write", ".hf.partial/finished/config.json", 1),
        ("SIGHUP", "write", ".hf.partial/finished/README.md", -signal.SIGHUP),
        ("killed before", "rename", "hf", KILLED),
        ("killed after", "rename", "hf", KILLED),
    ],
}
"""By command: what happens to its starts, one after the other, at the first call of this kind to a path of this
pattern, and the exit code"""


def complete_in(folder):
    """Return the names of what is complete in a folder, and the newest checkpoint."""
    names = {str(path.relative_to(folder)) for place in (folder, folder / "run") for path in place.glob("[!.]*")}
    steps = [int(path.name) for path in folder.glob("run/checkpoints/*") if path.name.isdigit()]
    return names, max(steps, default=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", MOMENTS)
def test_a_command_that_is_ended_again_and_again_ends_with_the_same_bits(name, sound, given, tmp_path, children):
    run = sound(name)
    words, (names, newest) = run.command.words(given), complete_in(tmp_path)
    for act, kind, pattern, code in MOMENTS[name]:
        fault = Fault(ACTS[act], kind, pattern)
        outcome = children.run(words, tmp_path, fault)
        what = f"{act} at {kind} {pattern}: {outcome}"
        assert outcome.reached, what
        assert outcome.code == code, what
        assert ends_as_promised(outcome, fault), what
        before = names, newest
        names, newest = complete_in(tmp_path)
        assert before[0] <= names, what
        assert before[1] <= newest, what
        if saved := re.search(SAID, outcome.out):
            assert saved.groups() == (act, str(newest)), what
        assert bool(saved) == (name in ("train", "finetune") and code in (SAVED, INTERRUPTED)), what
    last = children.run(words, tmp_path)
    assert last.code == 0 or (last.code == 2 and re.fullmatch("error: .* exists.*\n", last.error)), last
    assert not difference(run.result, run.command.result(tmp_path))


def test_a_checkpoint_is_synced_before_an_older_one_is_deleted(sound):
    """A loss of power leaves one of the two. The best checkpoint, of step 10, takes the place of 4."""
    calls = [(call.kind, call.path.replace(".orbax-checkpoint-tmp", "")) for call in sound("train").calls]
    places = {call: number for number, call in enumerate(calls)}  # of the last one
    deleted = places["unlink", "run/checkpoints/4/checksums.json"]
    written = {path: n for (kind, path), n in places.items() if kind == "write" and "/checkpoints/10/" in path}
    for of_orbax in ("_CHECKPOINT_METADATA", "commit_success.txt"):  # times and a marker, which nothing here reads
        written.pop(f"run/checkpoints/10/{of_orbax}", None)
    assert len(written) > 4
    for path, last in written.items():
        assert last < places.get(("sync", path), -1) < deleted, f"{path} is not synced in time"


def test_calls_at_files_that_differ_in_numbers_are_one_point():
    paths = [f"run/checkpoints/{n}/{item}/d/{n:032x}" for n in (2, 4) for item in ("params", "mems")]
    (point,) = points_of(tuple(shim.Call("unlink", path) for path in paths))
    assert point.pattern == "run/checkpoints/*/ARRAYS/d/*"
    assert (point.glob, point.count) == ("run/checkpoints/*/params/d/*", 2)

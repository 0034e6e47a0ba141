"""A few of the faults of `make faults`: commands keep what they promise, and faults are where they should be."""

import os
from pathlib import Path

import pytest

from tests.faults import shim
from tests.faults.children import Children
from tests.faults.commands import COMMANDS, make_inputs
from tests.faults.trials import ACTS, points_of, run_undisturbed, try_fault

ARRAYS = "run/checkpoints/*.orbax-checkpoint-tmp/ARRAYS.orbax-checkpoint-tmp/d/*"

if reason := shim.missing_requirement():
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def children(scratch):
    with Children(shim.build(scratch), scratch, Path(os.environ["JAX_COMPILATION_CACHE_DIR"])) as children:
        yield children


@pytest.fixture(scope="module")
def sound(scratch, children):
    given = scratch / "given"
    given.mkdir()
    make_inputs(given, children)
    return {name: run_undisturbed(COMMANDS[name], given, scratch, children, times=1) for name in ("train", "prepare")}


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "name", "kind", "pattern"),
    [
        ("train", "killed after", "rename", "run/checkpoints/*"),
        ("train", "killed within", "write", "run/metrics.jsonl"),
        ("train", "disk full", "write", ARRAYS),
        ("train", "I/O error", "sync", ARRAYS),
        ("prepare", "I/O error", "write", ".corpus.partial/finished/.corpus-train.array_record-*-of-*.partial"),
    ],
)
def test_the_same_command_goes_on_after_a_fault(sound, tmp_path, children, command, name, kind, pattern):
    run = sound[command]
    (point,) = (point for point in run.points if (point.kind, point.pattern) == (kind, pattern))
    verdict = try_fault(run, point.fault(ACTS[name]), tmp_path / "trial", children)
    assert verdict.kind == "same bits", verdict


@pytest.mark.long
def test_a_checkpoint_is_synced_before_an_older_one_is_deleted(sound):
    """A loss of power leaves one of the two."""
    calls = [(call.kind, call.path.replace(".orbax-checkpoint-tmp", "")) for call in sound["train"].calls]
    places = {call: number for number, call in enumerate(calls)}  # of the last one
    deleted = places["unlink", "run/checkpoints/4/checksums.json"]
    written = {path: n for (kind, path), n in places.items() if kind == "write" and "/checkpoints/6/" in path}
    for of_orbax in ("_CHECKPOINT_METADATA", "commit_success.txt"):  # times and a marker, which nothing here reads
        written.pop(f"run/checkpoints/6/{of_orbax}", None)
    assert len(written) > 4
    for path, last in written.items():
        assert last < places.get(("sync", path), -1) < deleted, f"{path} is not synced in time"


def test_calls_at_files_that_differ_in_numbers_are_one_point():
    paths = [f"run/checkpoints/{n}/{item}/d/{n:032x}" for n in (2, 4) for item in ("params", "mems")]
    (point,) = points_of(tuple(shim.Call("unlink", path) for path in paths))
    assert point.pattern == "run/checkpoints/*/ARRAYS/d/*"
    assert (point.glob, point.count) == ("run/checkpoints/*/params/d/*", 2)

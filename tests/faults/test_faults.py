"""A few of the faults of `make faults`: enough to see that the commands still keep what they promise, and that the
faults are still put where they are meant to be."""

import os
from pathlib import Path

import pytest

from tests.faults import shim
from tests.faults.children import Children
from tests.faults.circumstances import in_little_memory
from tests.faults.commands import COMMANDS, make_inputs
from tests.faults.memory_groups import lacking_groups
from tests.faults.power import LOSSES, left_after
from tests.faults.trials import ACTS, points_of, try_fault, try_power_loss, undisturbed

SAVED = "run/checkpoints/*.orbax-checkpoint-tmp"

if reason := shim.lacking():
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def children(scratch):
    with Children(shim.build(scratch), scratch, Path(os.environ["JAX_COMPILATION_CACHE_DIR"])) as children:
        yield children


@pytest.fixture(scope="module")
def given(scratch, children):
    folder = scratch / "given"
    folder.mkdir()
    make_inputs(folder, children)
    return folder


@pytest.fixture(scope="module")
def sound(scratch, children, given):
    """Undisturbed runs by the name of their command."""
    return {
        "train": undisturbed(COMMANDS["train"], given, scratch, children, times=1),
        "prepare": undisturbed(COMMANDS["prepare"], given, scratch, children, times=1),
        "prepare in processes": undisturbed(COMMANDS["prepare in processes"], given, scratch, children, times=1),
    }


@pytest.mark.slow
def test_the_calls_of_a_run_are_seen(sound):
    seen = {(point.kind, point.pattern) for point in sound["train"].points}
    assert seen >= {
        ("rename", "run/config.json"),
        ("rename", "run/corpus"),
        ("write", "run/.corpus.partial/finished/.corpus-train.array_record-*-of-*.partial"),  # by C++
        ("write", f"{SAVED}/ARRAYS.orbax-checkpoint-tmp/d/*"),  # by C++
        ("sync", f"{SAVED}/ARRAYS.orbax-checkpoint-tmp/d/*"),
        ("rename", "run/checkpoints/*"),
        ("unlink", "run/checkpoints/*/checksums.json"),
        ("write", "run/metrics.jsonl"),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name", "kind", "pattern"),
    [
        ("train", "killed before", "rename", "run/corpus"),
        ("train", "killed after", "rename", "run/checkpoints/*"),
        ("train", "killed within", "write", "run/metrics.jsonl"),
        ("train", "disk full", "write", f"{SAVED}/ARRAYS.orbax-checkpoint-tmp/d/*"),
        ("train", "I/O error", "sync", f"{SAVED}/ARRAYS.orbax-checkpoint-tmp/d/*"),
        ("prepare", "killed after", "rename", "corpus"),
        ("prepare", "I/O error", "write", ".corpus.partial/finished/.corpus-train.array_record-*-of-*.partial"),
        ("prepare", "refused late", "close", ".corpus.partial/finished/unigram_counts.npy"),
        ("prepare in processes", "killed alone", "write", ".corpus.partial/work/encoded-*/.*.npz*.partial"),
    ],
)
def test_the_same_command_goes_on_after_a_fault(sound, scratch, children, command, name, kind, pattern):
    run = sound[command]
    (point,) = (point for point in run.points if (point.kind, point.pattern) == (kind, pattern))
    verdict = try_fault(run, point.fault(ACTS[name]), scratch / "trial", children)
    assert verdict.kind == "same bits", verdict


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES[::2])
def test_an_older_checkpoint_goes_when_the_newer_one_outlives_a_loss_of_power(sound, scratch, children, loss):
    run = sound["train"]
    removed = ("unlink", "run/checkpoints/*/checksums.json")
    *_, moment = (number for number, c in enumerate(run.calls, 1) if (c.kind, c.pattern) == removed)
    verdict = try_power_loss(run, left_after(run.calls[:moment], loss), scratch / "trial", children)
    assert verdict.kind == "same bits", verdict


def call(kind, path, other="", offset=0, inode=0, data=b""):
    return shim.Call(kind, path, other, 0, 1, offset, inode, data)


def test_what_was_not_synced_is_lost_with_the_power():
    new = os.O_CREAT | os.O_TRUNC
    calls = [
        call("open", "a", offset=new, inode=1),
        call("write", "a", inode=1, data=b"12"),
        call("sync", "a", inode=1),
        call("write", "a", inode=1, offset=2, data=b"3456"),
        call("open", "b", offset=new, inode=2),
        call("write", "b", inode=2, data=b"1234"),
        call("mkdir", "d"),
        call("rename", "d/b", other="b"),
    ]
    data, half, names = (left_after(calls, loss) for loss in LOSSES)
    assert data == {"a": b"12", "d": None, "d/b": b""}
    assert half == {"a": b"1234", "d": None, "d/b": b"12"}
    assert names == {"a": b"12"}
    everything = [*calls, call("sync", "d/b", inode=2), call("sync", "a", inode=1)]
    assert all(left_after(everything, loss) == {"a": b"123456", "d": None, "d/b": b"1234"} for loss in LOSSES)


def test_a_file_server_takes_what_was_written_at_a_sync_or_a_close():
    calls = [call("write", "a", inode=1, data=b"12"), call("sync", "a", inode=1), call("close", "a", inode=1)]
    calls += [call("open", "a", inode=1), call("write", "a", inode=1, data=b"3"), call("close", "a", inode=1)]
    flushing = {point.kind: point.flushing for point in points_of(tuple(calls))}
    assert flushing == {"write": 0, "open": 0, "sync": 1, "close": 2}


@pytest.mark.slow
def test_a_command_goes_on_where_the_kernel_killed_it_for_its_memory(sound, scratch, children):
    if reason := lacking_groups():
        pytest.skip(reason)
    verdict = in_little_memory(sound["prepare"], scratch / "little-memory", children)
    assert verdict.kind == "same bits", verdict


def test_calls_at_files_that_differ_in_numbers_are_one_point():
    calls = [call("unlink", f"run/checkpoints/{n}/{item}/d/{n:032x}") for n in (2, 4) for item in ("params", "mems")]
    (point,) = points_of(tuple(calls))
    assert point.pattern == "run/checkpoints/*/ARRAYS/d/*"
    assert (point.glob, point.count) == ("run/checkpoints/*/params/d/*", 2)

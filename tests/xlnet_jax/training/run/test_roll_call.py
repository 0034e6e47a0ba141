"""Hosts meet in the workdir before jax connects them: one line names who is missing, one too many or different."""

import contextlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import DistributedConfig
from xlnet_jax.training.run import presence, roll_call
from xlnet_jax.training.run.roll_call import HostsMissing, attended

HERE = socket.gethostname()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Beat twenty times as often, and wait for less."""
    for module in (presence, roll_call):
        monkeypatch.setattr(module, "seconds_between_beats", lambda folder: 0.1)
    monkeypatch.setattr(roll_call, "_seconds_between_looks", lambda folder: 0.05)
    monkeypatch.setattr(roll_call, "_SECONDS_TO_APPEAR", 1.0)


def place(process_id, count=3, seconds=60):
    return DistributedConfig("localhost:8476", count, process_id, seconds)


def meet(folder, *ids, count=3, seconds=60, settings=None, names=(), folders=None, together=True):
    """Return the names of all processes as each has learned them, or the line with which it ends."""
    all_met = threading.Barrier(len(ids))

    def arrive(process_id):
        own = (folders or {}).get(process_id, folder)
        try:
            with attended(
                place(process_id, count, seconds), str(own), (settings or {}).get(process_id, {"seed": 0}), names
            ) as there:
                if together:
                    all_met.wait(30)
                return [there.roll.name(p) for p in range(count)]
        except InputError as refusal:
            return str(refusal)

    with ThreadPoolExecutor(len(ids)) as threads:
        return list(threads.map(arrive, ids))


def met(count=3):
    return [f"process {p} on {HERE}" for p in range(count)]


def stale(folder, start, **files):
    """Leave files of an earlier start."""
    (folder / ".hosts" / start).mkdir(parents=True)
    (folder / ".hosts" / "call.json").write_text(json.dumps({"start": start, "host": "host-a", "beat": 7}))
    for name, content in files.items():
        (folder / ".hosts" / start / f"{name}.json").write_text(json.dumps(content))


def test_each_process_learns_where_the_others_are(tmp_path):
    assert meet(tmp_path / "run", 0, 1, 2) == [met()] * 3


def test_hosts_that_do_not_arrive_are_named_on_those_that_do(tmp_path):
    lines = meet(tmp_path, 0, 2, count=4, seconds=3, names=["host-a", "host-b", "host-c", "host-d"])
    assert set(lines) == {
        f"process 1 on host-b, process 3 on host-d did not arrive in {tmp_path} within 3 s "
        "(distributed.initialization-timeout); 2 of 4 processes are there: start the same command on every host, with "
        "one workdir that all share"
    }


def test_a_process_0_that_does_not_arrive_is_named(tmp_path):
    for line in meet(tmp_path, 1, 2, seconds=1):
        assert line.startswith(
            f"process 0 did not arrive in {tmp_path} within 1 s (distributed.initialization-timeout)"
        )


@pytest.mark.parametrize("process_id", [0, 1])
def test_a_run_that_waited_in_vain_may_be_started_again(tmp_path, process_id):
    with pytest.raises(HostsMissing) as missing, attended(place(process_id, 2, 1), str(tmp_path), {}):
        pass
    assert missing.value.exit_code == 143


def test_a_workdir_that_the_hosts_do_not_share_is_named_on_both(tmp_path):
    first, second = meet(tmp_path / "a", 0, 1, count=2, seconds=1, folders={1: tmp_path / "b"})
    assert "process 1 did not arrive" in first
    assert "with one workdir that all share" in first
    assert f"{tmp_path / 'b'} on {HERE} is not the folder that process 0 has by this name: all" in second


def test_processes_with_other_settings_are_refused_and_the_difference_named(tmp_path):
    lines = meet(tmp_path, 0, 1, 2, settings={1: {"seed": 7}})
    assert set(lines) == {
        f"process 1 on {HERE} was started with other settings than process 0 (seed: 0 at process 0, 7 there): give the "
        "same command everywhere"
    }


def test_a_mistake_is_not_tried_again(tmp_path):
    refused = []

    def arrive(process_id):
        try:
            with attended(place(process_id, 2), str(tmp_path), {"seed": process_id}):
                pass
        except InputError as refusal:
            refused.append(refusal.exit_code)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(arrive, range(2)))
    assert refused == [2, 2]


def test_two_processes_of_one_number_are_refused(tmp_path):
    lines = meet(tmp_path, 0, 1, 1, count=3)
    assert set(lines) == {
        f"process 1 on {HERE} is one too many in {tmp_path}, where process 1 is on {HERE} and process 0 on {HERE} has "
        "3 processes: give each its own `distributed.process_id`, all the same `distributed.num_processes`, and each "
        "run its own workdir"
    }


def test_a_process_of_a_larger_run_is_refused(tmp_path):
    def arrive(process_id, count):
        try:
            with attended(place(process_id, count), str(tmp_path), {}):
                return "met"
        except InputError as refusal:
            return str(refusal)

    with ThreadPoolExecutor(2) as threads:
        lines = list(threads.map(arrive, (0, 2), (2, 3)))
    assert [line.startswith(f"process 2 on {HERE} is one too many") for line in lines] == [True, True]


def test_two_processes_0_are_refused(tmp_path):
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(meet, tmp_path, 0, count=2, seconds=2)
        while not (tmp_path / ".hosts" / "call.json").exists():
            threading.Event().wait(0.02)
        (second,) = meet(tmp_path, 0, count=2, seconds=2)
    assert second.startswith(f"process 0 on {HERE} is one too many: workdir {tmp_path / '.hosts'} is in use by process")
    assert "process 1 did not arrive" in first.result()[0]


def test_a_process_that_died_here_and_came_again_is_not_two(tmp_path):
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(meet, tmp_path, 0, count=3, seconds=30, together=False)
        while not list((tmp_path / ".hosts").glob("*/state.json")):
            threading.Event().wait(0.02)
        (state,) = (tmp_path / ".hosts").glob("*/state.json")
        dead = {"process_id": 1, "num_processes": 3, "host": "host-x", "settings": {"seed": 5}, "beat": 3}
        (state.parent / f"1-{'0' * 32}.json").write_text(json.dumps(dead))
        assert meet(tmp_path, 1, 2, count=3) == [met()] * 2
        assert first.result() == [met()]


def test_a_process_that_died_while_others_were_awaited_is_not_begun_with(tmp_path):
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(meet, tmp_path, 0, count=3, seconds=4, together=False)
        while not list((tmp_path / ".hosts").glob("*/state.json")):
            threading.Event().wait(0.02)
        (state,) = (tmp_path / ".hosts").glob("*/state.json")
        dead = {"process_id": 1, "num_processes": 3, "host": "host-x", "settings": {"seed": 0}, "beat": 3}
        (state.parent / f"1-{'0' * 32}.json").write_text(json.dumps(dead))
        threading.Event().wait(1)
        (line,) = meet(tmp_path, 2, count=3)
        assert line.startswith(f"process 1 did not arrive in {tmp_path} within 4 s")
        assert first.result() == [line]


def test_files_of_earlier_starts_confuse_nobody(tmp_path):
    """They hold a call, an answer, a result with this number, and a refusal."""
    start, file = "1" * 32, f"1-{'2' * 32}"
    answer = {"process_id": 1, "num_processes": 2, "host": "host-x", "settings": {"seed": 9}, "beat": 1}
    result = {"files": [f"0-{'3' * 32}.json", f"{file}.json"], "hosts": ["host-a", "host-x"]}
    stale(tmp_path / "met", start, state={}, result=result, **{file: answer})
    assert meet(tmp_path / "met", 0, 1, count=2) == [met(2)] * 2
    assert not (tmp_path / "met" / ".hosts" / start).exists()
    refusal = {"refused": "process 1 has other settings", "code": 2, "files": [f"{file}.json"]}
    stale(tmp_path / "refused", start, state={}, result=refusal, **{file: answer})
    assert meet(tmp_path / "refused", 0, 1, count=2) == [met(2)] * 2
    stale(tmp_path / "alone", start, state={}, result=result)
    (line,) = meet(tmp_path / "alone", 1, count=2, seconds=1)
    assert line == (
        f"process 1 on {HERE} was not called in {tmp_path / 'alone'} within 1 s (distributed.initialization-timeout): "
        "process 0 on host-a has begun without it, or did not start again"
    )


def test_an_earlier_start_is_removed_although_a_process_still_answers_it(tmp_path):
    folder = tmp_path / ("1" * 32)
    folder.mkdir()
    begun = threading.Event()

    def answer():
        until = time.monotonic() + 0.4
        with contextlib.suppress(OSError):  # the folder is gone
            while time.monotonic() < until:
                (folder / "answer.partial").write_text("{}")
                (folder / "answer.partial").rename(folder / "answer.json")
                begun.set()

    with ThreadPoolExecutor(1) as thread:
        answering = thread.submit(answer)
        assert begun.wait(10)
        roll_call._remove(epath.Path(folder))
        answering.result()
    assert not folder.exists()


def test_a_process_that_waited_for_an_earlier_start_answers_the_next(tmp_path):
    stale(tmp_path, "1" * 32, state={})
    with ThreadPoolExecutor(1) as thread:
        second = thread.submit(meet, tmp_path, 1, count=2, together=False)
        while not list((tmp_path / ".hosts" / ("1" * 32)).glob("1-*.json")):
            threading.Event().wait(0.02)
        assert meet(tmp_path, 0, count=2, together=False) == [met(2)]
        assert second.result() == [met(2)]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (line,) = meet(tmp_path / "file", 0, count=2)
    assert line == f"workdir {tmp_path / 'file'} cannot be made a folder: File exists"

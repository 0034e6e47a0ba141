"""Runs of several processes, of which one is killed, stopped or differs: all end in time, with a line that names it,
and the same command continues the run with as many processes as there are."""

import re
import signal
import socket
from dataclasses import replace

import pytest

from tests.faults.children import SOUND, Fault, Start
from tests.faults.trials import ACTS
from tests.xlnet_jax.training.tiny_run import records_of

HERE = socket.gethostname()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def starts(count, words, folder, of_last=(), fault=SOUND):
    """Yield the starts of the processes of one run. of_last: further arguments of the last one, which has the fault."""
    place = {
        "JAX_COORDINATOR_ADDRESS": f"localhost:{free_port()}",
        "JAX_NUM_PROCESSES": str(count),
        "HEARTBEAT_SECONDS": "10",
    }
    for number in range(count):
        last = number == count - 1
        given = [*words, *of_last] if last else words
        yield Start(given, folder, fault if last else SOUND, place | {"JAX_PROCESS_ID": str(number)})


@pytest.fixture
def others(given):
    """Return a table of other examples."""
    table = given / "others.tsv"
    table.write_text((given / "train.tsv").read_text().replace("rain", "storm"))
    return table


@pytest.mark.slow
def test_all_processes_name_the_one_with_other_settings_or_examples(sound, given, others, children, tmp_path):
    of_last = {"train": ["--seed", "7"], "finetune": ["--train", str(others)]}
    lines = {
        "train": rf"error: process 1 on {HERE} has other settings than process 0 \(seed: 0 at process 0, 7 there\)\n",
        "finetune": rf"error: process 1 on {HERE} has other (settings|examples).*\n",
    }
    for name, more in of_last.items():
        ends = children.run_together(*starts(2, sound(name).command.words(given), tmp_path, more))
        for end in ends:
            assert end.code == 2, end
            assert re.search(lines[name], end.error), end


@pytest.mark.slow
def test_a_run_that_loses_and_stops_processes_ends_with_the_losses_of_one_process(sound, given, children, tmp_path):
    """One of two processes is killed while it saves, one of two loses its session, and one process ends the run."""
    run = sound("train")
    words = run.command.words(given)
    fault = Fault(ACTS["killed within"], "write", "run/checkpoints/*process_1*")
    survivor, killed = children.run_together(*starts(2, words, tmp_path, fault=fault))
    assert killed.code == -signal.SIGKILL, killed
    assert survivor.code == -signal.SIGABRT, survivor
    assert re.search(r"tasks are unhealthy \(stopped sending heartbeats\):\n1\n", survivor.error), survivor
    fault = Fault(ACTS["SIGHUP"], "write", "run/checkpoints/*process_1*")
    ends = children.run_together(*starts(2, words, tmp_path, fault=fault))
    assert [end.code for end in ends] == [143, 143], ends
    last = children.run(words, tmp_path)
    assert last.code == 0, last
    assert re.search(r"resumed     at step \d+ of 20", last.out), last
    ours, sounds = ({(r["split"], r["step"]): r["loss"] for r in records_of(f / "run")} for f in (tmp_path, run.folder))
    assert ours == pytest.approx(sounds, abs=1e-5)


@pytest.mark.slow
def test_a_process_that_waits_in_vain_and_those_of_one_that_ends_end_with_its_line(sound, given, children, tmp_path):
    words = sound("train").command.words(given)
    absent = [*words, "--corpus", str(tmp_path / "absent.txt")]
    first, second = children.run_together(*starts(2, absent, tmp_path))
    assert (first.code, second.code) == (2, 2), (first, second)
    (found,) = re.findall("error: (.*absent.txt.*)", first.error)
    assert second.error.splitlines()[-1] == f"error: process 0 on {HERE} ended: {found}"
    alone, _ = starts(2, words, tmp_path)
    (end,) = children.run_together(replace(alone, environment=alone.environment | {"INITIALIZATION_SECONDS": "2"}))
    assert end.code == -signal.SIGABRT, end
    assert end.error.startswith(f"hosts       process 0 on {HERE} waits 2 s for 2 processes at localhost:"), end
    assert "DEADLINE_EXCEEDED" in end.error, end

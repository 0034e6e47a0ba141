"""Stopping python -m data_pipelines.prepare: which processes end, what is printed, and what is kept."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

from data_pipelines import sources
from data_pipelines.corpus import Corpus
from data_pipelines.prepare.encoding import encode

# The command with hundreds of small parts. It waits while the file `hold` exists, so that even a slow machine can stop
# it before it ends.
IN_SMALL_PARTS = """
import os, time
from data_pipelines import readers
from data_pipelines.prepare import encoding, runners
from xlnet_jax import __main__ as command

cut_parts = encoding.cut_parts

def cut_until_held(group):
    for number, part in enumerate(cut_parts(group)):
        while number == 20 and os.path.exists("hold"):
            time.sleep(0.01)
        yield part

encoding.cut_parts = cut_until_held
runners._cores = lambda: 2  # workers on a machine of one core too
readers.CHUNK_BYTES, encoding.PART_CHARS = 4_000, 8_000
command.run(command.COMMANDS["prepare"].main)
"""


def started(first=""):
    """Start the command on the embedded novels, as a process with a group of its own. first: code to run before it."""
    words = "--tokenizer tokenizer --out corpus --block-len 64 --source".split()
    return subprocess.Popen(
        [sys.executable, "-c", first + IN_SMALL_PARTS, *words, sources.embedded()[0]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def under_way(place):
    """Start the process, and hold it when the first parts are encoded."""
    (place / "hold").touch()
    process = started()
    deadline = time.monotonic() + 60
    while len(list(place.glob(".corpus.partial/work/encoded-*/*.npz"))) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return process


def living(process):
    """Count the processes of the group that still run."""
    processes = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    fields = [line.split() for line in processes.splitlines()]
    return sum(group == str(process.pid) and not state.startswith("Z") for group, state in fields)


def workers(process):
    """Return the ids of the worker processes."""
    children = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(pid) for pid, parent in map(str.split, children.splitlines()) if parent == str(process.pid)]


def ends_soon(process):
    deadline = time.monotonic() + 20
    while living(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not living(process)


def test_ctrl_c_ends_all_processes_with_one_line_and_the_next_run_goes_on_to_the_same_corpus(run, place, monkeypatch):
    process = under_way(place)
    code, err = run("--source", "good.txt")
    in_use = f"error: corpus is in use by process {process.pid} on {socket.gethostname()}: wait, or give another path\n"
    assert (code, err) == (2, in_use)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, "")
    assert err == "stopped at once; the same command continues from the last save\n"
    assert ends_soon(process)
    assert not (place / "corpus").exists()
    kept = {file.name for file in place.glob(".corpus.partial/work/encoded-*/*.npz")}
    assert len(kept) >= 3
    (place / "hold").unlink()
    assert run("--source", sources.embedded()[0], out="whole") == (0, "")
    monkeypatch.setattr("data_pipelines.readers.CHUNK_BYTES", 4_000)
    monkeypatch.setattr("data_pipelines.prepare.encoding.PART_CHARS", 8_000)
    monkeypatch.setattr("data_pipelines.prepare.runners._cores", lambda: 1)
    seen = []
    monkeypatch.setattr(
        "data_pipelines.prepare.encoding.encode", lambda part, *rest: seen.append(part.sha256) or encode(part, *rest)
    )
    assert run("--source", sources.embedded()[0]) == (0, "")
    assert seen
    assert not {f"{part}.npz" for part in seen} & kept
    assert Corpus("corpus").manifest.splits == Corpus("whole").manifest.splits
    assert not (place / ".corpus.partial").exists()


def test_workers_end_when_what_they_work_for_is_killed(place):
    process = under_way(place)
    process.kill()
    assert ends_soon(process)


def test_a_worker_that_is_killed_is_one_line_and_what_is_encoded_is_kept(place):
    process = under_way(place)
    os.kill(workers(process)[-1], signal.SIGKILL)
    (place / "hold").unlink()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2
    assert re.fullmatch(r"error: a worker process died: out of memory, .*; encoded parts are kept, .*\n", err)
    assert ends_soon(process)
    assert any(place.glob(".corpus.partial/work/encoded-*/*.npz"))


def test_a_full_disk_is_one_line_that_names_the_folder(place, run):
    process = started("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2
    assert re.fullmatch(r"error: cannot write \S*corpus\S*: File too large; what was saved before is intact\n", err)
    assert not (place / "corpus").exists()
    assert run("--source", sources.embedded()[0]) == (0, "")

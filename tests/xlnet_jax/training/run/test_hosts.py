"""Several processes make one run: they agree, stop together, and end with the reason of the one that ends first;
strangers who reach the port change nothing. `tests/faults/test_hosts.py` loses processes."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.xlnet_jax.training.tiny_run import arguments
from xlnet_jax.errors import CRASH, RESTART, InputError
from xlnet_jax.training import hosts as module
from xlnet_jax.training import workdir
from xlnet_jax.training.hosts import Process, RunEnded
from xlnet_jax.training.workdir import Workdir

HERE = socket.gethostname()
ROOT = Path(__file__).parents[4]


class Store:
    """Key-value store of jax's coordinator, for hosts that are threads here."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def key_value_set(self, key, value):
        with self.changed:
            assert key not in self.values
            self.values[key] = value
            self.changed.notify_all()

    def blocking_key_value_get(self, key, milliseconds):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, milliseconds / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED: as jax says it")
            return self.values[key]

    def key_value_dir_get(self, folder):
        return [item for item in self.values.items() if item[0].startswith(folder)]


@pytest.fixture
def team(monkeypatch):
    """Return a function that lets each of three processes, which share a store, talk in a thread of its own."""
    monkeypatch.setattr(module, "_SECONDS", 0.05)
    store, made = Store(), [Process() for _ in range(3)]
    for process_id, process in enumerate(made):
        process.process_id, process.num_processes, process._client, process._run = process_id, 3, store, "run"

    def each(talk):
        def ended(process):
            try:
                return talk(process)
            except InputError as error:
                return error

        with ThreadPoolExecutor(3) as threads:
            return list(threads.map(ended, made))

    return each


def test_all_processes_name_the_one_that_differs_and_the_difference(team):
    def talk(process):
        process.require_same("other settings", {"seed": 7 if process.process_id == 2 else 0, "betas": (1, 2)})

    line = f"process 2 on {HERE} has other settings than process 0 (seed: 0 at process 0, 7 there)"
    assert [(type(error), str(error)) for error in team(talk)] == [(InputError, line)] * 3
    assert team(lambda process: process.require_same("other settings", {"betas": (1, 2)})) == [None] * 3


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (InputError("`corpus` absent.txt is missing"), "`corpus` absent.txt is missing", 2),
        (TypeError("a mistake of ours\nin two lines"), "a mistake of ours", CRASH),
    ],
)
def test_who_waits_for_a_process_that_ends_ends_with_its_reason_and_code(team, error, line, code):
    def talk(process):
        if process.process_id == 1:
            return process.announce_end(error)
        return process.gather("what", None)

    first, _, last = team(talk)
    assert str(first) == str(last) == f"process 1 on {HERE} ended: {line}"
    assert first.exit_code == last.exit_code == code


@pytest.mark.parametrize("code", [0, 1000, "0", None])
def test_no_announcement_makes_a_run_look_done(code):
    assert RunEnded("a stranger says so", code).exit_code == RESTART


def test_a_workdir_that_process_0_has_not_claimed_is_not_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(workdir, "_SECONDS_TO_APPEAR", -1)
    with pytest.raises(InputError, match=f"{tmp_path} on {HERE} is not the folder that process 0 has by this name"):
        Workdir(tmp_path).require_shared()
    (tmp_path / "config.json").touch()
    Workdir(tmp_path).require_shared()


COMMAND = ["-m", "xlnet_jax.train"]
IN_PYTHON = """
import sys, xlnet_jax
from xlnet_jax.objectives.presets import parse_config
from xlnet_jax.training.stop import exit_code_of
sys.exit(exit_code_of(xlnet_jax.pretrain(parse_config(sys.argv[1:], "train", "")).stopped))
"""


class Two:
    """Run programs in two processes that share eight simulated devices; they are killed after a time limit."""

    SECONDS = 400

    def __init__(self, port, *arguments, programs=(COMMAND, COMMAND)):
        place = {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": "2", "JAX_PLATFORMS": "cpu"}
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
        self.processes = [
            subprocess.Popen(
                [sys.executable, *program, *arguments],
                env=os.environ | place | {"XLA_FLAGS": flags, "JAX_PROCESS_ID": str(number)},
                cwd=ROOT,
                stdout=subprocess.DEVNULL if number else subprocess.PIPE,  # Gloo prints each connection
                stderr=subprocess.PIPE,
                text=True,
            )
            for number, program in enumerate(programs)
        ]
        self.limit = threading.Timer(self.SECONDS, lambda: [process.kill() for process in self.processes])
        self.limit.start()

    def await_line(self, words):
        """Read what process 0 prints, up to a line with these words."""
        assert any(words in line for line in self.processes[0].stdout)

    def end(self):
        """Return (exit codes, stderr of each)."""
        with ThreadPoolExecutor(len(self.processes)) as threads:
            errors = [err for _, err in threads.map(lambda p: p.communicate(), self.processes)]
        self.limit.cancel()
        return [p.returncode for p in self.processes], errors


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def addresses_of(port):
    """Return the addresses at which this machine listens on a port, as /proc/net/tcp has them."""
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}


@pytest.mark.slow
def test_strangers_at_the_port_change_nothing_and_a_stop_that_one_host_is_asked_for_is_made_by_all(text, tmp_path):
    """One of the two starts from Python; `pretrain` stops as the command does."""
    port, often = free_port(), "--steps 40 --log.every-steps 1 --eval.every-steps 40 --checkpoint.every-steps 40"
    running = Two(port, *arguments(text, tmp_path / "run", *often.split()), programs=(COMMAND, ["-c", IN_PYTHON]))
    with contextlib.ExitStack() as held:
        running.await_line("devices")
        for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", b'{"process_id": 1}\n', os.urandom(4096)) * 25:
            line = held.enter_context(socket.create_connection(("localhost", port), timeout=10))
            with contextlib.suppress(OSError):
                line.sendall(garbage)
        addresses = addresses_of(port)
        running.await_line("step 12/40")
        running.processes[1].terminate()
        codes, errors = running.end()
    assert codes == [143, 143]
    assert errors[1].count("finishing this step and saving") == 1
    # The coordinator listens on the address that was given, 127.0.0.1 or ::1, alone.
    assert addresses
    assert all(address.endswith(("0100007F", "0" * 24 + "01000000")) for address in addresses)

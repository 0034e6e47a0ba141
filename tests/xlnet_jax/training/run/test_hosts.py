"""Several processes make one run: they compute what one would, stop together, and end when another is lost; strangers
who reach the port change nothing."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.xlnet_jax.training.tiny_run import arguments, records_of
from xlnet_jax import train
from xlnet_jax.training.run import coordination
from xlnet_jax.training.run.hosts import ALONE, Team

HERE = socket.gethostname()
ROOT = Path(__file__).parents[4]


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_each_process_hears_what_all_say_in_their_order(monkeypatch):
    store, stored = {}, threading.Condition()

    def put(key, value):
        with stored:
            assert key not in store
            store[key] = value
            stored.notify_all()

    def get(key):
        with stored:
            assert stored.wait_for(lambda: key in store, 30)
            return store[key]

    monkeypatch.setattr(coordination, "put", put)
    monkeypatch.setattr(coordination, "get", get)

    def talk(process_id):
        team = Team(process_id, 3)
        return [team.gather("what", n * process_id) for n in (10, 20)]

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(talk, range(3))) == [[[0, 10, 20], [0, 20, 40]]] * 3
    assert ALONE.gather("what", 10) == [10]


STORE = """
import sys
from xlnet_jax.settings.config import DistributedConfig
from xlnet_jax.training.run import coordination
address, process = sys.argv[1], int(sys.argv[2])
coordination.connect(DistributedConfig(address, 2, process, 60, 30), address)
coordination.put(f"own/{process}", "x" * 5_000_000 + str(process))
assert coordination.get(f"own/{1 - process}").endswith(f"x{1 - process}")
try:
    coordination.get("nobody stores this", 0.5)
except TimeoutError as late:
    print(late)
try:
    coordination.put(f"own/{process}", "again")
except RuntimeError:
    print("taken")
coordination.put(f"end/{process}", "")
coordination.get(f"end/{1 - process}", 30)
"""


def test_values_go_through_the_store_of_jax_with_time_limits(port):
    """They may be larger than a message of gRPC usually is."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STORE, f"127.0.0.1:{port}", str(process)],
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for process in range(2)
    ]
    for process in processes:
        out, _ = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, "no process has stored nobody stores this\ntaken\n")


class Two:
    """Run the command in two processes of four simulated devices each; they are killed after a time limit."""

    SECONDS = 400

    def __init__(self, port, *arguments, command="xlnet_jax.train"):
        flags = {
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4",
            "JAX_PLATFORMS": "cpu",
        }
        place = {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": "2"}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", command, *arguments],
                env=os.environ | flags | place | {"JAX_PROCESS_ID": str(process)},
                cwd=ROOT,
                stdout=subprocess.PIPE if process == 0 else subprocess.DEVNULL,  # Gloo speaks of every connection
                stderr=subprocess.PIPE,
                text=True,
            )
            for process in range(2)
        ]
        self.limit = threading.Timer(self.SECONDS, lambda: [process.kill() for process in self.processes])
        self.limit.start()

    def await_line(self, words):
        """Read what process 0 prints, up to a line with these words."""
        assert any(words in line for line in self.processes[0].stdout)

    def signal(self, process, signum, after=None):
        """Send a signal once process 0 has printed a line with these words."""
        if after is not None:
            self.await_line(after)
        self.processes[process].send_signal(signum)

    def child(self, process):
        """Return the number of the process that trains."""
        pid = self.processes[process].pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def end(self):
        """Return (exit codes, stderr of each)."""
        with ThreadPoolExecutor(2) as threads:
            errors = [err for _, err in threads.map(lambda p: p.communicate(), self.processes)]
        self.limit.cancel()
        return [p.returncode for p in self.processes], errors


@pytest.fixture(scope="module")
def command(text, tmp_path_factory):
    """Return the arguments of the command, with a workdir of this name."""
    folder = tmp_path_factory.mktemp("hosts")
    often = (
        "--steps 40 --log.every-steps 1 --eval.every-steps 20 --eval.max-windows 16 --checkpoint.every-steps 8 "
        "--distributed.heartbeat-timeout-seconds 20"
    )
    return lambda workdir: arguments(text, folder / workdir, *often.split())


def workdir_of(arguments):
    return arguments[arguments.index("--workdir") + 1]


AGAIN = "the same command on all hosts goes on from the last checkpoint"


@pytest.fixture(scope="module")
def ends(command):
    """Return the ends of a run of two processes: a host is lost, then both start again and one is asked to stop, while
    a stranger holds connections to the port open, and sends garbage."""

    def begin():
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        return port, Two(port, *command("two"))

    _, running = begin()
    running.await_line("step 12/40")
    orphan = running.child(1)
    running.signal(1, signal.SIGKILL)
    found = {"killed": running.end(), "orphan": orphan}
    port, running = begin()
    with contextlib.ExitStack() as held:
        running.await_line("devices")
        for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", b'{"process_id": 1}\n', os.urandom(4096)) * 25:
            line = held.enter_context(socket.create_connection(("localhost", port), timeout=10))
            with contextlib.suppress(OSError):
                line.sendall(garbage)
        found["port"] = port
        found["children"] = listening(*map(running.child, range(2)))
        found["parents"] = listening(*(process.pid for process in running.processes))
        running.signal(1, signal.SIGTERM, "step 22/40")
        os.kill(running.child(1), signal.SIGTERM)  # as a launcher that signals each process of a job
        found["stopped"] = running.end()
    return found


def target_of(link):
    """Return what a link leads to, or None if it is gone: a running process closes files at any moment."""
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return None


def listening(*pids):
    """Return (address, port) of what these processes listen on, as /proc/net/tcp has them."""
    sockets = {target for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir() if (target := target_of(link))}
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    local = [row[1].split(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
    return sorted((address, int(port, 16)) for address, port in local)


@pytest.mark.slow
def test_a_host_that_is_killed_is_named_by_the_others_which_end(ends):
    codes, errors = ends["killed"]
    assert codes == [143, -signal.SIGKILL]
    assert errors[0].splitlines()[-1] == f"error: process 1 on {HERE} was lost; {AGAIN}"
    assert "Traceback" not in errors[0]
    with pytest.raises(ProcessLookupError):  # its child died with it
        os.kill(ends["orphan"], 0)


@pytest.mark.slow
def test_a_stop_that_one_host_is_asked_for_is_made_by_all(ends):
    """The stranger changes nothing, and a signal that comes on two ways is one."""
    codes, errors = ends["stopped"]
    assert codes == [143, 143]
    assert errors[1].count("finishing this step and saving") == 1
    assert "stopped at once" not in errors[1]
    assert "lost" not in "".join(errors)


@pytest.mark.slow
def test_the_coordinator_listens_on_the_address_that_was_given(ends):
    (address,) = [address for address, port in ends["children"] if port == ends["port"]]
    assert address.endswith("0100007F")  # 127.0.0.1, or the same as IPv6 has it
    assert ends["parents"] == []


@pytest.mark.slow
def test_two_processes_killed_and_stopped_and_then_one_lose_what_one_does(ends, command, capsys):
    """Two processes do at least the first 22 steps; one resumes, inside a block, from their checkpoint."""
    assert train.main(command("two")) == 0
    resumed = re.search(r"resumed     at step (\d+) of 40", capsys.readouterr().out)
    assert 22 <= int(resumed[1]) < 40
    assert train.main(command("one")) == 0
    two, one = (
        {(r["split"], r["step"]): r["loss"] for r in records_of(workdir_of(command(name)))} for name in ("two", "one")
    )
    assert two.keys() == one.keys()
    for step, loss in one.items():
        np.testing.assert_allclose(two[step], loss, atol=1e-5, err_msg=str(step))


@pytest.mark.slow
def test_a_mistake_that_process_0_finds_ends_the_others_with_its_line(command, port, tmp_path):
    absent = tmp_path / "absent.txt"
    codes, errors = Two(port, *command("none"), "--corpus", str(absent)).end()
    assert codes == [2, 2]
    (found,) = re.findall("error: (.*absent.txt.*)", errors[0])
    assert errors[1].splitlines()[-1] == f"error: process 0 on {HERE} ended: {found}"

"""Several processes make one run: they meet or name who is missing, compute what one would, stop together, and end when
another is lost."""

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
from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import DistributedConfig
from xlnet_jax.training.run import hosts

HERE = socket.gethostname()


@pytest.fixture
def port():
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def no_devices(monkeypatch):
    """Use threads in place of processes: they meet, and do not start jax."""
    monkeypatch.setattr(hosts, "_start_jax", lambda *_: None)


def meet(port, *ids, count=3, seconds=60, settings=None, names=(), then=lambda host: None):
    """Return the result of `then` in each process, or the line with which the process ends."""

    def enter(process_id):
        place = DistributedConfig(f"localhost:{port}", count, process_id, seconds)
        try:
            with hosts.joined(place, (settings or {}).get(process_id, {"seed": 0}), names) as joined:
                return then(joined)
        except InputError as refusal:
            return str(refusal)

    with ThreadPoolExecutor(len(ids)) as threads:
        return list(threads.map(enter, ids))


def test_each_process_hears_what_all_say_in_their_order(no_devices, port):
    assert meet(port, 0, 1, 2, then=lambda host: host.gather("what", 10 * host.process_id)) == [[0, 10, 20]] * 3


def test_hosts_that_do_not_arrive_are_named_on_those_that_do(no_devices, port):
    lines = meet(port, 0, 2, count=4, seconds=4, names=["host-a", "host-b", "host-c", "host-d"])
    assert set(lines) == {
        f"process 1 on host-b, process 3 on host-d did not arrive at localhost:{port} within 4 s "
        "(distributed.initialization-timeout); 2 of 4 processes are there: start the same command on every host"
    }


def test_a_process_0_that_does_not_arrive_is_named(no_devices, port):
    for line in meet(port, 1, 2, seconds=1):
        assert f"process 0 did not arrive at localhost:{port} within 1 s" in line


@pytest.mark.parametrize("process_id", [0, 1])
def test_a_run_that_waited_in_vain_may_be_started_again(no_devices, port, process_id):
    place = DistributedConfig(f"localhost:{port}", 2, process_id, 1)
    with pytest.raises(hosts.HostsMissing) as missing, hosts.joined(place, {}):
        pass
    assert missing.value.exit_code == 143


def test_a_program_of_another_kind_at_the_address_is_not_taken_for_process_0(no_devices, monkeypatch):
    monkeypatch.setattr(hosts, "_SECONDS_TO_LEAVE", 0.2)
    with socket.create_server(("", 0)) as other:
        (line,) = meet(other.getsockname()[1], 1, seconds=1)
        assert "process 0 did not arrive" in line


def test_whoever_knocks_without_being_a_process_disturbs_nobody(no_devices, port):
    def knock():
        for _ in range(100):
            try:
                with socket.create_connection(("localhost", port), timeout=1) as line:
                    line.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    return
            except OSError:
                threading.Event().wait(0.02)

    knocking = threading.Thread(target=knock)
    knocking.start()
    assert meet(port, 0, count=2, seconds=1)[0].startswith("process 1 did not arrive")
    knocking.join()


def test_processes_with_other_settings_are_refused_and_the_difference_named(no_devices, port):
    lines = meet(port, 0, 1, 2, settings={1: {"seed": 7}})
    assert set(lines) == {
        f"process 1 on {HERE} was started with other settings than process 0 (seed: 0 at process 0, 7 there): give the "
        "same command everywhere"
    }


def test_two_processes_of_one_number_are_refused(no_devices, port):
    refused = [line for line in meet(port, 0, 1, 1, seconds=4) if "is one too many" in line]
    assert len(refused) == 1
    assert refused[0].startswith(f"process 1 on {HERE} is one too many at localhost:{port}")
    assert "give each its own `distributed.process_id`" in refused[0]


def test_a_port_that_is_taken_is_refused(no_devices):
    with socket.create_server(("", 0)) as other:
        (line,) = meet(other.getsockname()[1], 0)
    assert "process 0 cannot listen there" in line
    assert "give a port that is free on its host" in line


def test_a_workdir_that_the_hosts_do_not_share_is_refused(tmp_path, monkeypatch):
    class Second(hosts._Team):
        process_id = 1

        def __init__(self):
            """Connect to nothing."""

        def gather(self, name, value):
            return ["the mark of process 0", value]

    monkeypatch.setattr(hosts, "SECONDS_TO_APPEAR", 0)
    with pytest.raises(
        InputError, match=rf"workdir .* on {HERE} is not the folder that process 0 has by this name: all"
    ):
        Second().demand_shared(tmp_path)


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
                cwd=Path(__file__).parents[4],
                stdout=subprocess.PIPE if process == 0 else subprocess.DEVNULL,  # Gloo speaks of every connection
                stderr=subprocess.PIPE,
                text=True,
            )
            for process in range(2)
        ]
        self.limit = threading.Timer(self.SECONDS, lambda: [process.kill() for process in self.processes])
        self.limit.start()

    def signal(self, process, signum, after=None):
        """Send a signal once process 0 has printed a line with these words."""
        assert after is None or any(after in line for line in self.processes[0].stdout)
        self.processes[process].send_signal(signum)

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
    often = "--steps 40 --log.every-steps 1 --eval.every-steps 20 --eval.max-windows 16 --checkpoint.every-steps 8"
    return lambda workdir: arguments(text, folder / workdir, *often.split())


def workdir_of(arguments):
    return arguments[arguments.index("--workdir") + 1]


@pytest.fixture(scope="module")
def ends(command):
    """Return the ends of a run of two processes: one is killed, then both start again and one is asked to stop."""

    def end_of(signum, after):
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
        running = Two(port, *command("two"))
        running.signal(1, signum, after)
        return running.end()

    return {"killed": end_of(signal.SIGKILL, "step 12/40"), "stopped": end_of(signal.SIGTERM, "step 22/40")}


@pytest.mark.slow
def test_a_host_that_is_killed_is_named_by_the_others_which_end(ends):
    codes, errors = ends["killed"]
    assert codes == [143, -signal.SIGKILL]
    again = "the same command on all hosts goes on from the last checkpoint"
    assert errors[0].splitlines()[-1] == f"error: process 1 on {HERE} was lost; {again}"
    assert "Traceback" not in errors[0]


@pytest.mark.slow
def test_a_stop_that_one_host_is_asked_for_is_made_by_all(ends):
    codes, errors = ends["stopped"]
    assert codes == [143, 143]
    assert "finishing this step and saving" in errors[1]
    assert "lost" not in "".join(errors)


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
    assert f"error: process 0 on {HERE} ended: {found}" in errors[1]


@pytest.mark.slow
def test_losing_process_0_is_said_although_jax_would_abort(port):
    script = f"""
import sys, time
from xlnet_jax.api import command
from xlnet_jax.settings.config import DistributedConfig
from xlnet_jax.training.run.hosts import joined

def main(argv):
    with joined(DistributedConfig("localhost:{port}", 2, int(argv[0])), {{}}):
        print("here", flush=True)
        time.sleep(120)

command.run(main)"""
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", script, str(i)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for i in range(2)
    )
    assert second.stdout.readline() == "here\n"
    first.kill()
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 143
    assert f"error: process 0 on {HERE} was lost; the same command on all hosts goes on" in errors
    first.communicate()

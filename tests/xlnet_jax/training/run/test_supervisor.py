"""The parent of a process on several hosts tells why its child ended, in one line, and with the code for launchers."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = socket.gethostname()
ROOT = Path(__file__).parents[4]
AGAIN = "the same command on all hosts goes on from the last checkpoint"

# A run without jax: it does what its words say, by process.
CHILD = """
import os, signal, sys, time
from xlnet_jax.training.run.presence import Presence
from xlnet_jax.training.run.supervisor import given_roll
roll, bind = given_roll()
presence = Presence(roll)
if "unconnected" not in sys.argv:
    presence.tell_connected()
print("here", os.getpid(), flush=True)
exec(sys.argv[1 + roll.process_id])
"""
PARENT = """
import sys
from xlnet_jax import __main__ as command
from xlnet_jax.settings.config import DistributedConfig
from xlnet_jax.training.run import presence, roll_call, supervisor
from xlnet_jax.training.run.supervisor import supervise

supervisor._SECONDS_GONE, presence._BEATS = 2, 8
presence.seconds_between_beats = roll_call.seconds_between_beats = lambda folder: 0.5
port, process, folder, *words = sys.argv[1:]
place = DistributedConfig(f"localhost:{port}", 2, int(process), 30)
command.run(lambda argv: supervise(place, folder, {}, [], ["child", *words]))
"""
WAIT = "time.sleep(60)"


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def started(tmp_path, port):
    """Start two processes of a run; each executes its own words."""
    (tmp_path / "child.py").write_text(CHILD)
    parent = tmp_path / "parent.py"
    parent.write_text(PARENT)
    running = []

    def start(*words, cwd=tmp_path):
        paths = os.pathsep.join([str(tmp_path), str(ROOT)])
        for process in range(2):
            running.append(
                subprocess.Popen(
                    [sys.executable, str(parent), str(port), str(process), str(tmp_path / "run"), *words],
                    env=os.environ | {"PYTHONPATH": paths},
                    cwd=cwd,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        return running

    yield start
    for process in running:
        process.kill()
        process.communicate()


def children(running):
    """Return the numbers of the children, when both have begun."""
    return [int(process.stdout.readline().split()[1]) for process in running]


def ends(running):
    """Return (exit code, stderr) of each process."""
    return [(process.returncode, err) for process in running for _, err in [process.communicate(timeout=60)]]


def test_a_run_that_is_done_says_nothing(started):
    done = "presence.tell_over() if roll.process_id == 0 else time.sleep(1)"
    assert ends(started(done, done)) == [(0, ""), (0, "")]


def test_a_stop_that_all_made_together_says_nothing(started):
    stop = "presence.tell_over() if roll.process_id == 0 else time.sleep(1); sys.exit(143)"
    assert ends(started(stop, stop)) == [(143, ""), (143, "")]


def test_a_child_that_tells_its_mistake_ends_the_others_with_it(started):
    mistake = "presence.tell_end(f'{roll.name(1)} ended: no file absent.txt', 2); sys.exit(2)"
    assert ends(started(WAIT, mistake)) == [(2, f"error: process 1 on {HERE} ended: no file absent.txt\n"), (2, "")]


def test_a_child_that_ends_without_a_word_is_told_by_its_code(started):
    (code, err), second = ends(started(WAIT, "sys.exit(1)"))
    assert (code, err) == (1, f"error: process 1 on {HERE} ended with exit code 1\n")
    assert second == (1, "")


def test_a_child_that_stops_at_once_is_lost_for_the_others(started):
    (code, err), second = ends(started(WAIT, "os._exit(130)"))
    assert (code, err) == (143, f"error: process 1 on {HERE} was lost; {AGAIN}\n")
    assert second == (130, "")


def test_a_child_that_is_killed_is_named_everywhere(started):
    running = started(WAIT, WAIT)
    os.kill(children(running)[1], signal.SIGKILL)
    assert ends(running) == [
        (143, f"error: process 1 on {HERE} was lost; {AGAIN}\n"),
        (143, f"error: process 1 on {HERE} was ended by SIGKILL; {AGAIN}\n"),
    ]


def test_a_host_that_is_gone_is_named_when_jax_aborts_the_others(started):
    """jax itself names nobody."""
    running = started("signal.pause()", WAIT)
    first, second = children(running)
    running[1].kill()
    until = time.monotonic() + 20
    while Path(f"/proc/{second}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{second}").exists()  # it died with its parent
    os.kill(first, signal.SIGABRT)
    assert ends(running)[0] == (143, f"error: process 1 on {HERE} was lost; {AGAIN}\n")


def test_a_process_that_hangs_is_named_when_jax_aborts_the_others(started):
    running = started("signal.pause()", WAIT)
    first, second = children(running)
    os.kill(second, signal.SIGSTOP)
    os.kill(first, signal.SIGABRT)
    line = f"error: process 0 on {HERE} was aborted: it broke, or process 1 on {HERE} hangs; {AGAIN}\n"
    assert ends(running) == [(143, line)] * 2


def test_an_abort_while_all_hosts_live_names_its_causes(started, port):
    """A stranger who registers at jax's coordinator under the number of a process makes it abort all."""
    running = started("signal.pause()", "signal.pause()")
    for child in children(running):
        os.kill(child, signal.SIGABRT)
    causes = f"while no other host was lost: memory ran out, or a stranger has reached localhost:{port}"
    first = [f"error: process {p} on {HERE} was ended by SIGABRT, {causes}; {AGAIN}\n" for p in range(2)]
    second = [f"error: process {p} on {HERE} was lost; {AGAIN}\n" for p in (1, 0)]
    codes, errors = zip(*ends(running), strict=True)
    assert codes == (143, 143)
    assert all(err in lines for err, lines in zip(errors, zip(first, second, strict=True), strict=True))
    assert set(errors) & set(first)


def test_a_run_whose_files_another_start_has_deleted_ends(started, tmp_path):
    running = started(WAIT, WAIT)
    children(running)
    (state,) = (tmp_path / "run" / ".hosts").glob("*/state.json")
    state.parent.rename(tmp_path / "deleted")  # at once: a beat between two deletions would bring a file back
    line = f"error: {state.parent} is gone, by which this run knows its hosts; {AGAIN}\n"
    assert ends(running) == [(143, line)] * 2


def test_hosts_that_jax_cannot_connect_are_told_the_port(started, port):
    (code, err), _ = ends(started("os.abort()", "os.abort()", "unconnected"))
    assert code == 143
    assert err == (
        f"error: jax could not connect the processes at localhost:{port} within 30 s "
        f"(distributed.initialization-timeout): see that every host reaches this port of {HERE}; {AGAIN}\n"
    )


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 143)])
def test_a_signal_before_the_child_can_handle_it_ends_with_its_code(started, signum, code):
    running = started(WAIT, "signal.signal(signal.SIGINT, signal.SIG_DFL); print('ready', flush=True); " + WAIT)
    children(running)
    running[1].stdout.readline()
    running[1].send_signal(signum)
    (first, err), second = ends(running)
    assert (first, err) == (143, f"error: process 1 on {HERE} was lost; {AGAIN}\n")
    assert second == (code, "")


def test_signals_are_passed_on(started):
    heard = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); print('ready', flush=True); " + WAIT
    running = started(heard, heard)
    children(running)
    for process in running:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
    assert [code for code, _ in ends(running)] == [143, 143]


def test_a_child_imports_nothing_from_the_current_folder(started, tmp_path):
    (tmp_path / "run").mkdir()
    for name in ("child", "json", "xlnet_jax"):
        (tmp_path / "run" / f"{name}.py").write_text("open('ran', 'a').write(__name__)")
    assert ends(started("sys.exit(2)", "sys.exit(2)", cwd=tmp_path / "run")) == [(2, "")] * 2
    assert not (tmp_path / "run" / "ran").exists()


def test_a_code_of_a_stranger_is_never_that_of_a_run_that_is_done(started):
    (code, err), _ = ends(started(WAIT, "presence.tell_end('nothing', 0); " + "time.sleep(8); os._exit(1)"))
    assert code == 143
    assert err == f"error: nothing; {AGAIN}\n"

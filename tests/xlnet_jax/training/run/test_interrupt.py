"""Requests to stop a run, which all its processes follow at the same step."""

import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from xlnet_jax.training import stop as module
from xlnet_jax.training.stop import Interrupt, LoopRequest, exit_code_of, stop_after_step


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGHUP, 143)]
)
def test_a_signal_is_noted_and_decides_the_exit_code(signum, code, capfd):
    before = signal.getsignal(signum)
    with stop_after_step() as interrupt:
        assert interrupt.poll() is LoopRequest.GO_ON
        signal.raise_signal(signum)
        assert interrupt.poll() is LoopRequest.STOP
    assert (str(interrupt), exit_code_of(str(interrupt))) == (signal.Signals(signum).name, code)
    assert "finishing this step and saving" in capfd.readouterr().err
    assert signal.getsignal(signum) is before


SIGNALED = """
import signal, sys
from xlnet_jax.training.stop import stop_after_step
with stop_after_step(is_command=True) as interrupt:
    for name in sys.argv[1:]:
        signal.raise_signal(signal.Signals[name])
print(interrupt.reason)"""


@pytest.mark.parametrize(
    ("sent", "code", "reason"),
    [
        ("SIGTERM SIGTERM", 143, None),
        ("SIGHUP SIGINT SIGINT", 130, None),
        # A session that ends sends several signals, in any order.
        ("SIGHUP SIGHUP SIGTERM SIGHUP", 0, "SIGTERM"),
        ("SIGTERM SIGHUP", 0, "SIGTERM"),
    ],
)
def test_a_second_signal_ends_the_process_of_a_command_unless_one_is_of_a_lost_session(sent, code, reason):
    words = [sys.executable, "-c", SIGNALED, *sent.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, f"{reason}\n" if reason else "")


def test_a_run_under_nohup_goes_on_when_the_session_is_lost():
    words = ["nohup", sys.executable, "-c", SIGNALED, "SIGHUP"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "None\n")


PRINTING = """
import sys, time
from xlnet_jax.__main__ import run
from xlnet_jax.training.stop import LoopRequest, exit_code_of, stop_after_step
def main(_):
    with stop_after_step(is_command=True) as interrupt:
        for number in range(3000):
            print("step", number, flush=True)
            if interrupt.poll() is LoopRequest.STOP:
                print("saved", flush=True)
                open(sys.argv[1], "w").write(str(interrupt))
                return exit_code_of(str(interrupt))
            time.sleep(0.01)
run(main)"""


def test_a_run_whose_output_nobody_reads_any_more_saves(tmp_path):
    """As after `train | head`, and where an ssh session without a terminal is lost."""
    words = [sys.executable, "-c", PRINTING, str(tmp_path / "saved")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout.readline() == "step 0\n"
        started.stdout.close()
        assert started.stderr.read() == "nothing reads the output any more: finishing this step and saving\n"
        assert started.wait(60) == 141
    assert (tmp_path / "saved").read_text() == "the end of the program that reads its output"


@pytest.mark.parametrize(("session", "code"), [("lost", 143), ("nohup", 0)])
def test_a_run_whose_terminal_is_gone_saves_or_goes_on_under_nohup(tmp_path, session, code):
    master, terminal = pty.openpty()
    steps, handler = {"lost": (3000, "SIG_DFL"), "nohup": (100, "SIG_IGN")}[session]
    begin = f"""
import fcntl, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.{handler})"""
    words = [sys.executable, "-c", begin + PRINTING.replace("3000", str(steps)), str(tmp_path / "saved")]
    started = subprocess.Popen(words, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
    os.close(terminal)
    with open(master) as shown:
        assert "step 0" in shown.readline()
    assert started.wait(60) == code
    assert (tmp_path / "saved").exists() == (session == "lost")


def test_a_second_signal_elsewhere_goes_to_the_handler_that_was_there_before():
    seen, before = [], signal.signal(signal.SIGTERM, lambda signum, _: seen.append(signum))
    try:
        with stop_after_step() as interrupt:
            signal.raise_signal(signal.SIGTERM)
            interrupt.ask(LoopRequest.SAVE)
            assert (interrupt.take(), seen) == (LoopRequest.STOP, [])
            signal.raise_signal(signal.SIGTERM)
            assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_notice_of_the_platform_stops_a_run_to_be_started_again(monkeypatch):
    said = {"instance/preempted": "FALSE", "instance/maintenance-event": "NONE"}
    monkeypatch.setattr(module, "SECONDS_BETWEEN_QUESTIONS", 0.01)
    monkeypatch.setattr(module.machine, "metadata", said.__getitem__)
    monkeypatch.setenv("GCE_METADATA_HOST", "here")
    with stop_after_step() as interrupt:
        time.sleep(0.1)
        assert interrupt.poll() is LoopRequest.GO_ON
        said["instance/maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
        deadline = time.monotonic() + 30
        while interrupt.poll() is not LoopRequest.STOP:
            assert time.monotonic() < deadline
    assert str(interrupt) == "a notice of the platform (instance/maintenance-event)"
    assert exit_code_of(str(interrupt)) == 143


def test_away_from_google_cloud_nothing_is_asked(monkeypatch, tmp_path):
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    monkeypatch.setattr(module, "_PRODUCT", tmp_path / "product_name")
    assert not module._on_google_cloud()
    (tmp_path / "product_name").write_text("Google Compute Engine\n")
    assert module._on_google_cloud()


def test_processes_stop_and_save_at_the_same_poll(monkeypatch):
    """A request of the other process is met one poll later, when the devices have computed the most severe request."""
    others = iter([LoopRequest.GO_ON, LoopRequest.SAVE, LoopRequest.GO_ON, LoopRequest.STOP, LoopRequest.GO_ON])
    monkeypatch.setattr(module.jax, "process_count", lambda: 2)
    monkeypatch.setattr(module, "_most_severe", lambda own: max(own, next(others)))
    interrupt, accepted = Interrupt(), []
    for save in (1, 1, 0, 0, 0):
        interrupt.ask(LoopRequest(save))
        accepted.append(interrupt.take())
    assert accepted == [LoopRequest.GO_ON, LoopRequest.SAVE, LoopRequest.SAVE, LoopRequest.GO_ON, LoopRequest.STOP]
    assert str(interrupt) == "another process"

"""Requests to stop a run, which all its processes follow at the same step."""

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from xlnet_jax.training import stop as module
from xlnet_jax.training.stop import Interrupt, Wish, stop_after_step


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, module.RESTART)]
)
def test_a_signal_is_noted_and_decides_the_exit_code(signum, code, capfd):
    before = signal.getsignal(signum)
    with stop_after_step() as interrupt:
        assert interrupt.poll() is Wish.GO_ON
        signal.raise_signal(signum)
        assert interrupt.poll() is Wish.STOP
    assert (str(interrupt), interrupt.exit_code) == (signal.Signals(signum).name, code)
    assert "finishing this step and saving" in capfd.readouterr().err
    assert signal.getsignal(signum) is before


def test_a_second_signal_ends_the_process_of_a_command():
    script = """
import signal
from xlnet_jax.training.stop import stop_after_step
with stop_after_step(is_command=True):
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
print("alive")"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 143
    assert "alive" not in done.stdout


def test_a_second_signal_elsewhere_goes_to_the_handler_that_was_there_before():
    with stop_after_step() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.poll() is Wish.STOP
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    seen, before = [], signal.signal(signal.SIGTERM, lambda signum, _: seen.append(signum))
    try:
        with stop_after_step() as interrupt:
            signal.raise_signal(signal.SIGTERM)
            assert (interrupt.poll(), seen) == (Wish.STOP, [])
            signal.raise_signal(signal.SIGTERM)
            assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_stop_is_stronger_than_a_save():
    interrupt = Interrupt()
    assert interrupt.poll(save=True) is Wish.SAVE
    interrupt.reason = "SIGTERM"
    assert interrupt.poll(save=True) is Wish.STOP


@pytest.mark.parametrize(
    ("name", "words"), [("instance/preempted", "TRUE"), ("instance/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")]
)
def test_the_notice_of_the_platform_stops_a_run_to_be_started_again(monkeypatch, name, words):
    said = {"instance/preempted": "FALSE", "instance/maintenance-event": "NONE"}
    monkeypatch.setattr(module, "SECONDS_BETWEEN_QUESTIONS", 0.01)
    monkeypatch.setattr(module.machine, "metadata", said.__getitem__)
    monkeypatch.setenv("GCE_METADATA_HOST", "here")
    with stop_after_step() as interrupt:
        time.sleep(0.1)
        assert interrupt.poll() is Wish.GO_ON
        said[name] = words
        deadline = time.monotonic() + 30
        while interrupt.poll() is not Wish.STOP:
            assert time.monotonic() < deadline
    assert str(interrupt) == f"a notice of the platform ({name})"
    assert interrupt.exit_code == 143


class Garbage(http.server.BaseHTTPRequestHandler):
    """Server of something that is no HTTP."""

    def do_GET(self):
        self.wfile.write(b"\0\xff\r\n\r\n")

    def log_message(self, *_):
        """Log nothing."""


def test_an_answer_that_is_no_http_is_none(monkeypatch):
    with http.server.HTTPServer(("127.0.0.1", 0), Garbage) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
        assert module.machine.metadata("instance/preempted") == ""


def test_away_from_google_cloud_nothing_is_asked(monkeypatch, tmp_path):
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    monkeypatch.setattr(module, "_PRODUCT", tmp_path / "product_name")
    assert not module._on_google_cloud()
    (tmp_path / "product_name").write_text("Google Compute Engine\n")
    assert module._on_google_cloud()


POLLS = """
import json, sys, jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
from xlnet_jax.training.stop import Interrupt
interrupt, granted = Interrupt(), []
for t in range(9):
    if (t, jax.process_index()) == (5, 1):
        interrupt.reason = "SIGTERM"
    due = jax.process_index() == 0 and t >= 2 and 1 not in granted
    granted.append(int(interrupt.poll(save=due)))
print(json.dumps([granted, str(interrupt), interrupt.exit_code]))
"""


@pytest.mark.slow
def test_processes_stop_and_save_at_the_same_poll():
    """One wants to save from the third poll on, the other to stop from the sixth on: both hear it one poll later."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", POLLS, address, str(number)],
            env=environment, cwd=Path(__file__).parents[4], stdout=subprocess.PIPE, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    first, second = (json.loads(p.communicate(timeout=120)[0].splitlines()[-1]) for p in processes)
    assert first == [[0, 0, 0, 1, 0, 0, 2, 2, 2], "another process", 143]
    assert second == [first[0], "SIGTERM", 143]

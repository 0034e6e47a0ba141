"""Requests to stop a run, which all its processes follow at the same step."""

import signal
import subprocess
import sys
import time

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
    assert (done.returncode, done.stdout) == (143, "")


def test_a_second_signal_elsewhere_goes_to_the_handler_that_was_there_before():
    seen, before = [], signal.signal(signal.SIGTERM, lambda signum, _: seen.append(signum))
    try:
        with stop_after_step() as interrupt:
            signal.raise_signal(signal.SIGTERM)
            assert (interrupt.poll(save=True), seen) == (Wish.STOP, [])
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
        assert interrupt.poll() is Wish.GO_ON
        said["instance/maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
        deadline = time.monotonic() + 30
        while interrupt.poll() is not Wish.STOP:
            assert time.monotonic() < deadline
    assert str(interrupt) == "a notice of the platform (instance/maintenance-event)"
    assert interrupt.exit_code == 143


def test_away_from_google_cloud_nothing_is_asked(monkeypatch, tmp_path):
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    monkeypatch.setattr(module, "_PRODUCT", tmp_path / "product_name")
    assert not module._on_google_cloud()
    (tmp_path / "product_name").write_text("Google Compute Engine\n")
    assert module._on_google_cloud()


def test_processes_stop_and_save_at_the_same_poll(monkeypatch):
    """A wish of the other process is granted one poll later, when the devices have computed the strongest wish."""
    others = iter([Wish.GO_ON, Wish.SAVE, Wish.GO_ON, Wish.STOP, Wish.GO_ON])
    monkeypatch.setattr(module.jax, "process_count", lambda: 2)
    monkeypatch.setattr(module, "_strongest", lambda own: max(own, next(others)))
    interrupt = Interrupt()
    granted = [interrupt.poll(save=save) for save in (True, True, False, False, False)]
    assert granted == [Wish.GO_ON, Wish.SAVE, Wish.SAVE, Wish.GO_ON, Wish.STOP]
    assert str(interrupt) == "another process"

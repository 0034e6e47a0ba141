"""Runs that Python code starts leave its process alone: its threads, its signals and its log."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import xlnet_jax
from tests.xlnet_jax.training.tiny_run import arguments, assert_same, state_of
from xlnet_jax.objectives import presets

ROOT = Path(__file__).parents[3]


def config_of(text, workdir, *more):
    return presets.parse_config(arguments(text, workdir, *more), "train", "")


def test_a_run_in_another_thread_is_the_same_run(straight, text, tmp_path):
    codes, before = [], signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=lambda: codes.append(xlnet_jax.pretrain(config_of(text, tmp_path / "run"))))
    thread.start()
    thread.join()
    assert codes == [0]
    assert signal.getsignal(signal.SIGINT) is before
    assert_same(state_of(tmp_path / "run"), state_of(straight))


INTERRUPTED = """
import os, signal, sys
import xlnet_jax
from xlnet_jax.objectives import presets
from xlnet_jax.training.loop import Loop

log = Loop._log
def log_and_interrupt(self, step, numbers):
    log(self, step, numbers)
    if step == 3:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
Loop._log = log_and_interrupt
config = presets.parse_config(sys.argv[1:], "train", "")
try:
    xlnet_jax.pretrain(config)
except KeyboardInterrupt:
    Loop._log = log
    print("the caller goes on, and trains again:", xlnet_jax.pretrain(config))
"""


def test_a_second_interrupt_is_the_callers(text, tmp_path):
    argv = [sys.executable, "-c", INTERRUPTED, *arguments(text, tmp_path / "run")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr.count("finishing this step and saving")) == (0, 1), done.stderr
    assert "the caller goes on, and trains again: 0" in done.stdout
    assert (tmp_path / "run" / "checkpoints" / "12" / "params").exists()


def test_absls_log_keeps_the_messages_of_others_and_leaves_out_those_of_orbax():
    script = """
from absl import logging
import xlnet_jax.training.checkpoint
logging.error("an error of the caller")
source = "from absl import logging; logging.error('an error of Orbax')"
exec(compile(source, "/somewhere/orbax/checkpoint/x.py", "exec"))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "an error of the caller" in done.stderr
    assert "an error of Orbax" not in done.stderr

"""The job of a Slurm cluster: saves near its time limit and is queued again, and only then."""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.launch.conftest import ROOT, StandIns

JOB = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "64"}
# A step that saves and stops when it is told to, and one that comes to its end before it could save.
SAVES = """trap 'echo saved >"$HOME/saved"; exit 143' TERM; echo $$ >"$HOME/step"; while :; do /bin/sleep 0.02; done"""
ENDS = """trap 'exit 0' TERM; echo $$ >"$HOME/step"; while :; do /bin/sleep 0.02; done"""


@contextmanager
def job(stand_ins: StandIns, step: str) -> Iterator[subprocess.Popen[str]]:
    """The job while its step runs."""
    stand_ins.answer("srun", step)
    stand_ins.answer("scancel", 'kill -TERM "$(cat "$HOME/step")"')
    # Slurm runs a copy of the script, somewhere else.
    script = shutil.copy(ROOT / "launch/slurm.sbatch", stand_ins.folder / "slurm_script")
    words = [script, "srun", "python3", "-m", "xlnet_jax.train"]
    with subprocess.Popen(words, env=stand_ins.environment() | JOB, text=True, cwd=stand_ins.folder) as running:
        while not (stand_ins.folder / "step").exists() and running.poll() is None:
            time.sleep(0.01)
        yield running


def tools(stand_ins: StandIns) -> list[list[str]]:
    return [call for call in stand_ins.calls() if call[0] in ("scancel", "scontrol")]


def test_near_the_time_limit_the_step_saves_and_the_job_is_queued_again(stand_ins: StandIns) -> None:
    with job(stand_ins, SAVES) as running:
        running.send_signal(signal.SIGUSR1)
        assert running.wait(timeout=10) == 143
    assert (stand_ins.folder / "saved").exists()
    assert tools(stand_ins) == [["scancel", "--signal=TERM", "7"], ["scontrol", "requeue", "7"]]


def test_a_run_that_is_done_near_the_time_limit_is_not_queued_again(stand_ins: StandIns) -> None:
    with job(stand_ins, ENDS) as running:
        running.send_signal(signal.SIGUSR1)
        assert running.wait(timeout=10) == 0
    assert tools(stand_ins) == [["scancel", "--signal=TERM", "7"]]


def test_a_job_that_is_cancelled_saves_and_is_not_queued_again(stand_ins: StandIns) -> None:
    """scancel signals the step, and may signal the script."""
    with job(stand_ins, SAVES) as running:
        running.terminate()
        time.sleep(0.1)
        assert running.poll() is None  # it waits for the step to save
        subprocess.run(["kill", "-TERM", (stand_ins.folder / "step").read_text().strip()], check=True)
        assert running.wait(timeout=10) == 143
    assert tools(stand_ins) == []


@pytest.mark.parametrize("code", [0, 1, 2, 143])
def test_the_job_ends_with_the_code_of_the_step(stand_ins: StandIns, code: int) -> None:
    stand_ins.answer("srun", f"exit {code}")
    assert stand_ins.run("launch/slurm.sbatch srun", **JOB).returncode == code
    assert tools(stand_ins) == []


@pytest.mark.parametrize(("gpus", "devices"), [("4", "0,1,2,3"), ("", "all")])
def test_the_one_process_of_a_node_has_all_its_cores_and_gpus(stand_ins: StandIns, gpus: str, devices: str) -> None:
    stand_ins.answer("srun", 'echo "$SRUN_CPUS_PER_TASK ${JAX_LOCAL_DEVICE_IDS-all}"')
    said = stand_ins.run("launch/slurm.sbatch srun", **JOB, SLURM_GPUS_ON_NODE=gpus)
    assert said.stdout == f"64 {devices}\n"

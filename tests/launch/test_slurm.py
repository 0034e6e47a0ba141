"""A Slurm job saves near its time limit and is queued again, and only then."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.launch.conftest import ROOT, StandIns

JOB = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "64"}
# A step that saves and stops when it is told to.
STEP = """trap 'echo saved >"$HOME/saved"; exit 143' TERM
echo $$ >"$HOME/writing"; mv "$HOME/writing" "$HOME/step"; while :; do /bin/sleep 0.02; done"""


@contextmanager
def job(stand_ins: StandIns) -> Iterator[subprocess.Popen[str]]:
    """Start the job and wait until its step runs."""
    stand_ins.answer("srun", STEP)
    # Slurm runs a copy of the script, somewhere else.
    script = shutil.copy(ROOT / "launch/slurm.sbatch", stand_ins.folder / "slurm_script")
    words = [script, "srun", "python3", "-m", "xlnet_jax.train"]
    with subprocess.Popen(words, env=stand_ins.environment() | JOB, text=True, cwd=stand_ins.folder) as running:
        while not (stand_ins.folder / "step").exists() and running.poll() is None:
            time.sleep(0.01)
        yield running


def signal_step(stand_ins: StandIns) -> None:
    os.kill(int((stand_ins.folder / "step").read_text()), signal.SIGTERM)


REQUEUE = ["scontrol", "requeue", "7"]


def test_near_the_time_limit_the_step_saves_and_the_job_is_queued_again(stand_ins: StandIns) -> None:
    stand_ins.answer("scontrol", "echo JobState=RUNNING Reason=None")
    with job(stand_ins) as running:
        signal_step(stand_ins)
        assert running.wait(timeout=60) == 143
    assert (stand_ins.folder / "saved").exists()
    assert REQUEUE in stand_ins.calls()
    assert "#SBATCH --signal=TERM@300\n" in (ROOT / "launch/slurm.sbatch").read_text()  # to the steps alone


def test_a_job_that_is_cancelled_saves_and_is_not_queued_again(stand_ins: StandIns) -> None:
    """scancel signals the step, and may signal the script."""
    stand_ins.answer("scontrol", "echo JobState=CANCELLED Reason=None")
    with job(stand_ins) as running:
        running.terminate()
        time.sleep(0.1)
        assert running.poll() is None  # it waits for the step to save
        signal_step(stand_ins)
        assert running.wait(timeout=60) == 143
    assert (stand_ins.folder / "saved").exists()
    assert REQUEUE not in stand_ins.calls()


@pytest.mark.parametrize("code", [0, 1, 2, 130, 134, 137, 143])
def test_only_a_run_that_stopped_or_lost_a_process_is_queued_again(stand_ins: StandIns, code: int) -> None:
    stand_ins.answer("scontrol", "echo JobState=RUNNING Reason=None")
    stand_ins.answer("srun", f"exit {code}")
    for settings, again in (
        ({}, code == 143),
        ({"SLURM_JOB_NUM_NODES": "2"}, code in (134, 137, 143)),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_RESTART_COUNT": "100"}, code == 143),
    ):
        (stand_ins.folder / "calls").unlink(missing_ok=True)
        assert stand_ins.run("launch/slurm.sbatch srun", **JOB | settings).returncode == code
        assert (REQUEUE in stand_ins.calls()) == again


def test_the_one_process_of_a_node_has_all_its_cores(stand_ins: StandIns) -> None:
    stand_ins.answer("srun", 'echo "$SRUN_CPUS_PER_TASK"')
    assert stand_ins.run("launch/slurm.sbatch srun", **JOB).stdout == "64\n"


def test_several_processes_of_a_node_share_its_cores(stand_ins: StandIns) -> None:
    stand_ins.answer("srun", 'echo "$SRUN_CPUS_PER_TASK"')
    assert stand_ins.run("launch/slurm.sbatch srun", **JOB, SLURM_NTASKS_PER_NODE="8").stdout == "8\n"

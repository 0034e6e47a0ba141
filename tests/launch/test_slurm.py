"""A Slurm job is queued again when its run stops or loses a process, and only then; test_slurm_real.py tries it."""

import pytest

from tests.launch.conftest import ROOT, StandIns

JOB = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "64"}
REQUEUE = ["scontrol", "requeue", "7"]


def test_slurm_signals_the_steps_before_the_time_limit_and_a_cancelled_job_is_not_queued_again(
    stand_ins: StandIns,
) -> None:
    assert "#SBATCH --signal=TERM@300\n" in (ROOT / "launch/slurm.sbatch").read_text()
    stand_ins.answer("scontrol", "echo JobState=CANCELLED Reason=None")
    stand_ins.answer("srun", "exit 143")
    assert stand_ins.run("launch/slurm.sbatch srun", **JOB).returncode == 143
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


def test_processes_of_a_node_share_its_cores(stand_ins: StandIns) -> None:
    stand_ins.answer("srun", 'echo "$SRUN_CPUS_PER_TASK"')
    assert stand_ins.run("launch/slurm.sbatch srun", **JOB).stdout == "64\n"
    assert stand_ins.run("launch/slurm.sbatch srun", **JOB, SLURM_NTASKS_PER_NODE="8").stdout == "8\n"

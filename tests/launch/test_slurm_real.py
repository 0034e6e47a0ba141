"""The Slurm launcher under a real Slurm: two nodes on this machine, started for these tests and stopped after them."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.launch.conftest import ROOT
from tests.xlnet_jax.training.tiny_run import arguments

DAEMONS = {
    name: shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("munged", "slurmctld", "slurmd")
}
HOST = socket.gethostname()
NODES = (HOST, f"{HOST}-2")  # hosts of a run reach process 0 by the name of the first

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not all(DAEMONS.values()), reason="Slurm: apt-get install slurm-wlm"
)

# A job of `high` preempts one of `low`, which has time to save. A requeued job waits until its credential expires.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs=2 Gres=gpu:2
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=600
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""
GPUS = "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n"  # any two device files


class Cluster:
    """Slurm on two nodes, and a folder for the logs of its jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1",
        }

    def run(self, *words: str) -> str:
        """Run a command in the repository and return what it prints."""
        done = subprocess.run(words, env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_ready(self) -> bool:
        """Return whether both nodes wait for jobs."""
        words = ["sinfo", "--noheader", "--format=%T", "--partition=low"]
        return subprocess.run(words, env=self.environment, capture_output=True, text=True).stdout == "idle\n"

    def clear(self) -> None:
        """Cancel all jobs and wait for their ends: they would outlive Slurm."""
        self.run("scancel", "--state=PENDING")
        self.run("scancel", "--state=RUNNING")
        until(lambda: not self.run("squeue", "--noheader"), lambda: self.run("squeue"), 60)

    def logs(self) -> str:
        """Return the logs of the daemons."""
        return "\n".join(path.read_text() for path in self.folder.glob("*.log"))

    def submit(self, *words: str) -> str:
        """Run a command that submits a job and return the job's number."""
        return self.run(*words).split()[-1]

    def state(self, job: str) -> str:
        """Return the state of a job, as RUNNING; a moment later it may have another."""
        return self.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()

    def restarts(self, job: str) -> int:
        """Return how often a job was queued again."""
        return int(self.run("scontrol", "show", "job", job).partition("Restarts=")[2].split()[0])


def until(holds: Callable[[], bool], what: Callable[[], str], seconds: float = 600) -> None:
    """Wait until something holds; fail with `what` after the time limit."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what()
        time.sleep(0.2)


def free_ports() -> list[int]:
    """Return three ports that follow each other: Slurm wants those of the nodes as a range."""
    while True:
        with socket.create_server(("", 0)) as server:
            first = server.getsockname()[1]
        try:
            with ExitStack() as taken:
                for port in range(first, first + 3):
                    taken.enter_context(socket.create_server(("", port)))
                return list(range(first, first + 3))
        except OSError:
            continue


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    user = subprocess.check_output(["id", "-un"], text=True).strip()
    filled = CONFIGURATION.format(folder=folder, host=HOST, nodes=",".join(NODES), ports=free_ports(), user=user)
    (folder / "slurm.conf").write_text(filled)
    (folder / "gres.conf").write_text(GPUS)
    made = Cluster(folder)
    places = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    with ExitStack() as daemons:

        def start(name: str, *words: str) -> None:
            log = daemons.enter_context((folder / f"{name}.log").open("a"))
            daemon = subprocess.Popen([DAEMONS[name], *words], env=made.environment, stdout=log, stderr=log)
            daemons.callback(daemon.wait, timeout=60)
            daemons.callback(daemon.terminate)

        start("munged", "--foreground", "--force", *(f"--{key}={folder}/munge.{end}" for key, end in places.items()))
        until((folder / "munge.socket").exists, made.logs, 60)
        start("slurmctld", "-D", "-c")
        for node in NODES:
            start("slurmd", "-D", "-N", node)
        until(made.is_ready, made.logs, 60)
        daemons.callback(made.clear)
        yield made


@pytest.mark.slow
def test_a_preempted_run_saves_waits_for_its_turn_and_goes_on(cluster: Cluster):
    text = cluster.folder / "text.txt"
    text.write_text("".join(f"Chapter {n} tells of a house by the sea, and of a wife.\n\n" for n in range(200)))
    often = "--steps 200 --checkpoint.every-steps 100 --eval.every-steps 200"
    training = arguments(text, cluster.folder / "run", *often.split())
    training[training.index("--model.vocab-size") + 1] = "50"
    options = ["--nodes=2", "--gpus-per-node=2", "--time=60", f"--output={cluster.folder}/%x.log"]
    job = cluster.submit("launch/slurm.sh", *options, "--", *training)
    log = cluster.folder / "xlnet.log"

    def read() -> str:
        return log.read_text() if log.exists() else ""

    until(lambda: "unigram " in read() or cluster.state(job) == "FAILED", read)  # from here on it saves when told to
    urgent = cluster.submit("sbatch", "--partition=high", "--nodes=2", "--output=/dev/null", "--wrap=true")
    until(lambda: cluster.state(urgent) == "COMPLETED", read)
    assert "stopped by SIGTERM with step" in read()
    until(lambda: cluster.state(job) in ("COMPLETED", "FAILED"), read)
    assert cluster.state(job) == "COMPLETED", read()
    assert cluster.restarts(job) == 1
    first, again = read().split("stopped by SIGTERM with step ")
    assert "devices     2 x cpu" in first
    assert f"resumed     at step {again.split()[0]} of 200" in again
    assert "step 200/200" in again


# A step of which process 1 is killed and process 0 is aborted; started again it is done.
STEP = """#!/usr/bin/env bash
echo "node $SLURM_NODEID: $SLURM_CPUS_PER_TASK cores, GPUs $CUDA_VISIBLE_DEVICES"
[ -e {done} ] && exit 0
sleep 2 && touch {done} && kill -$([ $SLURM_NODEID = 1 ] && echo KILL || echo ABRT) $$
"""


def test_a_job_that_loses_a_process_goes_on(cluster: Cluster):
    script, log = cluster.folder / "step", cluster.folder / "step.log"
    script.write_text(STEP.format(done=cluster.folder / "done"))
    script.chmod(0o755)
    words = f"sbatch --nodes=2 --gpus-per-node=2 --output={log} launch/slurm.sbatch srun --wait=120 {script}"
    job = cluster.submit(*words.split())
    until(lambda: cluster.state(job) in ("COMPLETED", "FAILED"), lambda: cluster.state(job))
    assert cluster.restarts(job) == 1
    ran = sorted(line for line in log.read_text().splitlines() if line.startswith("node"))
    assert ran == [f"node {n}: 2 cores, GPUs 0,1" for n in (0, 0, 1, 1)]

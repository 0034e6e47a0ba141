"""The Slurm launcher under a real Slurm: two nodes on this machine, started for these tests and stopped after them."""

import getpass
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
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
KillWait=600
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=600
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""


@dataclass
class Cluster:
    folder: Path
    environment: dict[str, str]

    def run(self, line: str) -> str:
        words = shlex.split(line)
        done = subprocess.run(words, env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("*.log"))

    def has_ended(self, job: str) -> bool:
        """Return whether a job is done; a failed one fails the test."""
        state = self.run(f"squeue --noheader --states=all --jobs={job} --format=%T").strip()
        assert state != "FAILED", self.read()
        return state == "COMPLETED"

    def wait(self, holds: Callable[[], bool], seconds: float = 600) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, self.read()
            time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    with ExitStack() as taken:
        ports = [taken.enter_context(socket.create_server(("", 0))).getsockname()[1] for _ in range(3)]
    filled = CONFIGURATION.format(folder=folder, host=HOST, nodes=NODES, ports=ports, user=getpass.getuser())
    (folder / "slurm.conf").write_text(filled)
    settings = {
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1",
    }
    made = Cluster(folder, os.environ | settings)
    with ExitStack() as daemons:

        def start(name: str, *words: str) -> None:
            log = daemons.enter_context((folder / f"{name}.log").open("a"))
            daemon = subprocess.Popen([DAEMONS[name], *words], env=made.environment, stdout=log, stderr=log)
            daemons.callback(daemon.wait, timeout=60)
            daemons.callback(daemon.terminate)

        places = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        start("munged", "--foreground", "--force", *(f"--{key}={folder}/munge.{end}" for key, end in places.items()))
        made.wait((folder / "munge.socket").exists, 60)
        start("slurmctld", "-D", "-c")
        for node in NODES:
            start("slurmd", "-D", "-N", node)
        ready = ["sinfo", "--noheader", "--format=%T", "--partition=low"]
        made.wait(lambda: subprocess.run(ready, env=made.environment, capture_output=True).stdout == b"idle\n", 60)
        yield made
        made.run(f"scancel --user={getpass.getuser()}")  # jobs would outlive Slurm
        made.wait(lambda: not made.run("squeue --noheader"), 60)


@pytest.mark.long
def test_a_preempted_run_saves_waits_for_its_turn_and_goes_on(cluster: Cluster):
    text = cluster.folder / "text.txt"
    text.write_text("".join(f"Chapter {n} tells of a house by the sea, and of a wife.\n\n" for n in range(200)))
    often = "--steps 400 --checkpoint.every-steps 400 --eval.every-steps 400 --model.vocab-size 50"
    training = shlex.join(arguments(text, cluster.folder / "run", *often.split()))
    options = f"--nodes=2 --time=60 --output={cluster.folder}/%x.log"
    job = cluster.run(f"launch/slurm.sh {options} -- {training}").split()[-1]
    # Both processes train, and save when they are stopped.
    cluster.wait(lambda: "step 3/400" in cluster.read() or cluster.has_ended(job))
    urgent = cluster.run("sbatch --partition=high --nodes=2 --output=/dev/null --wrap=true").split()[-1]
    cluster.wait(lambda: cluster.has_ended(urgent))
    assert "stopped by SIGTERM with step" in cluster.read()
    cluster.wait(lambda: cluster.has_ended(job))
    assert "Restarts=1 " in cluster.run(f"scontrol show job {job}")
    first, again = (cluster.folder / "xlnet.log").read_text().split("stopped by SIGTERM with step ")
    assert "devices     2 x cpu" in first
    assert f"resumed     at step {again.split()[0]} of 400" in again
    assert "step 400/400" in again

"""A dry run prints the commands of a run and runs none; a mistake is one line and exit code 2."""

import re

import pytest

from tests.launch.conftest import ROOT, TOOLS, StandIns, printed

TRAIN = "-- --preset base --workdir gs://mine/run --corpus 'gs://mine/my corpus' --log.wandb \"it's mine\""
POD = f"--image eu.gcr.io/mine/xlnet --accelerator tpu-v6e-slice --topology 4x8 {TRAIN}"
LINES = [
    "launch/tpu_vm.sh create --zone us-east5-b --type v6e-256 --slices 2 --spot --project p --service-account me@p",
    "launch/tpu_vm.sh install --zone us-east5-b --slices 2 --name second",
    f"launch/tpu_vm.sh train --zone us-east5-b {TRAIN}",
    "launch/tpu_vm.sh follow --zone us-east5-b --worker=all",
    f"launch/tpu_vm.sh resume --zone us-east5-b --type v5p-128 --reserved {TRAIN}",
    "launch/tpu_vm.sh stop --zone us-east5-b",
    "launch/tpu_vm.sh delete --zone us-east5-b",
    "launch/gke/jobset.sh image --image eu.gcr.io/mine/xlnet",
    f"launch/gke/jobset.sh create {POD}",
    "launch/gke/jobset.sh follow --namespace team",
    "launch/gke/jobset.sh delete",
    f"launch/gke/xpk.sh create --cluster mine --image eu.gcr.io/mine/xlnet --type v6e-32 {TRAIN}",
    "launch/gke/xpk.sh delete --cluster mine --zone us-east5-b",
    f"launch/slurm.sh --nodes=4 --gpus-per-node=8 '--comment=my run' {TRAIN}",
    "launch/dataflow.sh --project mine --region europe-west4 --temp gs://mine/tmp -- --source 'gs://mine/*.txt' "
    "--tokenizer gs://mine/tokenizer --out gs://mine/corpus",
]
# What `launch/tpu_vm.sh resume` rehearses: a preemption, a new slice, the end.
PREEMPTED = """
count=$(($(cat "$HOME/looks" 2>/dev/null || echo -1) + 1))
case $* in
    *'resources list'*) echo $count >"$HOME/looks"; states=(SUSPENDED ACTIVE ACTIVE); echo ${states[count]} ;;
    *SubState*) units=(- 'xlnet dead 0' 'xlnet exited 0'); echo ${units[count - 1]} ;;
esac
"""


def dry(line: str) -> str:
    before, separator, behind = line.partition(" -- ")
    return f"{before} --dry-run{separator}{behind}"


@pytest.mark.parametrize("line", LINES)
def test_a_dry_run_prints_the_very_commands_of_a_run_and_runs_none(stand_ins: StandIns, line: str) -> None:
    said = stand_ins.run(dry(line))
    assert (said.returncode, said.stderr) == (0, "")
    assert stand_ins.calls() == []
    stand_ins.answer("gcloud", PREEMPTED)
    done = stand_ins.run(line)
    assert done.returncode == 0, done.stderr
    commands = [words for words in printed(said.stdout) if words[0] in TOOLS]
    assert sorted(stand_ins.calls()) == sorted(commands)  # slices are served at once, in any order
    assert commands


# Every setting with a value that nothing else has.
OF_TPU_VMS, OF_JOBSETS, OF_XPK = (
    "--name n7 --project p7 --zone z7",
    "--name n7 --namespace m7",
    "--name n7 --cluster c7",
)
SETTINGS = [
    f"launch/tpu_vm.sh create {OF_TPU_VMS} --type v6e-16 --slices 77 --runtime r7 --service-account s7",
    f"launch/tpu_vm.sh follow {OF_TPU_VMS} --worker w7",
    f"launch/tpu_vm.sh resume {OF_TPU_VMS} --type v5p-8 --poll 77 {TRAIN}",
    f"launch/gke/jobset.sh create {OF_JOBSETS} --image i7 --accelerator tpu-v6e-slice --topology 14x22 "
    f"--chips-per-host 11 --max-restarts 77 --grace 88 --service-account s7 {TRAIN}",
    f"launch/gke/jobset.sh follow {OF_JOBSETS}",
    f"launch/gke/jobset.sh delete {OF_JOBSETS}",
    f"launch/gke/xpk.sh create {OF_XPK} --project p7 --zone z7 --image i7 --type v6e-16 --slices 77 --priority high "
    f"--max-restarts 88 --grace 99 {TRAIN} --mesh.dcn-data=77",
    f"launch/gke/xpk.sh delete {OF_XPK} --project p7 --zone z7",
    "launch/dataflow.sh --name n7 --project p7 --region r7 --temp gs://t7 --machine-type m7 --max-workers 77 "
    "--image i7 -- --out gs://mine/corpus",
]


@pytest.mark.parametrize("line", SETTINGS)
def test_every_setting_reaches_a_command(stand_ins: StandIns, line: str) -> None:
    given = line.partition(" -- ")[0]
    text = stand_ins.run(dry(line)).stdout.replace("--mesh.dcn-data=77", "")
    for name, value in re.findall(r"--(\S+) (\S+)", given):
        assert re.search(rf"(?<!\w){value}(?!\w)", text), name


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("launch/tpu_vm.sh", "say what to do: create, install, train, follow, resume, stop or delete"),
        ("launch/tpu_vm.sh creat --zone a", "say what to do: create, install, train, follow, resume, stop or delete"),
        ("launch/tpu_vm.sh create --type v6e-8", "--zone is missing: --help says what it is"),
        ("launch/tpu_vm.sh create --zone a", "--type is missing: --help says what it is"),
        ("launch/tpu_vm.sh create --zone", "--zone needs a value"),
        ("launch/tpu_vm.sh create --zone a --typ v6e-8", "unknown setting --typ: --help lists them all"),
        ("launch/tpu_vm.sh create --zone a v6e-8", "v6e-8 is no setting"),
        ("launch/tpu_vm.sh create --zone a --type v6e-8 --slices 0", "--slices 0: give a whole number from 1 up"),
        ("launch/tpu_vm.sh create --zone a --type tpu7x-8", "later ones: GKE, launch/gke/"),
        ("launch/tpu_vm.sh train --zone a -- --workdir runs/mine", "give --workdir gs://BUCKET/RUN after --"),
        ("launch/tpu_vm.sh resume --zone a --type v6e-8", "give --workdir gs://BUCKET/RUN after --"),
        (f"launch/tpu_vm.sh train --zone a --slices 2 {TRAIN}", "give --mesh.dcn-data 2 after --"),
        (f"launch/gke/jobset.sh create --slices 2 {POD} --mesh.dcn-data 22", "give --mesh.dcn-data 2 after --"),
        ("launch/gke/jobset.sh create", "--image is missing: --help says what it is"),
        (
            f"launch/gke/jobset.sh create {POD.replace('v6e-slice', 'v6e')}",
            "--accelerator tpu-v6e: GKE has tpu-v3-slice",
        ),
        (f"launch/gke/jobset.sh create {POD.replace('4x8', '32')}", "--topology 32: give the chips of each side"),
        (f"launch/gke/jobset.sh create --chips-per-host 5 {POD}", "5 does not divide the 32 chips of 4x8"),
        ("launch/gke/jobset.sh delete --name My_Run", "--name My_Run: Kubernetes wants up to 40 of a-z, 0-9 and -"),
        ("launch/gke/xpk.sh create --cluster a", "--image is missing: --help says what it is"),
        (
            "launch/slurm.sh --nodes 4 -- --workdir /shared/run",
            "4 is no option: give options of sbatch as --name=value",
        ),
        ("launch/slurm.sh -- --preset base", "give --workdir FOLDER after --"),
        ("launch/dataflow.sh --project a --region b --temp /tmp", "--temp /tmp: Dataflow wants a folder in the cloud"),
        ("launch/dataflow.sh --project a --region b --temp gs://c -- --out corpus", "give --out gs://BUCKET/CORPUS"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(stand_ins: StandIns, line: str, message: str) -> None:
    said = stand_ins.run(line)
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    assert said.stderr.startswith("error: ")
    assert message in said.stderr
    assert stand_ins.calls() == []


@pytest.mark.parametrize("line", LINES)
def test_a_missing_tool_is_named_before_anything_is_done(stand_ins: StandIns, line: str) -> None:
    tool = printed(stand_ins.run(dry(line)).stdout)[-1][0]
    (stand_ins.folder / "bin" / tool).unlink()
    said = stand_ins.run(line)
    message = f"error: {tool} is not on PATH: install it, or print its commands by --dry-run\n"
    assert (said.returncode, said.stdout, said.stderr) == (2, "", message)
    assert stand_ins.calls() == []


def test_launchers_start_from_the_root_of_the_repository_only(stand_ins: StandIns) -> None:
    said = stand_ins.run("../launch/slurm.sh --help", cwd=ROOT / "docs")
    assert (said.returncode, said.stderr) == (2, "error: start this from the root of the repository\n")


@pytest.mark.parametrize("script", sorted({line.split()[0] for line in LINES}))
def test_help_names_every_setting_with_its_default(stand_ins: StandIns, script: str) -> None:
    text = stand_ins.run(f"{script} --help").stdout
    assert text.startswith(f"usage: {script}")
    assert "--dry-run" in text
    source = (ROOT / script).read_text()
    for names, flags in re.findall(r"settings \\?\s*'(.*?)' '?([a-z ]*)", source):
        for setting in f"{names} {flags}".split():
            assert f"--{setting} " in text.replace(",", " ")
            default = re.search(rf"\b{setting.replace('-', '_')}=([\w-]+)", source.partition("usage() {")[0])
            if default and default[1] != "false":
                assert re.search(rf"--{setting} .*\b{default[1]}\)", text), f"--{setting} and its default {default[1]}"

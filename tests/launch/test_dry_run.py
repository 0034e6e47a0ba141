"""A dry run prints the commands of a run, as docs/launch.md shows; a mistake is one line and exit code 2."""

import os
import re
import shlex
import subprocess

import pytest

from tests.launch.conftest import DIGEST, ROOT, TOOLS, StandIns, printed
from xlnet_jax.objectives import presets

TRAIN = "-- --preset base --workdir gs://mine/run --corpus 'gs://mine/my corpus' --log.wandb \"it's mine\""
POD = f"--image eu.gcr.io/mine/xlnet{DIGEST} --accelerator tpu-v6e-slice --topology 4x8 {TRAIN}"
PAGE = (ROOT / "docs/launch.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.S | re.M)
EXAMPLE = re.compile(r"^\$ (.*?[^\\])\n(.*?)(?=^\$ |\Z)", re.S | re.M)
EXAMPLES = [(re.sub(r"\\\n +", "", line), output) for block in BLOCKS for line, output in EXAMPLE.findall(block)]
EXAMPLES = [
    (re.sub(r'"\$(BASE|IMAGE)"', f"mine{DIGEST}", line), output) for line, output in EXAMPLES if "launch/" in line
]
LINES = [line.partition("PYTHON=.venv-beam/bin/python ")[2] or line for line, _ in EXAMPLES]
LINES += [
    "launch/tpu_vm.sh create --zone us-east5-b --type v5p-128 --slices 2 --reserved --dry-run",
    *(f"launch/tpu_vm.sh {action} --zone us-east5-b --dry-run" for action in ("follow", "stop", "delete")),
    *(f"launch/gke/jobset.sh {action} --dry-run" for action in ("follow", "delete")),
    "launch/gke/xpk.sh delete --cluster mine --dry-run",
    "launch/tpu_vm.sh install --zone us-east5-b --slices 2 --name second --dry-run",
    f"launch/tpu_vm.sh train --zone us-east5-b --dry-run {TRAIN}",
    f"launch/gke/jobset.sh create --dry-run {POD}",
    f"launch/slurm.sh --nodes=4 '--comment=my run' --dry-run {TRAIN}",
]
NAMED = [
    "launch/tpu_vm.sh stop --zone a",
    "launch/gke/jobset.sh delete",
    "launch/gke/xpk.sh delete --cluster a",
    "launch/dataflow.sh --project a --region b --temp gs://c",
]
TAGS = ("mine/xlnet:latest", "mine/xlnet@sha256:12", f"mine/xlnet{DIGEST}0", f"mine/xlnet{DIGEST.upper()}", DIGEST)
BY_TAG = [
    *(f"launch/gke/jobset.sh create --accelerator tpu7x --topology 4x4 --image {tag}" for tag in TAGS),
    *(f"launch/gke/jobset.sh image --image mine/xlnet --base {tag}" for tag in TAGS),
    *(f"launch/gke/xpk.sh create --cluster a --type v6e-8 --image {tag}" for tag in TAGS),
    *(f"launch/dataflow.sh --project a --region b --temp gs://c --image {tag} -- --out gs://d" for tag in TAGS),
]
# What `launch/tpu_vm.sh resume` rehearses: a preemption, a new slice, the end.
PREEMPTED = """
count=$(($(cat "$HOME/looks" 2>/dev/null || echo -1) + 1))
case $* in
    *'resources list'*) echo $count >"$HOME/looks"; states=(SUSPENDED ACTIVE ACTIVE); echo ${states[count]} ;;
    *SubState*) units=(- 'xlnet dead 0' 'xlnet exited 0'); echo ${units[count - 1]} ;;
esac
"""


@pytest.mark.parametrize(("line", "output"), EXAMPLES)
def test_the_page_shows_what_is_printed(line: str, output: str) -> None:
    without = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    said = subprocess.run(["bash", "-c", line], cwd=ROOT, env=without, capture_output=True, text=True, timeout=120)
    assert (said.returncode, said.stderr) == (0, "")
    assert re.fullmatch(".*".join(map(re.escape, output.split("…"))), said.stdout, re.S), said.stdout


@pytest.mark.parametrize("line", [line for line, _ in EXAMPLES if " -- " in line and "dataflow" not in line])
def test_training_takes_the_settings_of_the_page(line: str) -> None:
    words = shlex.split(line)
    config = presets.parse_config(words[words.index("--") + 1 :], "train", "")
    assert config.workdir
    assert config.preset in line


@pytest.mark.parametrize("line", LINES)
def test_a_dry_run_prints_the_very_commands_of_a_run_and_runs_none(stand_ins: StandIns, line: str) -> None:
    said = stand_ins.run(line)
    assert (said.returncode, said.stderr) == (0, "")
    assert stand_ins.calls() == []
    commands = [words for words in printed(said.stdout) if words[0] in TOOLS]
    assert commands
    run = line.replace("--dry-run", "")
    stand_ins.answer("gcloud", PREEMPTED)
    done = stand_ins.run(run)
    assert done.returncode == 0, done.stderr
    assert sorted(stand_ins.calls()) == sorted(commands)  # slices are served at once, in any order
    calls, tool = stand_ins.calls(), commands[-1][0]
    (stand_ins.folder / "bin" / tool).unlink()
    missing = stand_ins.run(run)
    message = f"error: {tool} is not on PATH: install it, or print its commands with --dry-run\n"
    assert (missing.returncode, missing.stdout, missing.stderr) == (2, "", message)
    assert stand_ins.calls() == calls


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("launch/tpu_vm.sh stop --zone=a=b", "--zone=a=b"),
        ("launch/tpu_vm.sh create --zone a --type v4-8 --spot", "--spot"),
        ("launch/tpu_vm.sh create --zone a --type v4-8 --reserved", "--reserved"),
        ("launch/tpu_vm.sh create --zone a --type v4-8 --service-account me@x", "--service-account=me@x"),
        ("launch/tpu_vm.sh delete --zone a --project mine", "--project=mine"),
        (f"launch/tpu_vm.sh resume --zone a --type v4-8 --name x {TRAIN}", "--filter=name~/x$"),
        ("launch/tpu_vm.sh follow --zone a --slices 2 --worker all", "xlnet-0 --worker=all"),
        ("launch/gke/jobset.sh delete --namespace b", "xlnet --namespace=b"),
        ("launch/gke/jobset.sh follow --namespace b", "--namespace=b"),
        (f"launch/gke/jobset.sh create --namespace b {POD}", "--namespace=b"),
        (f"launch/gke/xpk.sh create --cluster a --image b{DIGEST} --type c {TRAIN}", "--restart-on-exit-codes=1"),
        (f"launch/gke/xpk.sh create --cluster a --image b{DIGEST} --type c --grace 7 {TRAIN}",
         "--termination-grace-period-seconds=7"),
        ("launch/gke/xpk.sh delete --cluster a --zone b --project c", "--project=c --zone=b"),
        ("launch/dataflow.sh --project a --region b --temp gs://c --max-workers 7 -- --out gs://d",
         "max_num_workers=7"),
    ],
)  # fmt: skip
def test_each_setting_reaches_its_command(stand_ins: StandIns, line: str, words: str) -> None:
    before, dashes, after = line.partition(" -- ")
    said = stand_ins.run(f"{before} --dry-run{dashes}{after}")
    assert said.returncode == 0, said.stderr
    assert any(set(words.split()) <= set(command) for command in printed(said.stdout))


def test_the_command_of_xpk_is_the_process_that_gets_the_signal(stand_ins: StandIns) -> None:
    line = f"launch/gke/xpk.sh create --cluster a --image b{DIGEST} --type c --dry-run {TRAIN}"
    (create,) = printed(stand_ins.run(line).stdout)
    assert create[-1].startswith("--command=exec /entrypoint.sh python -m xlnet_jax.train --tpu --preset base")


def test_every_launcher_is_on_the_page() -> None:
    scripts = {path.relative_to(ROOT).as_posix() for path in (ROOT / "launch").rglob("*.sh")}
    shown = {word for line, _ in EXAMPLES for word in shlex.split(line) if word in scripts}
    assert shown == scripts - {"launch/common.sh", "launch/tpu_worker.sh", "launch/gke/entrypoint.sh"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("launch/tpu_vm.sh", "give an action: create, install, train, follow, resume, stop or delete"),
        ("launch/tpu_vm.sh create --type v6e-8", "--zone is missing: --help explains it"),
        ("launch/tpu_vm.sh create --zone a --typ v6e-8", "unknown setting --typ: --help lists all settings"),
        ("launch/tpu_vm.sh create --zone a --type v6e-8 --slices 0", "--slices 0: give a whole number of at least 1"),
        ("launch/tpu_vm.sh create --zone a --type tpu7x-8", "for later TPUs use launch/gke/"),
        ("launch/tpu_vm.sh train --zone a -- --workdir runs/mine", "give --workdir gs://BUCKET/RUN after --"),
        (f"launch/tpu_vm.sh train --zone a --slices 2 {TRAIN}", "give --mesh.dcn-data 2 after --"),
        (f"launch/gke/jobset.sh create --slices 2 {POD} --mesh.dcn-data 22", "give --mesh.dcn-data 2 after --"),
        (
            f"launch/gke/jobset.sh create {POD.replace('v6e-slice', 'v6e')}",
            "--accelerator tpu-v6e: give tpu-v3-slice",
        ),
        (f"launch/gke/jobset.sh create {POD.replace('4x8', '32')}", "--topology 32: give the chips along each axis"),
        (f"launch/gke/jobset.sh create {POD.replace('4x8', '2x2x2x2')}", "--topology 2x2x2x2: give the chips along"),
        (f"launch/gke/jobset.sh create {POD.replace('4x8', '2x3')}", "4 does not divide the 6 chips of 2x3"),
        (f"launch/gke/jobset.sh create --chips-per-host 5 {POD}", "5 does not divide the 32 chips of 4x8"),
        *(
            (f"{line} --name {name}", "give up to 40 characters of a-z, 0-9 and -")
            for line in NAMED
            for name in ("My_Run", "a|b", "a.b", "'a b'", "a-", 41 * "a", "''")
        ),
        *(
            (f"{line} {given}", "a value that begins with - would be an option of another program")
            for line in NAMED
            for given in ("--name --flags-file=/tmp/x", "--name=--flags-file=/tmp/x", "--name -x", "--name --dry-run")
        ),
        ("launch/tpu_vm.sh follow --zone a --project --impersonate-service-account=x", "a value that begins with -"),
        ("launch/gke/xpk.sh delete --cluster --x", "--cluster --x: a value that begins with - would be an option"),
        *((line, "give NAME@sha256:DIGEST; docs/launch.md shows the command that prints it") for line in BY_TAG),
        (f"launch/gke/jobset.sh create {POD} 'a\nb'", "an argument has a line break or another control character"),
        ("launch/tpu_vm.sh stop --zone 'a\nb'", "an argument has a line break or another control character"),
        ("launch/tpu_vm.sh stop --zone a --slices 9999999999", "give a whole number of at least 1"),
        (
            "launch/slurm.sh --nodes 4 -- --workdir /shared/run",
            "4 is not an option: give options of sbatch as --name=value",
        ),
        ("launch/slurm.sh -- --preset base", "give --workdir FOLDER after --"),
        ("launch/dataflow.sh --project a --region b --temp /tmp", "--temp /tmp: Dataflow needs a folder in a bucket"),
        ("launch/dataflow.sh --project a --region b --temp gs://c -- --out corpus", "give --out gs://BUCKET/CORPUS"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(stand_ins: StandIns, line: str, message: str) -> None:
    said = stand_ins.run(line)
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    assert said.stderr.startswith("error: ")
    assert message in said.stderr
    assert stand_ins.calls() == []


@pytest.mark.parametrize("script", sorted({word for line in LINES for word in line.split() if word.endswith(".sh")}))
def test_every_launcher_has_help(stand_ins: StandIns, script: str) -> None:
    text = stand_ins.run(f"{script} --help").stdout
    assert text.startswith(f"usage: {script}")
    assert "--dry-run" in text

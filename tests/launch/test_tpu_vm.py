"""Cloud TPU VMs: requests for slices, commands on workers, and the actions of resume in each state."""

import re
import shutil

import pytest

from tests.launch.conftest import ROOT, StandIns, printed

VM = "launch/tpu_vm.sh"
RESUME = f"{VM} resume --zone us-east5-b --type v6e-256 --poll 7 -- --workdir gs://mine/run"
# Looks at the queued resource, one after another: its state, and those of the workers' units.
ANSWERS = """
case $* in
    *'resources list'*)
        look=$(($(cat "$HOME/look") + 1))
        echo $look >"$HOME/look"
        sed -n ${look}p "$HOME/states" | grep -v broken
        ;;
    *SubState*) sed -n "$(cat "$HOME/look")p" "$HOME/units" | grep -v lost | sed 's/, /\\n/g' ;;
esac
"""
DEEDS = {
    "create": "queued-resources create",
    "delete": "queued-resources delete",
    "install": "worker.sh install",
    "train": "worker.sh train",
    "pause": "sleep 7",
}


def resume(stand_ins: StandIns, looks: str, refused: str = "") -> tuple[int, str, str, str]:
    """Return the exit code, the output, the error and the commands, without the checks. refused: a condition in bash
    that gcloud must meet to succeed."""
    parts = [look.partition(": ") for look in looks.split(" | ")]
    (stand_ins.folder / "look").write_text("0")
    (stand_ins.folder / "states").write_text("".join(f"{state}\n" for state, _, _ in parts))
    (stand_ins.folder / "units").write_text("".join(f"{units}\n" for _, _, units in parts))
    stand_ins.answer("gcloud", ANSWERS + (f"[[ {refused} ]]" if refused else ""))
    said = stand_ins.run(RESUME)
    lines = [" ".join(call) for call in stand_ins.calls()]
    done = " ".join(deed for line in lines for deed, sign in DEEDS.items() if sign in line)
    return said.returncode, said.stdout, said.stderr, done


@pytest.mark.parametrize(
    ("looks", "done", "refused", "line"),
    [
        ("ACTIVE: xlnet exited 0", "", "", ""),
        ("ACTIVE: xlnet running 0, xlnet running 0 | ACTIVE: xlnet exited 0, xlnet exited 0", "pause", "", ""),
        (
            " | WAITING_FOR_RESOURCES | ACTIVE: xlnet dead 0 | ACTIVE: xlnet exited 0",
            "create pause pause install train pause",
            "",
            "",
        ),
        ("SUSPENDING | SUSPENDED | ACTIVE: xlnet exited 0", "pause delete create pause", "", ""),
        # One machine was replaced; all have stopped, with their state saved; one has.
        ("ACTIVE: xlnet running 0, xlnet dead 0 | ACTIVE: xlnet exited 0", "install train pause", "", ""),
        ("ACTIVE: xlnet failed 143 | ACTIVE: xlnet exited 0", "install train pause", "", ""),
        ("ACTIVE: xlnet exited 0, xlnet failed 143 | ACTIVE: xlnet exited 0", "install train pause", "", ""),
        # One is the first to end; systemd starts a worker again by itself.
        ("ACTIVE: xlnet exited 0, xlnet running 0 | ACTIVE: xlnet exited 0, xlnet exited 0", "pause", "", ""),
        ("ACTIVE: xlnet auto-restart 6 | ACTIVE: xlnet exited 0", "pause", "", ""),
        ("ACTIVE: lost | broken | SUSPENDED | ACTIVE: xlnet exited 0", "pause pause delete create pause", "", ""),
        # Google Cloud refuses a request, or preempts a worker that is being started.
        (
            "SUSPENDED |  | WAITING_FOR_RESOURCES | ACTIVE: xlnet exited 0",
            "delete create pause create pause pause",
            "$* != *'resources create'* || $(cat \"$HOME/look\") != 1",
            "could not request the slices: will try again\n",
        ),
        (
            "ACTIVE: xlnet dead 0 | SUSPENDED | ACTIVE: xlnet exited 0",
            "install pause delete create pause",
            "$* != *'worker.sh install'*",
            "lost a worker during the start: will try again\n",
        ),
    ],
)
def test_resume_does_what_is_missing_until_the_run_is_done(
    stand_ins: StandIns, looks: str, done: str, refused: str, line: str
) -> None:
    code, output, error, deeds = resume(stand_ins, looks, refused)
    assert (code, error, deeds) == (0, line, done)
    assert output.endswith("the run is done: launch/tpu_vm.sh delete returns the slices\n")


FAILED = "training failed: launch/tpu_vm.sh follow --worker all prints the reason"


@pytest.mark.parametrize(
    ("looks", "message"),
    [
        ("ACTIVE: xlnet running 0 | ACTIVE: xlnet failed 2", FAILED),
        ("ACTIVE: xlnet exited 0, xlnet failed 1", FAILED),
        ("FAILED", "the queued resource failed: gcloud compute tpus queued-resources describe prints the reason"),
        ("WAITING_FOR_RESOURCES | ", "the queued resource was deleted: run the same command to request a new one"),
        ("broken", "gcloud cannot list the queued resources: see its message above"),
    ],
)
def test_resume_stops_where_trying_again_would_not_help(stand_ins: StandIns, looks: str, message: str) -> None:
    code, _, error, deeds = resume(stand_ins, looks)
    assert (code, error) == (2, f"error: {message}\n")
    assert deeds in ("", "pause")


def test_each_generation_gets_its_software(stand_ins: StandIns) -> None:
    """Check the table of cloud.google.com/tpu/docs/runtimes, for JAX."""
    older = dict.fromkeys(("v2-8", "v3-1024", "v4-128"), "tpu-ubuntu2204-base")
    newer = {"v5litepod-16": "v2-alpha-tpuv5-lite", "v5p-128": "v2-alpha-tpuv5", "v6e-256": "v2-alpha-tpuv6e"}
    for kind, software in (older | newer).items():
        (create,) = printed(stand_ins.run(f"{VM} create --zone a --type {kind} --dry-run").stdout)
        assert f"--runtime-version={software}" in create


def test_one_slice_is_a_node_and_several_are_numbered_nodes(stand_ins: StandIns) -> None:
    for slices, nodes in ((1, {"--node-id=x"}), (3, {"--node-count=3", "--node-prefix=x"})):
        line = f"{VM} create --zone a --type v4-8 --slices {slices} --name x --dry-run"
        (create,) = printed(stand_ins.run(line).stdout)
        assert {word for word in create if word.startswith("--node")} == nodes
    stops = printed(stand_ins.run(f"{VM} stop --zone a --slices 3 --name x --dry-run").stdout)
    assert [stop[stop.index("ssh") + 1] for stop in stops] == ["x-0", "x-1", "x-2"]


@pytest.mark.parametrize(
    ("tool", "reply", "action", "calls"),
    [("gcloud", "[[ $* != *xlnet-1* ]]", "stop", ["gcloud"] * 3), ("git", "exit 128", "install", ["git"])],
)
def test_an_action_fails_with_one_of_its_slices_or_without_its_wheel(
    stand_ins: StandIns, tool: str, reply: str, action: str, calls: list[str]
) -> None:
    """A wheel of an earlier commit is not installed in place of one that cannot be made."""
    stand_ins.answer(tool, reply)
    assert stand_ins.run(f"{VM} {action} --zone a --slices 3").returncode != 0
    assert [call[0] for call in stand_ins.calls()] == calls


def on_worker(stand_ins: StandIns, line: str, state: str) -> str:
    """Run on this machine, as a worker in this state, the commands that the line runs on all workers."""
    shutil.copy(ROOT / "launch/tpu_worker.sh", stand_ins.folder)
    stand_ins.answer("systemctl", f"echo {state}")
    stand_ins.answer("sudo", '"$@"')
    (stand_ins.folder / "uv/bin").mkdir(parents=True)
    shutil.copy(stand_ins.folder / "bin/git", stand_ins.folder / "uv/bin/uv")
    (ssh,) = (words for words in printed(stand_ins.run(line).stdout) if "ssh" in words)
    (command,) = (word.partition("=")[2] for word in ssh if word.startswith("--command="))
    (stand_ins.folder / "command").write_text(command)
    said = stand_ins.run("bash command", cwd=stand_ins.folder)
    assert said.returncode == 0, said.stderr
    return said.stdout


TRAIN = (
    "launch/tpu_vm.sh train --zone a --dry-run -- "
    """--workdir gs://mine/run --corpus 'gs://m/my "$HOME" text' --log.wandb "it's" ''"""
)


def test_settings_reach_training_which_restarts_on_all_but_success_and_mistakes(stand_ins: StandIns) -> None:
    """A worker that was done trains again, beside one that was not."""
    on_worker(stand_ins, TRAIN, "exited")
    calls = stand_ins.calls()
    (unit,) = (call for call in calls if call[0] == "systemd-run")
    assert calls.index(["systemctl", "stop", "xlnet"]) < calls.index(unit)
    # systemd reads $$ as a dollar sign.
    settings = ["--workdir", "gs://mine/run", "--corpus", 'gs://m/my "$$HOME" text', "--log.wandb", "it's", ""]
    assert unit[unit.index("--tpu") + 1 :] == settings
    assert unit[unit.index("--tpu") - 3] == f"{stand_ins.folder}/xlnet/bin/python"
    restarts = {"--property=Restart=on-failure", "--property=RestartPreventExitStatus=2", "--remain-after-exit"}
    assert restarts <= set(unit)


def test_a_worker_installs_the_wheel_that_was_copied_and_pinned_packages(stand_ins: StandIns) -> None:
    line = "launch/tpu_vm.sh install --zone a --dry-run"
    (copy,) = (words for words in printed(stand_ins.run(line).stdout) if "scp" in words)
    on_worker(stand_ins, line, "dead")
    *_, packages, wheel = (call for call in stand_ins.calls() if call[0] == "uv")
    assert "launch/requirements.txt" in copy
    assert "--require-hashes" in packages
    for option in ("--requirement", "--build-constraint"):
        assert packages[packages.index(option) + 1] == "requirements.txt"
    file = copy[copy.index("scp") + 1].removeprefix("dist/")
    assert wheel[-2:] == ["--no-deps", f"xlnet_jax @ file://{stand_ins.folder}/{file}"]
    # It fetches nothing else without a version and a checksum.
    assert {call[0] for call in stand_ins.calls()} == {"systemctl", "python3", "uv"}
    (pip,) = (call for call in stand_ins.calls() if call[0] == "python3")
    assert "--require-hashes" in pip
    asked = (stand_ins.folder / pip[pip.index("--requirement") + 1]).read_text()
    assert re.fullmatch(r"uv==[0-9.]+ --hash=sha256:[0-9a-f]{64}\n", asked)


@pytest.mark.parametrize("line", [TRAIN, "launch/tpu_vm.sh install --zone a --dry-run"])
def test_a_worker_that_trains_is_left_as_it_is(stand_ins: StandIns, line: str) -> None:
    assert on_worker(stand_ins, line, "running").startswith("xlnet is running on ")
    assert {call[0] for call in stand_ins.calls()} == {"systemctl"}

"""A command that fails, in whatever stage, fails the scripts of .ci, which show what it printed.

Stand-ins for the commands record their calls. Then each call fails once, in a run of its own.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = re.compile(r"tests/\S+\.py")
STAND_IN = """#!/usr/bin/env bash
call=$(tr '\\n' ' ' <<<"${0#"$PWD/"} $*")
call=${call#bin/}
echo "$call" >>"$CALLS"
if [ "$call" = "$FAILS" ]; then
    echo "broken on purpose" >&2
    exit 1
fi
"""
NEW_ENVIRONMENT = """if [ "$2" = venv ]; then
    mkdir -p "$3/bin"
    cp "$HOME/python" "$3/bin/python"
    cp "$HOME/python" "$3/bin/xlnet-jax"
fi
"""


@pytest.fixture
def checkout(tmp_path):
    """Return a folder with the scripts, and stand-ins for all that they call."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    for name in "bin tests dist .venv/bin .venv-beam/bin .venv-wheel-3.13/bin data_pipelines/corpora/austen".split():
        (tmp_path / name).mkdir(parents=True)
    for name in ("conftest.py", "setup.cfg", "constraints.txt", "data_pipelines/corpora/austen/train.txt"):
        (tmp_path / name).touch()
    (tmp_path / "dist/xlnet_jax-1.whl").touch()
    (tmp_path / "tests/test_long.py").write_text("@pytest.mark.long\n")
    for name in ("bin/make", ".venv/bin/python", ".venv-beam/bin/python", ".venv-wheel-3.13/bin/python", "python"):
        stand_in(tmp_path, name)
    return tmp_path


def stand_in(checkout, name, more=""):
    (checkout / name).write_text(f"{STAND_IN}{more}")
    (checkout / name).chmod(0o755)


def run_script(checkout, *words, fails="", **variables):
    """Return (exit code, output, calls) of a script of .ci. fails: the call that fails."""
    (checkout / "calls").unlink(missing_ok=True)
    (checkout / "temporary").mkdir(exist_ok=True)
    environment = {"PATH": f"{checkout / 'bin'}:{os.environ['PATH']}", "HOME": str(checkout), "FAILS": fails}
    environment |= {"CALLS": str(checkout / "calls"), "TMPDIR": str(checkout / "temporary"), **variables}
    done = subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)
    calls = (checkout / "calls").read_text().splitlines() if (checkout / "calls").exists() else []
    return done.returncode, done.stdout + done.stderr, calls


def assert_every_call_counts(run, calls, may_fail=()):
    passed = []
    for call in dict.fromkeys(calls):
        code, said, _ = run(fails=call)
        if code == 0 or "broken on purpose" not in said:
            passed.append(call)
    assert passed == [*may_fail]


def test_every_stage_counts(checkout):
    stand_in(checkout, "bin/id", "echo 1000\n")
    stand_in(checkout, "bin/mktemp", 'mkdir -p "$TMPDIR/work" && echo "$TMPDIR/work"\n')
    (checkout / ".ci/package").write_text(STAND_IN)
    run = partial(run_script, checkout, ".ci/run")
    code, said, calls = run()
    assert code == 0, said
    for stage in (
        "make test",
        "make lint",
        "make package",
        "make train",
        ".venv/bin/python -m pytest tests/xlnet_jax/planning",
        ".venv/bin/python -m pytest -n 2 --dist worksteal -m long --long tests/test_long.py",
        ".venv-beam/bin/python -m pytest",
        ".ci/package install 3.12",
        *(f".ci/package check {version}" for version in ("3.11", "3.12", "3.13")),
        ".venv-wheel-3.13/bin/python -m pytest",
    ):
        assert any(call.startswith(stage) for call in calls), f"{stage} is not run"
    assert_every_call_counts(run, calls, may_fail=["id -u "])  # who is not root installs no packages


def test_a_stage_that_fails_ends_those_in_the_background(checkout):
    stand_in(checkout, "bin/id", "echo 1000\n")
    (checkout / ".ci/package").write_text(STAND_IN)
    waiting = 'case $* in *xlnet_jax/planning) sleep 50 & echo $! >"$HOME/waiting"; wait ;; esac\n'
    stand_in(checkout, ".venv/bin/python", waiting)
    stand_in(
        checkout,
        "bin/make",
        'while [ "$1" = lint ] && [ ! -s "$HOME/waiting" ]; do sleep 0.05; done\n[ "$1" != lint ]\n',
    )
    code, said, _ = run_script(checkout, ".ci/run")
    assert code != 0
    assert "make lint" not in said  # it prints how long a stage took that passed
    deadline = time.monotonic() + 10
    while is_alive(int((checkout / "waiting").read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_system_packages_may_be_missing(checkout):
    """Tests that need them are skipped, and this is said."""
    stand_in(checkout, "bin/id", "echo 0\n")
    (checkout / ".ci/package").write_text(STAND_IN)
    stand_in(checkout, "bin/apt-get", 'if [[ " $* " == *" slurm-wlm "* ]]; then exit 1; fi\n')
    code, said, _ = run_script(checkout, ".ci/run")
    assert code == 0
    assert "slurm-wlm cannot be installed: skipping the tests under a real Slurm" in said


def test_all_that_tests_skip_without_is_required():
    """A test that CI never runs cannot fail."""
    script = (ROOT / ".ci/run").read_text().replace("\\\n", " ")
    required = {name for line in re.findall(r"\brequire \S+ (.*)", script) for name in line.split()}
    calls = re.compile(r'(?:importorskip|find_spec)\("([\w.]+)"')
    needed = {name for file in (ROOT / "tests").rglob("*.py") for name in calls.findall(file.read_text())}
    assert len(needed) > 12
    assert {name for name in needed if not any(f"{name}.".startswith(f"{have}.") for have in required)} == set()


def test_every_call_of_an_installation_counts(checkout):
    stand_in(checkout, "bin/python3.12", NEW_ENVIRONMENT)
    run = partial(run_script, checkout, ".ci/package", "install", "3.12")
    code, said, calls = run()
    assert code == 0, said
    assert len(calls) == 3
    assert_every_call_counts(run, calls, may_fail=["python3.12 -c  "])


@pytest.mark.parametrize(("variables", "expected"), [({}, 0), ({"GITHUB_ACTIONS": "true"}, 1)])
def test_only_on_github_every_version_must_be_there(checkout, variables, expected):
    code, said, calls = run_script(checkout, ".ci/package", "install", "3.99", **variables)
    assert (code, calls) == (expected, [])
    assert "skipping Python 3.99: this machine does not have it" in said
    code, said, _ = run_script(checkout, ".ci/package", "check", "3.99")
    assert (code, said) == (0, "skipping Python 3.99: this machine does not have it\n")


def test_every_call_of_a_check_counts(checkout):
    environment = ".venv-wheel-3.13/bin"
    stand_in(checkout, f"{environment}/xlnet-jax")
    run = partial(run_script, checkout, ".ci/package", "check", "3.13")
    code, said, calls = run()
    assert code == 0, said
    assert len(calls) == 9
    assert_every_call_counts(run, calls)
    (checkout / environment / "xlnet-jax").unlink()
    code, said, _ = run()
    assert code == 127
    assert "xlnet-jax: No such file or directory" in said


@pytest.mark.long
@pytest.mark.parametrize("script", [".ci/run", ".ci/package"])
def test_every_part_of_a_selection_names_tests(script):
    lines = (ROOT / script).read_text().replace("\\\n", " ").splitlines()
    ((names, files),) = [(re.search('-k "(.*?)"', line)[1], TESTS.findall(line)) for line in lines if '-k "' in line]
    command = [sys.executable, "-m", "pytest", "--collect-only", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    parts = set(re.findall(r"[\w:.-]+", names)) - {"or", "not"}
    assert len(parts) > 2
    assert [part for part in parts if part not in done.stdout] == []

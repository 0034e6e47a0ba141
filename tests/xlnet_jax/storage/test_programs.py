"""Compiled programs that the next process finds: their number, who may write them, damage, several processes."""

import dataclasses
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import random_model
from xlnet_jax import printing
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.storage import programs
from xlnet_jax.training.workdir import Workdir

MOST = 6  # programs of a continued prompt
GENERATE = """
import sys
import jax
from xlnet_jax.__main__ import COMMANDS
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name.rpartition("/")[2]))
COMMANDS["generate"].main(["tiny", "It is a truth", "--max-new-tokens", "3"])
assert not {"tensorflow", "orbax"} & set(sys.modules)  # the import of each takes long
print(f"\\n{events.count('cache_hits')} read, {events.count('cache_misses')} compiled")
"""


def start(home: Path, **variables: str) -> "subprocess.Popen[str]":
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION_CACHE")}
    return subprocess.Popen(
        [sys.executable, "-c", GENERATE],
        env=environment | {"XDG_CACHE_HOME": str(home)} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> tuple[str, int, int, str]:
    """Return (text, programs read, programs compiled, errors)."""
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    *text, counts = out.strip().splitlines()
    return "\n".join(text), *(int(word) for word in counts.split() if word.isdigit()), errors


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder that two processes filled at once, and what they printed."""
    home = tmp_path_factory.mktemp("cache") / "of" / "user"
    both = [start(home) for _ in range(2)]
    return home, [finish(process) for process in both]


def test_two_processes_at_once_and_the_next_one_compiles_nothing(kept):
    home, ((text, read, compiled, errors), other) = kept
    assert errors == other[3] == ""
    assert text == other[0]
    assert read + compiled == sum(other[1:3]) == MOST
    assert finish(start(home)) == (text, MOST, 0, "")


def test_others_may_not_even_read_the_folder(kept):
    folder = kept[0] / "xlnet_jax" / "programs"
    assert [part.stat().st_mode & 0o777 for part in (folder, *folder.parents[:3])] == [0o700] * 4


def test_damaged_programs_are_compiled_again(kept, tmp_path):
    home, ((text, *_), _) = kept
    shutil.copytree(home, tmp_path / "home")
    there = sorted((tmp_path / "home" / "xlnet_jax" / "programs").glob("*-cache"))
    assert len(there) == MOST
    for number, program in enumerate(there):
        data = program.read_bytes()
        whole, middle = len(data), len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        program.write_bytes([b"", data[:middle], flipped, bytes(whole)][number % 4])
    assert finish(start(tmp_path / "home"))[0] == text


def test_the_variables_of_jax_turn_it_off_and_move_it(kept, tmp_path):
    text = kept[1][0][0]
    off = start(tmp_path / "off", JAX_ENABLE_COMPILATION_CACHE="false")
    moved = start(tmp_path / "unused", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "moved"))
    assert finish(off)[0] == finish(moved)[0] == text
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]
    assert len(list((tmp_path / "moved").glob("*-cache"))) == MOST


# ---- the folder -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    printing.tell.cache_clear()
    return programs.users_folder()


@pytest.mark.parametrize(
    ("levels", "mode", "is_refused"),
    [
        (0, 0o777, True),
        (0, 0o770, True),
        (0, 0o1777, True),
        (0, 0o755, False),
        (2, 0o777, True),
        (2, 0o775, True),
        (2, 0o1777, False),
    ],
)
def test_a_folder_in_which_others_may_write_is_refused(folder, levels, mode, is_refused, capsys):
    part = [folder, *folder.parents][levels]
    part.chmod(mode)
    assert programs.users_folder() == (None if is_refused else folder)
    said = capsys.readouterr().err
    assert (
        f"note: compiled programs are not kept, and the next call compiles again: others may write in {part} (" in said
    ) == (is_refused)
    assert said.count("\n") == is_refused


def test_a_folder_of_another_user_is_refused(folder, monkeypatch, capsys):
    mine = folder.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    if mine == 0:  # all may trust what root owns
        os.chown(folder, 1000, -1)
    assert programs.users_folder() is None
    assert f"{folder} belongs to another user" in capsys.readouterr().err


def test_without_a_place_for_it_nothing_is_kept(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert programs.users_folder() is None
    assert "compiled programs are not kept" in capsys.readouterr().err


def test_what_a_killed_process_left_is_deleted(folder):
    for name in ("whole-cache", "whole-atime", "begun-cache", "now-cache"):
        (folder / name).write_bytes(b"12345678")
    os.utime(folder / "begun-cache", (time.time() - 3600,) * 2)
    programs.users_folder()
    assert sorted(path.name for path in folder.iterdir()) == ["now-cache", "whole-atime", "whole-cache"]


@pytest.fixture
def unset(folder, monkeypatch):
    """The user's folder, and no other that the tests have set."""
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    yield folder
    jax.config.update("jax_compilation_cache_dir", before)


def test_the_folder_has_a_limit_and_settings_come_back(unset, monkeypatch):
    def now():
        return [jax.config.values[f"jax_compilation_cache_{name}"] for name in ("dir", "max_size")]

    before, limit = now(), 20_000
    monkeypatch.setattr(programs, "MAX_BYTES", limit)
    with programs.keep_programs():
        assert now() == [str(unset), limit]
        for size in range(2, 9):
            jax.jit(lambda x: x * 1.2345 + 1)(jax.numpy.zeros(size))
        assert 0 < sum(path.stat().st_size for path in unset.glob("*-cache")) <= limit
    assert now() == before


def test_functions_keep_their_programs_and_runs_on_a_cpu_do(unset, tmp_path):
    start = xlnet_jax.load("tiny")
    small = dataclasses.replace(start.model, num_layers=1, d_model=24, num_heads=2, d_head=12, d_ff=40)
    network = dataclasses.replace(start, model=small, params=random_model(small, None).params)
    head = HeadConfig("classification", 2, labels=("bad", "good"))
    classifier = dataclasses.replace(network, head=head, params=random_model(small, head).params)
    kept = set()
    for use in (
        lambda: xlnet_jax.generate(network, "It is", max_new_tokens=1),
        lambda: xlnet_jax.score_texts(network, "It is"),
        lambda: xlnet_jax.embed_texts(network, "It is"),
        lambda: classifier.predict(["It is"], seq_len=16),
    ):
        use()
        there = {path.name for path in unset.glob("*-cache")}
        assert there > kept
        kept = there
    with Workdir(tmp_path).keep_programs():
        assert jax.config.values["jax_compilation_cache_dir"] == str(unset)


def test_a_program_is_found_only_on_a_cpu_with_the_same_instructions():
    """A program with instructions that a CPU lacks would crash there."""
    script = """
import logging, jax
records = []
handler = logging.Handler()
handler.emit = lambda record: records.append(record.getMessage())
logger = logging.getLogger("jax._src.cache_key")
logger.addHandler(handler), logger.setLevel(logging.DEBUG)
jax.jit(lambda x: x + 1)(1.0)
print(next(line for line in records if "of serialized accelerator_config" in line).split()[-1])
"""
    found = set()
    for isa in ("AVX", "AVX2", "AVX2"):
        environment = os.environ | {"XLA_FLAGS": f"--xla_cpu_max_isa={isa}"}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        found.add(done.stdout)
    assert len(found) == 2

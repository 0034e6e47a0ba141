"""Commands: how they are listed and started, how quickly they answer, and how the library's errors reach the user."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import xlnet_jax
from data_pipelines.tokenizer.commands import Train
from xlnet_jax.__main__ import COMMANDS, Command, main, run
from xlnet_jax.errors import UNREAD, InputError
from xlnet_jax.settings.fields import with_plain_paths


def read(argv, prog, description):
    raise InputError(
        "data.seq_len", 8, "with `data.pack` True: give `max_len` or `data.pack` False, `git log` in a.txt"
    )


def test_a_mistake_names_settings_as_python_does_and_on_the_command_line_as_flags():
    with pytest.raises(InputError, match=r"^`data.seq_len` 8 with `data.pack` True: give ") as mistake:
        read([], "", "")
    assert (mistake.value.name, mistake.value.value) == ("data.seq_len", 8)
    assert str(pickle.loads(pickle.dumps(mistake.value))) == str(mistake.value)
    refused = Command("a", "b", lambda: (None, print, read))
    shown = "--data.seq-len 8 with --data.pack: give --max-len or --data.no-pack, `git log` in a.txt"
    with pytest.raises(InputError, match=f"^{shown}$"):
        refused.main([])


@pytest.mark.parametrize(
    ("mistake", "line"),
    [
        (InputError("texts", "", "must be a list"), "`texts` must be a list"),
        (InputError("seeds", (1, 1), ": give each once"), "`seeds` 1 1: give each once"),
        (InputError("out", None, "must be named"), "`out` None must be named"),
        (InputError("push", "https://me:secret@host/x", "is no name"), "`push` https://host/x is no name"),
        (InputError("run.json: data.batch_size 'a': give a number"), "run.json: data.batch_size 'a': give a number"),
    ],
)
def test_a_mistake_is_a_line(mistake, line):
    assert str(mistake) == line


@pytest.mark.parametrize(
    ("started_as", "usage"), [("xlnet-jax", "xlnet-jax train"), ("train.py", "python -m xlnet_jax.train")]
)
def test_help_names_the_program_that_was_started(capsys, monkeypatch, started_as, usage):
    monkeypatch.setattr(sys, "argv", [f"/bin/{started_as}"])
    with pytest.raises(SystemExit):
        COMMANDS["train"].main(["--help"])
    assert capsys.readouterr().out.startswith(f"usage: {usage} [-h]")


def test_the_list_has_every_command_and_runs_the_one_it_is_given(capsys, monkeypatch):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, command in COMMANDS.items():
        assert any(line.split()[:2] == [name, command.module] and line.endswith(command.about) for line in lines)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"xlnet_jax {xlnet_jax.__version__}\n"
    with pytest.raises(InputError, match=r"no command is called scor: did you mean score\?"):
        main(["scor"])
    monkeypatch.setattr(sys, "argv", ["xlnet-jax", "score", "nowhere", "--sentences", "One."])
    with pytest.raises(SystemExit) as stop:
        run(main)
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("error: nowhere: no such folder")


def test_help_and_mistakes_on_the_command_line_load_neither_jax_nor_tensorflow():
    script = """
import contextlib, io, sys
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError
for name, command in COMMANDS.items():
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        command.main(["--help"])
    assert f"python -m {command.module}: " in shown.getvalue(), name
    try:
        command.main(["--qqqq"])
    except InputError as mistake:
        assert "\\n" not in str(mistake)
    else:
        raise AssertionError(name)
    loaded = {"jax", "flax", "tensorflow", "apache_beam", "matplotlib"} & set(sys.modules)
    assert not loaded, (name, loaded)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("does", "code"), [("sys.exit(print('x' * 10**6))", 0), ("print('x' * 10**6)", UNREAD)])
def test_a_command_whose_reader_is_gone_ends_without_a_word(does, code):
    script = f"""
import sys
from xlnet_jax.__main__ import run
def main(_): {does}
run(main)"""
    words = [sys.executable, "-c", script, *(["--help"] if code == 0 else [])]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        started.stdout.close()
        assert started.stderr.read() == b""
        assert started.wait(60) == code


def test_every_public_name_is_a_function_though_a_command_has_its_name():
    script = """
import importlib, inspect, runpy, sys
import xlnet_jax
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.training import machine
machine.start_with_huge_pages = machine.compile_quickly = lambda: None
for command in COMMANDS.values():
    sys.argv = [command.module, "--qqqq"]
    try:
        runpy.run_module(command.module, run_name="__main__")
    except SystemExit as stop:
        assert stop.code == 2
    program = command.module if command.module.startswith("xlnet_jax.") else f"{command.module}.__main__"
    try:
        importlib.import_module(program)
    except ImportError as error:
        assert str(error) == f"{program} is a program: run python -m {command.module}"
    else:
        raise AssertionError(program)
assert {"convert", "evaluate", "finetune", "generate"} <= COMMANDS.keys() & xlnet_jax.PUBLIC.keys()
for name, module in xlnet_jax.PUBLIC.items():
    assert inspect.unwrap(getattr(xlnet_jax, name)) is getattr(importlib.import_module(module), name)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="has no attribute 'lode'; it has AttentionSettings"):
        xlnet_jax.lode  # noqa: B018


def test_settings_take_paths_as_text(tmp_path):
    given = Train(source=(Path("a.txt"),), out=Path("b"))
    assert with_plain_paths(given) == Train(source=("a.txt",), out="b")
    xlnet_jax.convert(xlnet_jax.ConvertSettings(Path("tiny"), tmp_path / "tiny-hf", to="hf"))
    assert (tmp_path / "tiny-hf" / "config.json").exists()

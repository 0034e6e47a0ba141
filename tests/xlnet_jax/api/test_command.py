"""Commands: how they are listed and started, how quickly they answer, and how the library's errors reach the user."""

import importlib
import inspect
import subprocess
import sys

import pytest

import xlnet_jax
from xlnet_jax import __main__ as command
from xlnet_jax.errors import UNREAD, InputError


class Special(InputError):
    exit_code = 3


def refuse(settings):
    raise Special("`max_len` 0 and `data.seq_len` 8, `git log` and 'max_len' in text.txt")


def test_names_of_arguments_become_flags_and_the_error_stays_what_it_was():
    refused = command.Command("a", "b", f"{__name__}:Settings", f"{__name__}:refuse", parser=f"{__name__}:parsed")
    with pytest.raises(Special) as mistake:
        refused.main([])
    assert str(mistake.value) == "--max-len 0 and --data.seq-len 8, `git log` and 'max_len' in text.txt"
    assert mistake.value.exit_code == 3


def parsed(argv, prog, description):
    return argv


MODULES = [each.module for each in command.COMMANDS.values()]


def test_the_list_has_every_command_and_runs_the_one_it_is_given(capsys):
    assert {"data_pipelines.prepare", "xlnet_jax.train", "xlnet_jax.score"} < set(MODULES)
    assert command.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, each in command.COMMANDS.items():
        assert any(line.split()[:2] == [name, each.module] and line.endswith(each.about) for line in lines)
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out == f"xlnet_jax {xlnet_jax.__version__}\n"
    with pytest.raises(InputError, match=r"no command is called scor: did you mean score\?"):
        command.main(["scor"])
    words = [sys.executable, "-m", "xlnet_jax", "score", "nowhere", "--sentences", "One."]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: nowhere: no such folder")


def test_a_command_line_that_is_not_utf_8_is_refused_in_one_line():
    words = [sys.executable, "-m", "xlnet_jax.generate", "nowhere", "--prompt", b"caf\xe9 \xed\xa0\x80"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == (
        "error: word 3 of the command line, 'caf\\udce9 \\udced\\udca0\\udc80', is not UTF-8: rename what it names\n"
    )


def test_help_and_mistakes_on_the_command_line_load_neither_jax_nor_tensorflow():
    """Importing those takes seconds, whichever command it is."""
    script = f"""
import contextlib, importlib, io, sys
from xlnet_jax.errors import UNREAD, InputError
for name in {MODULES}:
    package = name.startswith("data_pipelines")
    main = importlib.import_module(name + ".__main__" if package else name).main
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main(["--help"])
    assert "--" in shown.getvalue() or package, name
    try:
        main(["--qqqq"])
    except InputError as mistake:
        assert "\\n" not in str(mistake)
    else:
        raise AssertionError(name)
    loaded = {{"jax", "flax", "tensorflow", "apache_beam", "matplotlib"}} & set(sys.modules)
    assert not loaded, (name, loaded)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("does", "code"), [("sys.exit(print('x' * 10**6))", 0), ("print('x' * 10**6)", UNREAD)])
def test_a_command_whose_reader_is_gone_ends_without_a_word(does, code):
    """--help is told to have succeeded; work that ends early is not."""
    script = f"""
import sys
from xlnet_jax import __main__ as command
def main(_): {does}
command.run(main)"""
    words = [sys.executable, "-c", script, *(["--help"] if code == 0 else [])]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.close()
        assert started.stderr.read() == b""
        assert started.wait(60) == code


def test_the_broken_pipe_of_something_else_keeps_its_trace(capfd):
    def main(_):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        command.run(main)


def test_every_public_name_is_a_function_though_a_command_has_its_name():
    for name, module in xlnet_jax.PUBLIC.items():
        assert getattr(xlnet_jax, name) is getattr(importlib.import_module(module), name)
    yesterday = {"Config", "InputError", "ModelConfig", "XLNetLM", "embed_texts", "load", "pretrain", "save"}
    assert yesterday | {"score_texts", "generate"} <= set(dir(xlnet_jax))
    for module in MODULES:
        package, _, name = module.rpartition(".")
        if package == "xlnet_jax":
            command_module = importlib.import_module(module)
            assert inspect.ismodule(command_module)
            assert command_module.main
            public = getattr(xlnet_jax, name) if name in xlnet_jax.PUBLIC else command_module
            assert getattr(xlnet_jax, name) is public
    assert {"finetune", "predict", "generate", "fill_in", "evaluate"} <= set(dir(xlnet_jax))
    assert xlnet_jax.evaluate.__module__ == xlnet_jax.PUBLIC["evaluate"]
    with pytest.raises(AttributeError, match="has no attribute 'lode'; it has AttentionSettings"):
        xlnet_jax.lode  # noqa: B018

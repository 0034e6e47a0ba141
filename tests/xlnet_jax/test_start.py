"""No command imports a module of the current folder, and no process that it starts does."""

import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("xlnet_jax", "data_pipelines")
SHADOW = "open({marker!r}, 'a').write(__name__ + ' ')\nraise ImportError(__name__)\n"
TRAIN = (
    "train --corpus texts --tokenizer tiny --workdir run --steps 1 --eval.max-windows 1 --model.num-layers 1 "
    "--model.d-model 16 --model.num-heads 1 --model.d-head 16 --model.d-ff 32 --model.mem-len 16 --data.batch-size 8 "
    "--data.seq-len 32 --data.reuse-len 16 --data.perm-size 16 --data.num-predict 4 --data.windows-per-block 4"
)
"""A run that starts itself again, starts processes that import it anew and prepare the texts, and draws curves"""


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess:
    """Run a program as a user who has installed this checkout."""
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    for name in ("PYTHONSAFEPATH", "GLIBC_TUNABLES"):
        variables.pop(name, None)
    return subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True)


def plant(folder: Path, names: set[str]) -> Path:
    """Put modules of these names into a folder with texts; return the file in which each writes that it was run."""
    texts = folder / "texts"
    texts.mkdir(parents=True)
    novel = (ROOT / "data_pipelines/corpora/austen/train.txt").read_text().splitlines(keepends=True)
    (texts / "a.txt").write_text("".join(novel[:500]))
    (texts / "b.txt").write_text("".join(novel[500:1000]))
    ran = folder.parent / "ran"
    for name in names:
        shadow = SHADOW.format(marker=str(ran))
        (folder / f"{name}.py").write_text(shadow)
        if name in OURS:
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text(shadow)
    return ran


def loaded_by_python_itself(folder: Path) -> set[str]:
    """Return the modules that `python -m` loads before a module that is asked for."""
    (folder / "asked_for.py").write_text("import sys\nprint(*sys.modules)")
    printed = run([sys.executable, "-m", "asked_for"], folder)
    return {name.partition(".")[0] for name in printed.stdout.split()}


def console_program(folder: Path) -> Path:
    """Write the program that pip makes for the entry point of setup.cfg."""
    program = folder / "xlnet-jax"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom xlnet_jax.__main__ import console\n"
        "if __name__ == '__main__':\n    sys.exit(console())\n"
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("start", "command"),
    [
        ("the console program", TRAIN),
        ("-m xlnet_jax", "convert tiny out"),
        ("-m xlnet_jax.score", "tiny --sentences One."),
        ("-m data_pipelines.tokenizer", "show tiny"),
    ],
)
def test_a_command_imports_nothing_from_the_current_folder(tmp_path, start, command):
    """Python itself, by -m alone, searches it for the named package and for the modules by which it finds a package."""
    names = {*sys.stdlib_module_names, *packages_distributions(), *OURS}
    names, program = set(filter(str.isidentifier, names)), [sys.executable, *start.split()]
    if start.startswith("-m"):
        names -= loaded_by_python_itself(tmp_path) | set(OURS)
    else:
        program = [str(console_program(tmp_path))]
    assert {"queue", "typing", "numpy", "tyro"} <= names
    ran = plant(tmp_path / "here", names)
    ended = run([*program, *command.split()], tmp_path / "here")
    assert ended.returncode == 0, ended.stderr
    assert not ran.exists(), ran.read_text()


def test_a_program_that_imports_the_package_keeps_its_folder(tmp_path):
    (tmp_path / "mine.py").write_text("print('imported')")
    program = "import xlnet_jax, data_pipelines, mine"
    ended = run([sys.executable, "-c", program], tmp_path)
    assert ended.stdout == "imported\n", ended.stderr

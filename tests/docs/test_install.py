"""Every install line of the pages, the notebooks and the messages works in an empty environment."""

import ast
import configparser
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from data_pipelines.remote import EXTRAS as EXTRAS_OF_SCHEMES

ROOT = Path(__file__).parents[2]
FOLDERS, SUFFIXES = ("benchmarks", "data_pipelines", "docs", "launch", "xlnet_jax"), (".ipynb", ".md", ".py")
URL = "https://github.com/xlnet-jax/xlnet_jax"
LINE = re.compile(r"""pip install ((?:-\S+ )*(?:'[^'\n]+'|[\w.-]+(?: [\w-]+)*(?=[`;,:)\n]|\.?\s*$|\s+\#|\s\s)))""")
OWN = re.compile(r"(?:\.|/src|xlnet_jax)(?:\[([\w,-]+)\])?(?: @ .*)?")
"""This project, as a requirement"""


def texts_of(file):
    """Yield the texts in which a file may name a line: its strings, its cells or the whole file."""
    if file.suffix == ".py":
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield ast.unparse(node).replace("\\'", "'").strip("f\"'")
    elif file.suffix == ".ipynb":
        yield from ("".join(cell["source"]) for cell in json.loads(file.read_text())["cells"])
    else:
        yield file.read_text()


def install_lines():
    """Return the words after `pip install` of each distinct line, and the first file that has it."""
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.suffix in SUFFIXES]
    found: dict[tuple[str, ...], str] = {}
    for file in [*sorted(ROOT.glob("*.md")), *sorted(files)]:
        name = file.relative_to(ROOT).as_posix()
        for text in texts_of(file):
            for line in LINE.findall(text):
                schemes = EXTRAS_OF_SCHEMES.values() if "{EXTRAS[scheme]}" in line else [""]
                for extra in schemes:
                    found.setdefault(tuple(shlex.split(line.replace("{EXTRAS[scheme]}", extra))), name)
    return found


def packaging():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    return settings


def requirement_of(words):
    return [word for word in words if not word.startswith("-")]


def test_install_lines_name_this_project_by_its_place_and_extras_that_it_has():
    """It is on no index, so that `pip install xlnet_jax` finds nothing."""
    extras = {*packaging()["options.extras_require"]}
    lines = install_lines()
    assert {("-e", "."), ("-e", ".[plan]"), ("-e", ".[s3]"), ("-e", ".[tpu]"), ("torch", "transformers")} <= {*lines}
    wrong = []
    for words, file in lines.items():
        for name in requirement_of(words):
            own = OWN.fullmatch(name)
            at_a_place = name.startswith((".", "/src")) or name.endswith(f" @ git+{URL}")
            if own and (not at_a_place or not {*(own[1] or "base").split(",")} <= {*extras, "base"}):
                wrong.append(f"{file}: pip install {shlex.join(words)}")
    assert wrong == []
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    shown = {extra for page in pages for extra in re.findall(r"'\.\[([\w-]+)\]'", page.read_text())}
    assert shown <= extras
    table = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs/install.md").read_text(), re.MULTILINE)
    listed = {name for row in table for name in re.findall(r"`([\w-]+)`", row)}
    assert listed ^ extras == {"gpu", "package"}


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory):
    """Return the Python of a new environment."""
    folder = tmp_path_factory.mktemp("empty") / "environment"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin/python"


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Return a repository with the files of this checkout that an installation reads."""
    folder = tmp_path_factory.mktemp("clone") / "xlnet_jax"
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "xlnet_jax/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    identity = ["-c", "user.name=x", "-c", "user.email=x"]
    for words in (["init"], ["add", "--all"], [*identity, "commit", "--message", "x"]):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.long
def test_install_lines_work_in_an_empty_environment(empty_environment, clone, monkeypatch):
    """Without what they depend on, whose versions take pip minutes to choose; it is looked for package by package."""
    # The address leads to the clone.
    for name, value in {"COUNT": 1, "KEY_0": f"url.file://{clone}.insteadOf", "VALUE_0": URL}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", str(value))
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def refusal(words):
        command = [empty_environment, "-m", "pip", "install", "--dry-run", "--no-deps", *words]
        done = subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=300)
        return done.stderr if done.returncode else ""

    assert "No matching distribution found for xlnet_jax" in refusal(["xlnet_jax"])
    extras = packaging()["options.extras_require"]
    wanted = "\n".join([packaging()["options"]["install_requires"], *extras.values()])
    assert refusal(sorted({*filter(None, wanted.splitlines())})) == ""
    # Without dependencies pip does not look at extras: lines that differ in them alone run once.
    lines = {
        tuple(re.sub(r"^(\.)\[.*\]", r"\1", word.replace("/src", str(clone))) for word in words): file
        for words, file in install_lines().items()
    }
    assert [(file, words, why) for words, file in lines.items() if (why := refusal(words))] == []

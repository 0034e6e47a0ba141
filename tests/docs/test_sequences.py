"""The walks of docs/sequences.md run, each from the file that its Python writes to what its commands print."""

import contextlib
import io
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.docs.pictures import assert_same_picture
from xlnet_jax.__main__ import COMMANDS

PAGE = Path(__file__).parents[2] / "docs" / "sequences.md"
WALKS = ("Receptors", "Proteins", "Sessions", "Molecules")
SMALLER = "--steps 2 --data.batch-size 8 --eval.max-windows 8 --model.d-model 16 --model.d-head 4 --model.d-ff 16"
BLOCK = re.compile(r"^```(python|console|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
NEAR = 0.1  # nats, and share of a number: between machines, networks of some hundred steps differ


def walk(name: str) -> str:
    """Return the section of a walk. The first also makes the settings that all use."""
    (text,) = re.findall(rf"^## {name}\n(.*?)^## ", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return text


def examples_of(text: str) -> list[tuple[str, str, str]]:
    """Return (language, code or command, what it prints as the page shows it) of a section, in order."""
    found: list[tuple[str, str, str]] = []
    for language, block in BLOCK.findall(text):
        if language == "console":
            parts = re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]
            found += [("console", *part.split("\n", 1)) for part in parts]
        elif language == "text":
            found[-1] = (*found[-1][:2], block)
        else:
            found.append((language, block, ""))
    return found


def run(language: str, code: str, names: dict[str, object], smaller: str) -> str:
    """Run Python or a command, and return what it prints. smaller: words added to `train`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if language == "python":
            exec(code, names)
        elif code.startswith("python -m"):
            module, *words = _words_of(code)[2:]
            name = module.rpartition(".")[2]
            assert COMMANDS[name].main([*words, *shlex.split(smaller if name == "train" else "")]) == 0
        else:
            printed.write(subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout)
    return printed.getvalue()


def _words_of(command: str) -> list[str]:
    """Return the words of a command, with the quotes of bash, such as $'a\\tb'."""
    done = subprocess.run(["bash", "-c", rf"printf '%s\0' {command}"], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def is_like(said: str, printed: str) -> bool:
    """Return True if lines say the same with nearly the same numbers; an … of the page stands for anything."""
    parts = [re.escape(part) for part in NUMBER.sub("\0", said).split("…")]
    found = re.fullmatch(".*".join(parts).replace("\0", f"({NUMBER.pattern})"), printed)
    numbers = [
        [float(number.replace(",", "")) for number in of]
        for of in (NUMBER.findall(said), found.groups() if found else ())
    ]
    return bool(found) and all(abs(a - b) <= NEAR * max(1, abs(a)) for a, b in zip(*numbers, strict=True))


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Change to an empty folder with the settings that the walks share."""
    monkeypatch.chdir(tmp_path)
    exec(examples_of(walk(WALKS[0]))[0][1], {})


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKS)
def test_the_commands_of_a_walk_run(name, settings):
    names: dict[str, object] = {}
    for language, code, said in examples_of(walk(name)):
        printed = run(language, code, names, SMALLER)
        assert bool(printed) == bool(said), code


@pytest.mark.long
@pytest.mark.parametrize("name", WALKS)
def test_a_walk_prints_what_the_page_shows(name, settings):
    names: dict[str, object] = {}
    for language, code, said in examples_of(walk(name)):
        lines = run(language, code, names, "").splitlines()
        if ".generate" in code:  # draws are others where the last bits of a network are
            assert len(lines) == len(said.splitlines())
            continue
        for picture in re.findall(r"--out (\w+\.png)", code):
            assert_same_picture(Path.cwd() / picture)
        missing = [one for one in said.splitlines() if not any(is_like(one, line) for line in lines)]
        assert missing == [], code


def test_a_line_is_like_another_with_nearly_the_same_numbers():
    assert is_like("loss 0.783, … below", "loss 0.75, 1.5 below")
    assert not is_like("loss 0.783", "loss 0.95")
    assert not is_like("loss 0.783", "gain 0.783")

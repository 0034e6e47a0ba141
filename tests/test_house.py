"""Imports run down the house only, every command is a line of one table (picture: CONTRIBUTING.md), and an objective is
known by its record, not by its name."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.objectives.registry import OBJECTIVES

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[1]

# From the top down. Rooms on one floor do not import each other.
FLOORS = (
    ("commands",),
    ("xlnet_jax.comparison",),
    ("xlnet_jax.planning", "xlnet_jax.tasks"),
    ("xlnet_jax.inference", "xlnet_jax.training"),
    ("xlnet_jax.checkpoints",),
    ("xlnet_jax.interop",),
    ("xlnet_jax.objectives",),
    ("xlnet_jax.models",),
    ("xlnet_jax.kernels",),
    ("data_pipelines", "xlnet_jax.plots"),
    ("xlnet_jax.costs",),
    ("xlnet_jax.settings",),
    ("xlnet_jax.storage",),
    ("xlnet_jax.errors",),
    ("xlnet_jax.printing", "xlnet_jax.dims"),
)
DECODERS = {
    "json": ("load", "loads", "JSONDecoder"),
    "numpy": ("load", "fromfile", "memmap", "genfromtxt", "loadtxt"),
    "pickle": (),
    "marshal": (),
    "shelve": (),
    "yaml": (),
    "tomllib": (),
    "safetensors": (),
    "torch": ("load",),
}
"""What turns the content of a file into values, by its library; () = anything in it"""
READERS = {
    "xlnet_jax/storage/reading.py": {"json"},
    "xlnet_jax/settings/parser.py": {"json"},  # keeps names that stand twice
    "xlnet_jax/interop/hf_files.py": {"safetensors", "torch"},
}
"""Modules that decode what may be damaged or hostile, and the libraries that they may do it by"""
NOT_COMMANDS = ("__init__", "costs", "__main__", "dims", "errors", "printing")
LONGEST_COMMAND = 8  # lines
DYNAMIC = ("import_module", "__import__")
RIDDLES = ("Of", "The same", "What", "Those", "That", "It", "Its", "How", "As", "By")
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


class Import(NamedTuple):
    file: Path
    line: int
    module: str


def room_of(module: str) -> str:
    """The room of a dotted module name; commands are the modules at the top of xlnet_jax, and every __main__."""
    parts = module.split(".")
    if parts[-1] == "__main__":
        return "commands"
    if parts[0] == "data_pipelines":
        return "data_pipelines"
    room = ".".join(parts[:2])
    return room if room in FLOOR else "commands"


def sources() -> Iterator[tuple[Path, str]]:
    """(file, dotted name) of every module of the two packages but `xlnet_jax/__init__`, which resolves public names."""
    for package in ("xlnet_jax", "data_pipelines"):
        for file in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if name != "xlnet_jax":
                yield file, name


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def imports_of(file: Path) -> Iterator[Import]:
    """Every import of this project in a file: at its top, inside functions, under TYPE_CHECKING, and as a string."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if is_module(name) else str(node.module) for name in whole]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in DYNAMIC:
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        else:
            continue
        for name in names:
            if is_project(name) and name != "xlnet_jax":
                yield Import(file, node.lineno, name)


def is_project(name: str) -> bool:
    head, dot, rest = name.partition(".")
    return (
        head in ("xlnet_jax", "data_pipelines") and all(part.isidentifier() for part in rest.split(".")) and bool(dot)
    )


def test_imports_run_down_only():
    up = []
    for file, name in sources():
        here = room_of(name)
        for found in imports_of(file):
            there = room_of(found.module)
            if here != there and FLOOR[there] <= FLOOR[here]:
                up.append(f"{file.relative_to(ROOT)}:{found.line}: {here} imports {found.module}")
    assert not up, "imports that do not run down:\n" + "\n".join(up)


def test_every_command_is_a_line_of_the_table_and_its_module_only_names_it():
    """The work of a command is a function of its settings, which needs no command line."""
    of_packages = set(ROOT.glob("data_pipelines/*/__main__.py"))
    of_top = {path for path in (ROOT / "xlnet_jax").glob("*.py") if path.stem not in NOT_COMMANDS}
    files = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in of_packages | of_top}
    modules = {path: name.removesuffix(".__main__") for path, name in files.items()}
    assert sorted(modules.values()) == sorted(command.module for command in COMMANDS.values())
    assert [name for name, command in COMMANDS.items() if command.module.rpartition(".")[2] != name] == []
    for file, module in modules.items():
        name = module.rpartition(".")[2]
        assert (ast.get_docstring(ast.parse(file.read_text())) or "").startswith(f"python -m {module}"), file
        assert f'COMMANDS["{name}"].run()' in file.read_text()
        assert len(file.read_text().splitlines()) <= LONGEST_COMMAND, f"{file}: its work belongs into a room"
    for command in COMMANDS.values():
        for what in filter(None, (command.settings, command.function, command.parser)):
            module, _, name = what.partition(":")
            assert hasattr(import_module(module), name), what


def compared_strings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Every string that something is compared with or looked up by: in comparisons, patterns, keys and subscripts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts: list[ast.AST | None] = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            parts = list(node.keys)
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        else:
            continue
        for part in filter(None, parts):
            yield from (c for c in ast.walk(part) if isinstance(c, ast.Constant) and isinstance(c.value, str))


def test_no_objective_is_chosen_by_its_name():
    """The record of an objective says what the objective needs (xlnet_jax/objectives/record.py)."""
    names = {record.name for record in OBJECTIVES}
    own = {ROOT / package / "objectives" for package in ("xlnet_jax", "data_pipelines")}
    found = [
        f"{file.relative_to(ROOT)}:{constant.lineno}: {constant.value}"
        for file, _ in sources()
        if not own & set(file.parents)
        for constant in compared_strings(ast.parse(file.read_text()))
        if constant.value in names
    ]
    assert not found, "names of objectives that are compared:\n" + "\n".join(found)


def test_comparisons_are_found_in_all_their_forms():
    text = """
a == "x", b in ("y", "x"), {"x": 1}, c["x"], f("x")
match d:
    case "x" | "z": pass
"""
    found = [constant.value for constant in compared_strings(ast.parse(text))]
    assert sorted(found) == [*5 * "x", "y", "z"]


def test_contributing_draws_the_rooms_in_their_order():
    (picture,) = re.findall(r"## The house\n.*?```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    drawn = [
        name for name in re.findall(r"(?:^|(?<=\s\s))(\w+)(?=\s\s|$)", picture, re.MULTILINE) if not name.isdigit()
    ]
    floors = [[room.removeprefix("xlnet_jax.") for room in floor] for floor in FLOORS]
    found = [name for name in drawn if any(name in floor for floor in floors)]
    assert [sorted(found.pop(0) for _ in floor) for floor in floors] == [sorted(floor) for floor in floors]
    folders = {path.name for path in (ROOT / "xlnet_jax").iterdir() if (path / "__init__.py").exists()}
    assert folders <= {room for floor in floors for room in floor}


def documented(file: Path) -> Iterator[tuple[int, str]]:
    """(line, docstring) of the module, and of every class and function in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def test_docstrings_open_with_a_verb_or_the_thing_they_describe():
    riddles = [
        f'{file.relative_to(ROOT)}:{line}: "{text.partition(chr(10))[0]}"'
        for folder in ("xlnet_jax", "data_pipelines", "benchmarks", "launch", "tests")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, text in documented(file)
        if text.startswith(tuple(f"{words} " for words in RIDDLES))
    ]
    assert not riddles, f"{len(riddles)} docstrings open with a word that names nothing:\n" + "\n".join(riddles)


def decoders_in(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield (line, library, name) of everything in DECODERS that a module uses, by whatever name it is imported."""
    libraries = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                library = alias.name.partition(".")[0]
                libraries[alias.asname or library] = library
                if DECODERS.get(library) == ():
                    yield node.lineno, library, alias.name
        elif isinstance(node, ast.ImportFrom) and (library := str(node.module).partition(".")[0]) in DECODERS:
            names = DECODERS[library]
            yield from ((node.lineno, library, alias.name) for alias in node.names if not names or alias.name in names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            library = libraries.get(node.value.id, "")
            if node.attr in DECODERS.get(library, ()):
                yield node.lineno, library, node.attr


def test_what_files_hold_is_decoded_by_the_readers_alone():
    """storage/reading.py refuses what is damaged, too large or no file in one line: no caller can forget to."""
    found = [
        f"{path}:{line}: {library}.{name}"
        for file, _ in sources()
        for line, library, name in decoders_in(ast.parse(file.read_text()))
        if library not in READERS.get(path := str(file.relative_to(ROOT)), ())
    ]
    assert not found, "use read_json, decode_json, read_array or read_arrays of storage/reading.py:\n" + "\n".join(
        found
    )


def test_decoders_are_found_by_any_name():
    text = """
import json as j, numpy as np, pickle, safetensors.numpy
from json import loads as parse
import torch
j.loads(x), np.load(x), np.save(x), torch.load(x), j.dumps(x), other.load(x)
"""
    found = sorted(name for _, _, name in decoders_in(ast.parse(text)))
    assert found == ["load", "load", "loads", "loads", "pickle", "safetensors.numpy"]

"""Imports run down the house only, every command is a line of one table (picture: CONTRIBUTING.md), and an objective is
known by its record, not by its name."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from xlnet_jax import PUBLIC
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.objectives.records import OBJECTIVES

pytestmark = pytest.mark.contract

ROOT = Path(__file__).parents[1]

# From the top down. Rooms on one floor do not import each other.
FLOORS = (
    ("commands",),
    ("measurement", "serving"),
    ("planning", "tasks"),
    ("training",),
    ("inference",),
    ("checkpoints",),
    ("interop",),
    ("objectives",),
    ("models",),
    ("kernels",),
    ("plots",),
    ("data_pipelines",),
    ("costs",),
    ("settings",),
    ("storage",),
    ("errors",),
    ("printing", "dims"),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
NOT_COMMANDS = ("__init__", "costs", "__main__", "dims", "errors", "printing", "start")
LONGEST_COMMAND = 8  # lines
NAMES_OF_OBJECTIVES = {
    "xlnet_jax/measurement/compare_settings.py": "what is compared by default",
    "xlnet_jax/interop/contents.py": "the objective of a checkpoint that others trained",
    "xlnet_jax/settings/config.py": "the default",
}
"""Files outside of the objectives that may name one, and why"""


@functools.cache
def trees() -> dict[str, ast.Module]:
    files = [*(ROOT / "xlnet_jax").rglob("*.py"), *(ROOT / "data_pipelines").rglob("*.py")]
    return {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text()) for file in sorted(files)}


def room_of(module: str) -> str:
    """Return the room of a dotted module name; commands are the modules at the top of xlnet_jax, and every __main__."""
    package, *parts = module.split(".")
    if parts[-1:] == ["__main__"]:
        return "commands"
    if package == "data_pipelines":
        return package
    return parts[0] if parts and parts[0] in FLOOR else "commands"


def imports_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of every import of this project: at the top, inside functions, and as a string."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        for name in names:
            if re.fullmatch(r"(xlnet_jax|data_pipelines)(\.\w+)+", name):
                yield node.lineno, name


def test_imports_run_down_only():
    up = []
    for file, tree in trees().items():
        here = room_of(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        for line, module in imports_of(tree) if file != "xlnet_jax/__init__.py" else ():
            if here != (there := room_of(module)) and FLOOR[there] <= FLOOR[here]:
                up.append(f"{file}:{line}: {here} imports {module}")
    assert not up, "imports that do not run down:\n" + "\n".join(up)


def test_only_what_jax_publishes_is_imported():
    found = [
        f"{file}:{node.lineno}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and re.search(r"\bjax(\._src|\.interpreters|lib)\b", ast.unparse(node))
    ]
    assert not found, f"private modules of jax: {found}"


def test_every_command_is_a_line_of_the_table_and_its_module_only_names_it():
    """The work of a command is a function of its settings, which needs no command line."""
    of_top = [path for path in (ROOT / "xlnet_jax").glob("*.py") if path.stem not in NOT_COMMANDS]
    files = {path.relative_to(ROOT).as_posix(): path for path in [*ROOT.glob("data_pipelines/*/__main__.py"), *of_top]}
    modules = {re.sub(r"(/__main__)?\.py$", "", n).replace("/", "."): path.read_text() for n, path in files.items()}
    assert sorted(modules) == sorted(command.module for command in COMMANDS.values())
    for module, text in modules.items():
        name = module.rpartition(".")[2]
        assert text.startswith(f'"""python -m {module}')
        assert f'start("{name}", __name__)' in text
        assert len(text.splitlines()) <= LONGEST_COMMAND, f"{module}: its work belongs into a room"
    for name, command in COMMANDS.items():
        assert command.module.rpartition(".")[2] == name
        assert callable(command.load()[1])


def test_no_objective_is_chosen_by_its_name():
    """The record of an objective says what the objective needs (xlnet_jax/objectives/records.py)."""
    names = {record.name for record in OBJECTIVES}
    found = [
        f"{file}:{node.lineno}: {node.value}"
        for file, tree in trees().items()
        if "/objectives/" not in file and file not in NAMES_OF_OBJECTIVES
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert not found, "names of objectives:\n" + "\n".join(found)


def test_no_network_is_chosen_by_its_name():
    """What networks differ in are properties of their settings (ModelConfig), or rows of a table; only the formats of
    Hugging Face know the names of BERT's family."""
    found = [
        f"{file}:{node.lineno}: {ast.unparse(node)}"
        for file, tree in trees().items()
        if not file.startswith("xlnet_jax/interop/hf_")
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and {getattr(n, "value", "") for n in ast.walk(node)} & {"bert", "xlnet", "roberta", "albert", "electra"}
    ]
    assert not found, "names of networks:\n" + "\n".join(found)


def test_contributing_draws_the_rooms_in_their_order():
    (picture,) = re.findall(
        r"## Layers of the code\n.*?```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
    )
    drawn = [name for name in re.findall(r"(?:^|(?<=\s\s))(\w+)(?=\s\s|$)", picture, re.MULTILINE) if name in FLOOR]
    assert sorted(drawn) == sorted(FLOOR)
    assert [FLOOR[name] for name in drawn] == sorted(FLOOR.values())
    assert {path.parent.name for path in (ROOT / "xlnet_jax").glob("*/__init__.py")} <= {*FLOOR}


def test_no_class_name_stands_twice():
    named: dict[str, list[str]] = {}
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                named.setdefault(node.name.lstrip("_"), []).append(file)
    assert not {name: files for name, files in named.items() if len(files) > 1}


def test_no_two_files_import_each_other():
    """Imports inside functions count too; those for types alone do not."""
    names = {file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file in trees()}
    edges = set()
    for file, tree in trees().items():
        for_types = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
        skipped = {line for node in for_types for line in range(node.lineno, (node.end_lineno or 0) + 1)}
        for line, module in imports_of(tree):
            other = names.get(module) or names.get(module.rpartition(".")[0])  # a module, or a name in one
            if other and line not in skipped and file != "xlnet_jax/__init__.py":
                edges.add((file, other))
    both = {(a, b) for a, b in edges if a < b and (b, a) in edges}
    assert not both, f"files that import each other: {sorted(both)}"


def test_type_checkers_see_every_public_name():
    stub = ast.parse((ROOT / "xlnet_jax/__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    assert {alias.asname: node.module for node in imports for alias in node.names} == PUBLIC

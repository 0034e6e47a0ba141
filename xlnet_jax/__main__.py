"""python -m xlnet_jax: the commands, each with what it does; python -m xlnet_jax COMMAND … runs one of them.

`xlnet-jax` is the same program, installed with the package.
"""

import ast
import difflib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from xlnet_jax import __version__
from xlnet_jax.api import command
from xlnet_jax.errors import InputError

ROOT = Path(__file__).resolve().parents[1]


def commands() -> dict[str, tuple[str, str]]:
    """Return (module, line about it) of each command by its name, read from the docstrings: nothing is imported."""
    found = {}
    for file in (*sorted(ROOT.glob("data_pipelines/*/__main__.py")), *sorted(ROOT.glob("xlnet_jax/*.py"))):
        module, _, about = (ast.get_docstring(ast.parse(file.read_text())) or "").partition(": ")
        if module.startswith("python -m ") and file != Path(__file__).resolve():
            module = module.removeprefix("python -m ")
            found[module.rpartition(".")[2]] = module, " ".join(about.split())
    return found


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """List the commands, or run the one that the first word names; return the exit code."""
    known = commands()
    name, *rest = argv or ["--help"]
    if name in ("-h", "--help"):
        print("xlnet-jax COMMAND, python -m xlnet_jax COMMAND or python -m MODULE; each has --help; also --version\n")
        for name, (module, about) in known.items():
            print(f"  {name:10} {module:26} {about}")
        return 0
    if name == "--version":
        print(f"xlnet_jax {__version__}")
        return 0
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
        raise InputError(f"no command is called {name}: {hint}")
    sys.argv[1:] = rest
    runpy.run_module(known[name][0], run_name="__main__", alter_sys=True)  # ends this process
    return 0


def console() -> None:
    """Run the program `xlnet-jax` and exit."""
    command.run(main)


if __name__ == "__main__":
    console()

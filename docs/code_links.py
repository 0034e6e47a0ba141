"""Keep the line numbers in the links of pages to code.

A page links to a definition by the end of its file's path and by its name, and this module writes the line:

    [models/masks.py: rank_relations](../xlnet_jax/models/masks.py#L25)
"""

import ast
import re
from functools import cache
from pathlib import Path

LINK = re.compile(r"\[([\w/]+\.py): ([\w.]+)\]\(([\w/.]+\.py)(?:#L\d+)?\)")


def with_lines(text: str, page: Path) -> str:
    """Return the text of a page with the lines of the definitions that it names. Raises KeyError for a definition that
    is not in the file, and FileNotFoundError for a file that is not there."""

    def link(found: re.Match[str]) -> str:
        shown, name, path = found.groups()
        if not path.endswith(shown):
            raise KeyError(f"{page.name}: {shown} does not name the file {path}")
        lines = lines_of((page.parent / path).resolve())
        if name not in lines:
            raise KeyError(f"{page.name}: {path} defines no {name}: give the name that it has now")
        return f"[{shown}: {name}]({path}#L{lines[name]})"

    return LINK.sub(link, text)


@cache
def lines_of(file: Path) -> dict[str, int]:
    """Return the lines of the functions, classes and methods of a file. A method is named as Class.method."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = {}
    for node in (node for node in ast.parse(file.read_text()).body if isinstance(node, kinds)):
        found[node.name] = node.lineno
        found |= {f"{node.name}.{inner.name}": inner.lineno for inner in node.body if isinstance(inner, kinds)}
    return found

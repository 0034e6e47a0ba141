"""Hooks of the documentation site (mkdocs.yml): pages from outside docs/, links out of it, and the reference pages.

The pages are written to be read in the repository as well: links are relative paths there.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from posixpath import normpath
from typing import get_args, get_type_hints

import griffe
from mkdocs.structure.files import File

from xlnet_jax import PUBLIC
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.settings.fields import fields_of

ROOT = Path(__file__).resolve().parents[1]
FROM_OUTSIDE = {
    "README.md": "first_run.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the repository that the site shows too, by the name that each has there."""
_LINK = re.compile(r"(\]\()([^)\s#]+)([^)\s]*\))")
_PUBLIC_NAME = re.compile(r"^::: (\w+)$", re.MULTILINE)
_TABLE = re.compile(r"^::: settings (of|added by) (\w+)$", re.MULTILINE)


def on_files(files, config):
    """Add the pages that lie outside docs/."""
    for source, name in FROM_OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Point links to the site's own pages or to the repository, and expand the lines of the reference pages."""
    place = Path({name: source for source, name in FROM_OUTSIDE.items()}.get(page.file.src_uri, "docs/any.md")).parent
    of_the_repository = f"{config.repo_url}/blob/main/"
    images_of_the_repository = f"{config.repo_url}/raw/main/"

    def site_link(link: re.Match) -> str:
        target = link[2]
        if target.startswith((of_the_repository, images_of_the_repository)):
            path = target.removeprefix(of_the_repository).removeprefix(images_of_the_repository)
        elif "://" in target:
            return link[0]
        else:
            path = normpath((place / target).as_posix())
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {target}, and there is no {path}")
        if path in FROM_OUTSIDE:
            return link[1] + FROM_OUTSIDE[path] + link[3]
        if path.startswith("docs/"):
            return link[1] + path.removeprefix("docs/") + link[3]
        return link[1] + of_the_repository + path + link[3]

    markdown = _TABLE.sub(lambda line: _settings_table(line[1], line[2]), _LINK.sub(site_link, markdown))
    return _PUBLIC_NAME.sub(lambda line: _reference(line[1]), markdown)


def _reference(name: str) -> str:
    """Return the line of mkdocstrings for a public name; settings.md has the fields of settings."""
    members = "\n      members: false" if name.endswith(("Config", "Settings")) else ""
    return f"::: {PUBLIC[name]}.{name}\n    options:\n      heading: {name}\n      toc_label: {name}{members}\n"


def _settings_table(which: str, command: str) -> str:
    """Return a table of the settings of a command, those of the dataclasses in it with dotted names; of several
    dataclasses, those of the first.

    which: "of" = all its settings; "added by" = without inherited ones.
    """
    module, _, name = COMMANDS[command].settings.partition(":")
    kind = getattr(import_module(module), name)
    kind = next(iter(get_args(kind)), kind)
    fields = [f for f in fields_of(kind) if which == "of" or f.name in vars(kind)["__annotations__"]]
    rows = (f"| `--{flag}` | {default} | {_cell(about)} |\n" for flag, default, about in _settings(kind, fields))
    return "| setting | default | |\n|---|---|---|\n" + "".join(rows)


def _settings(kind: type, fields: Sequence[dataclasses.Field], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield flag, default and docstring of each field, and of the fields of a dataclass in it."""
    hints = get_type_hints(kind)
    for field in fields:
        flag = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _settings(hints[field.name], fields_of(hints[field.name]), f"{flag}.")
        else:
            yield flag, _default(field), _about(kind, field.name)


def _about(kind: type, field: str) -> str:
    """Return the docstring below a field, of the class or of the one that it inherits the field from."""
    owner = next(base for base in kind.__mro__ if field in vars(base).get("__annotations__", ()))
    docstring = _source(owner.__module__)[owner.__qualname__][field].docstring
    return docstring.value if docstring else ""


@functools.cache
def _source(module: str) -> griffe.Module:
    return griffe.visit(module, Path(import_module(module).__file__), Path(import_module(module).__file__).read_text())


def _default(field: dataclasses.Field) -> str:
    if field.default is dataclasses.MISSING:
        return "" if field.default_factory is dataclasses.MISSING else f"`{field.default_factory()}`"
    return f"`{field.default}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

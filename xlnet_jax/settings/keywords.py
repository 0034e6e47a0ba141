"""Settings as keywords of a Python function: names of fields, and sections as dictionaries, as in
`steps=200, optimizer={"learning_rate": 1e-4}` for --steps 200 --optimizer.learning-rate 1e-4."""

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, cast, get_type_hints

from xlnet_jax.errors import InputError
from xlnet_jax.settings.bounds import check_bounds
from xlnet_jax.settings.fields import T, flatten


def with_keywords(start: T, given: Mapping[str, Any]) -> T:
    """Return the settings with some fields replaced. A section takes another, or a dictionary of fields to replace; a
    field of several values takes one value, or any list.

    Raises InputError on a field that does not exist, with the nearest name, and on a value of another type or out of
    its bounds.
    """
    changed = _changed(with_plain_paths(start), given, "")
    check_bounds(changed)
    if hasattr(changed, "given"):
        changed = dataclasses.replace(changed, given=changed.given | names_of(given))
    return changed


def with_plain_paths(settings: T) -> T:
    """Return settings with text in place of paths, as they are compared and stored."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(cast(Any, settings)):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            plain: Any = with_plain_paths(value)
        else:
            plain = tuple(map(_plain, value)) if isinstance(value, tuple) else _plain(value)
        if plain != value:
            changed[field.name] = plain
    return dataclasses.replace(cast(Any, settings), **changed) if changed else settings


def names_of(given: Mapping[str, Any]) -> frozenset[str]:
    """Return the dotted names of the settings that keywords give, spelled as flags are; a whole section gives all of
    its own."""
    names: set[str] = set()
    for name, value in given.items():
        dotted = name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            names.update(setting.name for setting in flatten(value, f"{dotted}."))
        elif isinstance(value, Mapping):
            names.update(f"{dotted}.{inner}" for inner in names_of(value))
        else:
            names.add(dotted)
    return frozenset(names)


def _changed(start: Any, given: Mapping[str, Any], where: str) -> Any:
    hints, values = get_type_hints(type(start)), {}
    hints.pop("given", None)
    for name, value in given.items():
        if name not in hints:
            near = difflib.get_close_matches(name, hints, 1)
            hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(hints)}"
            raise InputError(f"there is no setting `{where}{name}`: {hint}")
        there = getattr(start, name)
        if dataclasses.is_dataclass(there) and isinstance(value, Mapping):
            values[name] = _changed(there, value, f"{where}{name}.")
        elif dataclasses.is_dataclass(there) and type(value) is not type(there):
            raise InputError(f"`{where}{name}` is a section: give a dictionary of its settings")
        elif isinstance(there, tuple):
            several = value if isinstance(value, list | tuple) else [value]
            values[name] = tuple(_plain(one) for one in several)
        else:
            values[name] = _plain(value)
    return dataclasses.replace(start, **values)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, PurePath) else value

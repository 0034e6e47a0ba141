"""Settings as plain data: by their dotted names, as JSON, and compared."""

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar

from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import RunConfig

T = TypeVar("T")
R = TypeVar("R", bound=RunConfig)

GONE = {"data.is-next": "data.pair-loss next"}
"""Settings of earlier versions, and what has taken their place."""


def flatten(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, bool]]:
    """(dotted name as on the command line, value, is it operational) of every setting."""
    for f in dataclasses.fields(config):
        value, name = getattr(config, f.name), prefix + f.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            yield from flatten(value, name + ".")
        else:
            yield name, value, f.metadata.get("operational", False)


def to_dict(config: Any) -> dict[str, Any]:
    """The settings as nested plain types: what config.json holds."""

    def plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in items}

    return dataclasses.asdict(config, dict_factory=plain)


def from_dict(kind: type[T], values: dict[str, Any]) -> T:
    """The inverse of `to_dict`, for settings of this kind. Unknown keys are an error that names them; missing ones take
    their defaults."""

    def build(default: Any, given: dict[str, Any], where: str) -> Any:
        known = {f.name for f in dataclasses.fields(default)}
        given = {name: value for name, value in given.items() if not _is_gone(f"{where}.{name}", value)}
        if unknown := sorted(given.keys() - known):
            raise InputError(f"{where}: unknown setting {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        read: dict[str, Any] = {}
        for name, value in given.items():
            if dataclasses.is_dataclass(there := getattr(default, name)):
                value = build(there, value, f"{where}.{name}")
            read[name] = tuple(value) if isinstance(value, list) else value  # JSON knows no tuples
        return dataclasses.replace(default, **read)

    return build(kind(), values, "config")


def _is_gone(name: str, value: Any) -> bool:
    """A setting of an earlier version that asked for nothing. InputError where it asked for something."""
    if (instead := GONE.get(name.removeprefix("config.").replace("_", "-"))) and value:
        raise InputError(f"{name} {value} is of an earlier version: --{instead} has taken its place, in a new run")
    return bool(instead)


def identity_difference(ours: R, theirs: R) -> list[str]:
    """'name: their value -> our value' for each identity setting in which two runs differ."""
    operational_here = ("preset",) if ours.optimizer.decay_steps is None else ("preset", "steps")
    return [
        f"{name}: {old!r} there, {new!r} here"
        for (name, new, is_operational), (_, old, _) in zip(flatten(ours), flatten(theirs), strict=True)
        if new != old and not (is_operational or name in operational_here)
    ]

"""Settings as plain data: to and from dictionaries, and the difference between two runs."""

import dataclasses
from typing import Any, TypeVar, cast, get_type_hints

from xlnet_jax.errors import InputError, shown
from xlnet_jax.printing import without_secrets
from xlnet_jax.settings.config import RunConfig
from xlnet_jax.settings.fields import T, differences, fields_of
from xlnet_jax.settings.typed import typed

R = TypeVar("R", bound=RunConfig)


def to_dict(config: Any) -> dict[str, Any]:
    """Return the settings as nested plain types, URLs without what may give access: the content of config.json."""

    def plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
        public = ((name, without_secrets(value)) for name, value in items if name != "given")
        return {name: list(value) if isinstance(value, tuple) else value for name, value in public}

    return dataclasses.asdict(config, dict_factory=plain)


def from_dict(kind: type[T], values: dict[str, Any]) -> T:
    """Return settings of this kind from the dictionaries of `to_dict`; missing keys take their defaults.

    Raises InputError on unknown keys and on values of another type, and names them.
    """

    return over(kind(), values, "config")


def over(default: T, values: Any, where: str) -> T:
    """Return settings with the values of a dictionary of `to_dict` in place of their own. where: their name in errors.

    Raises InputError as `from_dict`.
    """
    hints = get_type_hints(type(default))
    known = {field.name: hints[field.name] for field in fields_of(default)}
    if not isinstance(values, dict):
        raise InputError(f"{where}: {shown(values)} stands where its settings belong")
    if unknown := sorted(values.keys() - known.keys()):
        raise InputError(f"{where}: unknown setting {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    read: dict[str, Any] = {}
    for name, value in values.items():
        if dataclasses.is_dataclass(there := getattr(default, name)):
            read[name] = over(there, value, f"{where}.{name}")
            continue
        try:
            read[name] = typed(value, known[name])
        except TypeError as wanted:
            raise InputError(f"{where}.{name} {shown(value)}: it must be {wanted}") from None
    return dataclasses.replace(cast(Any, default), **read)


def identity_difference(ours: R, theirs: R) -> list[str]:
    """Return 'name: their value there, our value here' for each identity setting in which two runs differ."""
    own_schedule = ours.optimizer.decay_steps is not None  # otherwise the schedule ends with the run
    return [
        f"{setting.name}: {old!r} there, {setting.value!r} here"
        for setting, old in differences(ours, theirs)
        if not (setting.has("operational") or (own_schedule and setting.name == "steps"))
    ]

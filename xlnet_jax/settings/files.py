"""Settings as plain data: to and from dictionaries, values of JSON and of Python against the types of settings, and the
difference between two runs.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, TypeVar, get_args, get_origin

from xlnet_jax.errors import InputError, shown
from xlnet_jax.printing import without_secrets
from xlnet_jax.settings.bounds import describe_type, has_type
from xlnet_jax.settings.config import RunConfig
from xlnet_jax.settings.fields import T, differences, flatten, nearest, with_values


def typed(value: Any, hint: Any) -> Any:
    """Return a value of JSON or of Python as the type of a setting: a list, or one value, as a tuple, a whole number as
    a number, a path as text. Raises TypeError with the type in words."""
    several = next((option for option in (hint, *get_args(hint)) if get_origin(option) is tuple), None)
    if several and value is not None:
        values = value if isinstance(value, list | tuple) else [value]
        value = tuple(_plain(each, get_args(several)[0]) for each in values)
    else:
        value = _plain(value, hint)
    if not has_type(value, hint):
        raise TypeError(describe_type(hint))
    return value


def _plain(value: Any, hint: Any) -> Any:
    options = get_args(hint) or (hint,)
    if type(value) is int and float in options and int not in options:
        return float(value)
    return str(value) if isinstance(value, PurePath) else value


def list_of_texts(texts: str | Iterable[str], name: str = "texts") -> list[str]:
    """Return texts as a list; a single one is a list of one. name: of the argument, for errors.

    Raises InputError where anything among them is no text.
    """
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable) or hasattr(texts, "columns"):
        raise InputError(f"`{name}` is a list of texts, and not {shown(texts)}")
    found = list(texts)
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise InputError(f"`{name}`: number {number}, from 0, is no text, but {shown(text)}")
    return found


R = TypeVar("R", bound=RunConfig)


def to_dict(config: Any) -> dict[str, Any]:
    """Return the settings as nested plain types, URLs without what may give access: the content of config.json."""

    def plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
        public = ((name, without_secrets(value)) for name, value in items if name != "given")
        return {name: list(value) if isinstance(value, tuple) else value for name, value in public}

    return dataclasses.asdict(config, dict_factory=plain)


def from_dict(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return settings of this kind from the dictionaries of `to_dict`; missing keys take their defaults. Raises
    InputError as `over`."""
    return over(kind(), values, "config.")


def over(default: T, values: Mapping[str, Any], where: str) -> T:
    """Return settings with the values of nested dictionaries in place of their own. where: what errors put before
    names.

    Raises InputError, with the name, on unknown settings and on values of another type.
    """
    return with_values(default, read_values(default, dict(dotted(values)), where))


def dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dictionaries, and of sections as dataclasses, by their dotted names in Python's
    spelling."""
    for key, value in values.items():
        name = prefix + key.replace("-", "_")
        if isinstance(value, Mapping):
            yield from dotted(value, f"{name}.")
        elif dataclasses.is_dataclass(value):
            yield from ((setting.python_name, setting.value) for setting in flatten(value, f"{name}."))
        else:
            yield name, value


def read_values(settings: Any, values: Mapping[str, Any], where: str, quote: str = "") -> dict[str, Any]:
    """Return values, by dotted names, with the types that they have in these settings. where, quote: what errors put
    before a name, and around it. Raises InputError as `over`."""
    hints, read = {setting.python_name: setting.hint for setting in flatten(settings)}, {}
    for name, value in values.items():
        shown_name = f"{where}{quote}{name}{quote}"
        if name not in hints:
            near, is_section = nearest(name, hints), any(known.startswith(f"{name}.") for known in hints)
            hint = f"did you mean {near}?" if near else "docs/settings.md lists them all"
            hint = "a section takes a dictionary" if is_section else hint
            raise InputError(f"{shown_name} is no setting: {hint}")
        try:
            read[name] = typed(value, hints[name])
        except TypeError as wanted:
            words = str(wanted) if quote else str(wanted).replace("None", "null")  # as Python or JSON calls it
            raise InputError(f"{shown_name} {shown(value)}: give {words}") from None
    return read


def identity_difference(ours: R, theirs: R) -> list[str]:
    """Return 'name: their value there, our value here' for each identity setting in which two runs differ."""
    own_schedule = ours.optimizer.decay_steps is not None  # otherwise the schedule ends with the run
    return [
        f"{setting.name}: {old!r} there, {setting.value!r} here"
        for setting, old in differences(ours, theirs)
        if not (setting.has("operational") or (own_schedule and setting.name == "steps"))
    ]

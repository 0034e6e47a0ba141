"""Settings as plain data: to and from dictionaries, values of JSON against the types of settings, and the difference
between two runs.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from xlnet_jax.errors import InputError, shown
from xlnet_jax.printing import without_secrets
from xlnet_jax.settings.config import RunConfig
from xlnet_jax.settings.fields import T, differences, fields_of

_IN_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "null"}


def typed(value: Any, hint: Any) -> Any:
    """Return a value of JSON as this type. Raises TypeError with the type in words."""
    options = _options(hint)
    for option in options:
        if get_origin(option) is tuple:
            element = get_args(option)[0]
            try:
                return tuple(typed(each, element) for each in (value if isinstance(value, list) else [value]))
            except TypeError:
                continue
        if get_origin(option) is Literal:
            if any(value == choice and type(value) is type(choice) for choice in get_args(option)):
                return value
        elif option is Path and isinstance(value, str):
            return Path(value)
        elif type(value) is option or (option is float and type(value) is int):
            return option(value) if option is float else value
    raise TypeError(" or ".join(_in_words(option) for option in options))


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


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _in_words(option: Any) -> str:
    if get_origin(option) is tuple:
        return f"a list, each {' or '.join(_in_words(each) for each in _options(get_args(option)[0]))}"
    if get_origin(option) is Literal:
        return f"one of {', '.join(json.dumps(choice) for choice in get_args(option))}"
    return _IN_WORDS.get(option, "a text")


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

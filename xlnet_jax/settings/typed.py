"""Check values of JSON against the types of settings, and texts that Python code gives."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from xlnet_jax.errors import InputError, shown

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

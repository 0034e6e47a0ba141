"""Check values by type hints: of settings, and of the arguments of public functions, so that a wrong one ends in one
line that names it."""

import ast
import dataclasses
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from xlnet_jax.errors import InputError, shown

_WORDS = {
    str: "text",
    Path: "a path",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    NoneType: "None",
}
_PLAIN = {bool: bool, int: Integral, float: Real, Path: os.PathLike}


def has_type(value: Any, hint: Any) -> bool:
    """Return True if a value has the type of a hint. True and False are not numbers, and a text is not a list."""
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(hint, TypeVar):
        return has_type(value, hint.__bound__ or Any)
    if origin in (Union, UnionType):
        return any(has_type(value, option) for option in args)
    if origin is Annotated:
        return has_type(value, args[0])
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in args)
    if origin is Callable:
        return callable(value)
    if isinstance(origin, type):
        if not isinstance(value, origin) or (
            not issubclass(origin, Mapping) and isinstance(value, str | bytes | Mapping)
        ):
            return False
        # In a list of texts, `list_of_texts` names the element that is not a text.
        is_nested = args[1:] in ((), (...,)) and (origin is tuple or args[0] is not str)
        return not is_nested or not isinstance(value, list | tuple) or all(has_type(each, args[0]) for each in value)
    if hint is Any or not isinstance(hint, type) or getattr(hint, "_is_protocol", False):
        return True
    if isinstance(value, bool) and hint in (int, float):
        return False
    return isinstance(value, _PLAIN.get(hint, hint))


def describe_type(hint: Any) -> str:
    """Return a hint in words."""
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(hint, TypeVar):
        return describe_type(hint.__bound__)
    if origin in (Union, UnionType):
        return " or ".join(map(describe_type, args))
    if origin is Annotated:
        return describe_type(args[0])
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin is Callable:
        return "a function"
    if isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, Mapping):
        return f"a list, each {describe_type(args[0])}" if args[0] is not Any else "a list"
    return _WORDS.get(hint) or f"a {getattr(origin or hint, '__name__', hint)}"


def find_mistyped(values: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the values that do not have the type of their hint, with the hint in words."""
    return {name: describe_type(hints[name]) for name, value in values.items() if not has_type(value, hints[name])}


def check_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises InputError for arguments of other types than the annotations say, and otherwise
    calls this one."""
    signature = inspect.signature(function)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    checked = {p.name for p in signature.parameters.values() if p.kind in kinds and p.annotation is not p.empty}

    @functools.cache
    def hint_of(name: str) -> Any:
        known: dict[str, Any] = {}
        holder = type("", (), {"__annotations__": {name: signature.parameters[name].annotation}})
        while True:
            try:
                return get_type_hints(holder, function.__globals__, known, include_extras=True)[name]
            except NameError as error:
                known[str(error.name)] = _import_for_types(function, str(error.name))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, value in {**dict(zip(signature.parameters, args, strict=False)), **kwargs}.items():
            if name in checked:
                _require(value, hint_of(name), f"`{name}`")
        return function(*args, **kwargs)

    return call


def _import_for_types(function: Callable[..., Any], name: str) -> Any:
    """Return what the module of a function imports under this name for type checkers only."""
    tree = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    blocks = (node.body for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = (node for block in blocks for node in block if isinstance(node, ast.ImportFrom))
    module = next(node.module for node in imports if name in [alias.name for alias in node.names])
    return getattr(import_module(str(module)), name)


def check_fields(record: Any, kind: type, name: str) -> None:
    """Raise InputError for the first field of a dataclass of this kind that has another type than its annotation.
    name: of the argument that holds the record."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        _require(getattr(record, field.name), hints[field.name], f"`{name}.{field.name}`")


def _require(value: Any, hint: Any, name: str) -> None:
    if not has_type(value, hint):
        is_plain = isinstance(value, str | int | float | list | tuple)
        given = shown(value) if is_plain else "None" if value is None else f"a {type(value).__name__}"
        raise InputError(f"{name} must be {describe_type(hint)}, not {given}")

"""Bounds of single settings, and one loop that checks them for every field of a tree of dataclasses.

    num_layers: int = setting(24, at_least(1))        -> model.num-layers 0 must be at least 1

Besides the bounds that a field names, every value must have the field's type, whole numbers must fit the 32 bits that
they have on a device, other numbers must be finite, and text must not be empty unless the default is. Relations between
several settings are rules: settings/rules.py.
"""

import dataclasses
import math
import types
from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, Literal, Union, get_args, get_origin

from xlnet_jax.errors import InputError
from xlnet_jax.settings.fields import Bound, flatten

FINITE = Bound(math.isfinite, "must be a finite number")
COUNTABLE = Bound(lambda value: abs(value) < 2**31, "must be below 2^31")
NOT_EMPTY = Bound(lambda value: value != "", "is empty: leave it out, or name something")
ANY_TEXT = Bound(lambda value: True, "")
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", types.NoneType: "None"}


def at_least(lowest: float, note: str = "") -> Bound:
    """Return the bound of numbers from `lowest` on. note: the meaning of that value, for the message."""
    return Bound(lambda value: value >= lowest, f"must be at least {lowest}" + (f" ({note})" if note else ""))


def above(lowest: float, hint: str = "") -> Bound:
    """Return the bound of numbers greater than `lowest`. hint: what to do, for the message."""
    return Bound(lambda value: value > lowest, f"must be above {lowest}" + (f": {hint}" if hint else ""))


def between(low: float, high: float, ends: Literal["[]", "[)", "(]", "()"] = "[]") -> Bound:
    """Return the bound of an interval; a square bracket includes its end, a round one excludes it."""

    def holds(value: float) -> bool:
        return low <= value <= high and (value != low or ends[0] == "[") and (value != high or ends[1] == "]")

    return Bound(holds, f"must be in {ends[0]}{low}, {high}{ends[1]}")


def bounds_of(field: dataclasses.Field[Any]) -> tuple[Bound, ...]:
    """Return the bounds that a field was given."""
    return field.metadata.get("bounds", ())


def check_bounds(config: Any) -> None:
    """Raise InputError with the first setting of a dataclass, or of those inside it, that is out of its bounds."""
    for broken in out_of_bounds(config):
        raise InputError(broken)


def out_of_bounds(config: Any, prefix: str = "") -> Iterator[str]:
    """Yield a line for each setting of a dataclass, or of those inside it, that is out of its bounds.

    A setting at the top is named as an argument (`batch_size`), others by their dotted names (model.num-layers).
    prefix: the dotted name of `config` itself, with a dot at its end.
    """
    for setting in flatten(config, prefix):
        name = setting.name if "." in setting.name else f"`{setting.python_name}`"
        if setting.value != "" and not has_type(setting.value, setting.hint):
            yield f"{name} {setting.value!r} must be {describe_type(setting.hint)}"
        elif broken := next(_broken(setting.value, setting.field), None):
            yield f"{name} {broken}"


def _broken(value: Any, field: dataclasses.Field[Any]) -> Iterator[str]:
    bounds = bounds_of(field)
    for element in value if isinstance(value, tuple) else (value,):
        if element is not None:
            for bound in (*_implied(element, field, bounds), *bounds):
                if not bound.holds(element):
                    yield f"{element} {bound.text}".lstrip()


def _implied(value: Any, field: dataclasses.Field[Any], bounds: tuple[Bound, ...]) -> Iterator[Bound]:
    if isinstance(value, str):
        if field.default != "" and ANY_TEXT not in bounds:
            yield NOT_EMPTY
    elif isinstance(value, Integral):
        yield COUNTABLE
    elif isinstance(value, Real):
        yield FINITE


def has_type(value: Any, hint: Any) -> bool:
    """Say whether a value has the type of a setting; True and False are no numbers."""
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return any(has_type(value, option) for option in get_args(hint))
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(has_type(element, get_args(hint)[0]) for element in value)
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    return isinstance(value, {int: Integral, float: Real}.get(hint, hint))


def describe_type(hint: Any) -> str:
    """Return the type of a setting in words."""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(describe_type(option) for option in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list, each {describe_type(get_args(hint)[0])}"
    return _WORDS.get(hint, hint.__name__)

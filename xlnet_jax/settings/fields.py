"""Fields of settings: default, bounds and marks; and settings as plain data, to and from dictionaries.

    num_layers: int = setting(24, at_least(1), "weights")        -> `model.num_layers` 0 must be at least 1

A field without bounds and marks is written as in any dataclass. Every value must have the field's type. Whole numbers
must fit into 32 bits, as on a device, and other numbers must be finite. Text must not be empty unless the default is.
Relations between several settings are in settings/rules.py.
"""

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral, Real
from pathlib import PurePath
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

import tyro

from xlnet_jax.errors import InputError, shown
from xlnet_jax.printing import without_secrets
from xlnet_jax.settings.hints import find_mistyped

T = TypeVar("T")

Unflagged = Annotated[T, tyro.conf.Fixed, tyro.conf.Suppress]
"""Type of a setting that presets, tasks and checkpoints decide: Python and a --config file can set it, no flag does."""
Mark = Literal["operational", "weights", "text", "blocks", "common"]
"""operational: may change when a run resumes. weights: fixed by the weights of a checkpoint. text: selects the text.
blocks: determines the tokens and blocks of the text. common: shown by --help."""


# ---- bounds ----------------------------------------------------------------------------------------------------------


class Bound(NamedTuple):
    """The values that a setting may have. `text` completes the sentence "NAME VALUE ..."."""

    holds: Callable[[Any], bool]
    text: str

    def or_value(self, value: Any, meaning: str) -> "Bound":
        """Return a bound that allows this value as well."""
        return Bound(lambda given: given == value or self.holds(given), f"{self.text}, or {value} for {meaning}")


FINITE = Bound(math.isfinite, "must be a finite number")
COUNTABLE = Bound(lambda value: abs(value) < 2**31, "must be below 2^31")
NOT_EMPTY = Bound(lambda value: value != "", "is empty: leave it out, or name something")
ANY_TEXT = Bound(lambda value: True, "")


def at_least(lowest: float, note: str = "") -> Bound:
    """Return the bound "at least `lowest`". note: the meaning of that value, for the message."""
    return Bound(lambda value: value >= lowest, f"must be at least {lowest}" + (f" ({note})" if note else ""))


def above(lowest: float, hint: str = "") -> Bound:
    """Return the bound "above `lowest`". hint: what to do, for the message."""
    return Bound(lambda value: value > lowest, f"must be above {lowest}" + (f": {hint}" if hint else ""))


def between(low: float, high: float, ends: Literal["[]", "[)", "(]", "()"] = "[]") -> Bound:
    """Return the bound of an interval; a square bracket includes its end, a round one excludes it."""

    def holds(value: float) -> bool:
        return low <= value <= high and (value != low or ends[0] == "[") and (value != high or ends[1] == "]")

    return Bound(holds, f"must be in {ends[0]}{low}, {high}{ends[1]}")


def check_bounds(config: Any) -> None:
    """Raise InputError for the first setting of a dataclass, nested ones included, that is out of its bounds."""
    for broken in out_of_bounds(config):
        raise broken


def out_of_bounds(config: Any, prefix: str = "") -> Iterator[InputError]:
    """Yield an error for each setting of a dataclass, nested ones included, that is out of its bounds.

    prefix: dotted name of `config`, with a dot at its end.
    """
    settings = flatten(config, prefix)
    values = {setting.name: setting.value for setting in settings if setting.value != ""}
    mistyped = find_mistyped(values, {setting.name: setting.hint for setting in settings})
    for setting in settings:
        if wanted := mistyped.get(setting.name):
            yield InputError(setting.python_name, repr(setting.value), f"must be {wanted}")
        elif broken := _find_broken(setting.value, setting.field):
            yield InputError(setting.python_name, *broken)


def _find_broken(value: Any, field: dataclasses.Field[Any]) -> tuple[Any, str] | None:
    """Return the first element of a value of the right type that violates a bound, and the bound in words."""
    bounds = field.metadata.get("bounds", ())
    for element in value if isinstance(value, tuple) else (value,):
        implied: list[Bound] = []
        if isinstance(element, str):
            implied = [NOT_EMPTY] if field.default != "" and ANY_TEXT not in bounds else []
        elif isinstance(element, Real):
            implied = [COUNTABLE if isinstance(element, Integral) else FINITE]
        for bound in (*implied, *bounds):
            if element is not None and not bound.holds(element):
                return element, bound.text
    return None


# ---- fields ----------------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """One setting of a tree of dataclasses."""

    name: str  # dotted, as on the command line
    value: Any
    field: dataclasses.Field[Any]
    hint: Any  # its type
    is_flag: bool  # False: `Unflagged`

    @property
    def python_name(self) -> str:
        """Dotted name in Python's spelling, as `data.batch_size`."""
        return self.name.replace("-", "_")

    def has(self, *marks: Mark) -> bool:
        """Return True if the field has one of these marks."""
        return is_marked(self.field, *marks)


def setting(default: Any, *says: Bound | Mark) -> Any:
    """Return a dataclass field with these bounds and marks. The bounds of a tuple apply to each of its elements. None
    is allowed if the field's type includes it."""
    bounds = tuple(s for s in says if isinstance(s, Bound))
    return dataclasses.field(default=default, metadata={"bounds": bounds, "marks": frozenset(says) - set(bounds)})


def operational(default: Any, *says: Bound | Mark) -> Any:
    """Return a dataclass field that may change when a run resumes."""
    return setting(default, *says, "operational")


def is_marked(field: dataclasses.Field[Any], *marks: Mark) -> bool:
    """Return True if a field has one of these marks."""
    return not field.metadata.get("marks", frozenset()).isdisjoint(marks)


def marked(kind: type, *marks: Mark) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass that have one of these marks."""
    return tuple(f.name for f in dataclasses.fields(kind) if is_marked(f, *marks))


def fields_of(settings: Any) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a dataclass that are settings: all except `given`."""
    return tuple(field for field in dataclasses.fields(settings) if field.name != "given")


@functools.cache
def _hints_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@functools.cache
def unflagged_of(kind: type) -> frozenset[str]:
    """Return the names of the fields of a dataclass that no flag sets."""
    hints = get_type_hints(kind, include_extras=True).items()
    return frozenset(name for name, hint in hints if tyro.conf.Fixed in getattr(hint, "__metadata__", ()))


def flatten(config: Any, prefix: str = "") -> list[Setting]:
    """Return every setting of a tree of dataclasses."""
    kind = cast(Any, type(config))
    hints, unflagged, settings = _hints_of(kind), unflagged_of(kind), []
    for field in fields_of(config):
        value, name = getattr(config, field.name), prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            settings += flatten(value, f"{name}.")
        else:
            settings.append(Setting(name, value, field, hints[field.name], field.name not in unflagged))
    return settings


def docstrings_of(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, inherited ones included."""
    found: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(kind.__mro__)):
        (definition,) = ast.parse(inspect.getsource(base)).body
        for field, below in itertools.pairwise(cast(ast.ClassDef, definition).body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                found[ast.unparse(field.target)] = " ".join(ast.literal_eval(below.value).split())
    return found


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the setting that was probably meant, by its dotted name or its last part; None if none is similar."""
    known = list(known)
    by_last_part = {k.rpartition(".")[2]: k for k in known}
    near = difflib.get_close_matches(name, known, 1, 0.6)
    near = near or [by_last_part[m] for m in difflib.get_close_matches(name.rpartition(".")[2], by_last_part, 1)]
    return near[0] if near else None


# ---- settings that differ -------------------------------------------------------------------------------------------


def differences(ours: Any, theirs: Any) -> Iterator[tuple[Setting, Any]]:
    """Yield (our setting, their value) wherever two trees of one type differ. URLs that differ only in their secrets
    are equal."""
    for our, their in zip(flatten(ours), flatten(theirs), strict=True):
        if our.value != their.value and without_secrets(our.value) != without_secrets(their.value):
            yield our, their.value


def identity_difference(ours: Any, theirs: Any, resumes: bool = False) -> list[str]:
    """Return 'name: their value there, our value here' for each identity setting in which two trainings differ.

    resumes: ours resumes theirs, which may change the number of steps (training/checkpoint.py: `_change_end`).
    """
    return [
        f"`{setting.python_name}`: {old!r} there, {setting.value!r} here"
        for setting, old in differences(ours, theirs)
        if not (setting.has("operational") or (resumes and setting.name == "steps"))
    ]


def shared_with(kind: type[T], settings: Any) -> T:
    """Return settings of this type with the values that settings of a type that extends it have."""
    return kind(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(cast(Any, kind))})


# ---- plain data ------------------------------------------------------------------------------------------------------


def to_dict(config: Any) -> dict[str, Any]:
    """Return the settings as nested plain types, without secrets in URLs: the content of config.json."""

    def plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in items if name != "given"}

    return without_secrets(dataclasses.asdict(config, dict_factory=plain))


def from_dict(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return settings of this type from the dictionaries of `to_dict`; missing keys get their defaults. Raises
    InputError like `over`."""
    return over(kind(), values, "config.")


def over(default: T, values: Mapping[str, Any], where: str) -> T:
    """Return settings with some values replaced by those of nested dictionaries. where: text before names in errors.

    Raises InputError, with the name, for unknown settings and for values of another type.
    """
    return with_values(default, read_values(default, dict(dotted(values)), where))


def with_values(config: T, values: Mapping[str, Any]) -> T:
    """Return settings with these values, by dotted names in Python's spelling, such as `data.batch_size`; a section may
    be a dictionary of its values."""
    inner: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        first, _, rest = name.partition(".")
        inner.setdefault(first, {}).update(value if isinstance(value, Mapping) else {rest: value})
    changed = {name: v[""] if "" in v else with_values(getattr(config, name), v) for name, v in inner.items()}
    return dataclasses.replace(cast(Any, config), **changed)


def with_plain_paths(settings: T) -> T:
    """Return settings with paths as text, as they are compared and stored."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        return str(value) if isinstance(value, PurePath) else value

    return with_values(settings, {setting.python_name: plain(setting.value) for setting in flatten(settings)})


def dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dictionaries and dataclasses with their dotted names in Python's spelling."""
    for key, value in values.items():
        name = prefix + key.replace("-", "_")
        if isinstance(value, Mapping):
            yield from dotted(value, f"{name}.")
        elif dataclasses.is_dataclass(value):
            yield from ((setting.python_name, setting.value) for setting in flatten(value, f"{name}."))
        else:
            yield name, value


def read_values(settings: Any, values: Mapping[str, Any], where: str, quote: str = "") -> dict[str, Any]:
    """Return values, by dotted names, with the types that they have in these settings. where, quote: text before and
    around a name in errors. Raises InputError like `over`."""
    hints, read = {setting.python_name: setting.hint for setting in flatten(settings)}, {}
    for name, value in values.items():
        if name not in hints:
            near, is_section = nearest(name, hints), any(known.startswith(f"{name}.") for known in hints)
            hint = f"did you mean {near}?" if near else "docs/settings.md lists them all"
            hint = "it is a section: give a dictionary" if is_section else hint
            raise InputError(f"{where}{quote}{name}{quote} is not a setting: {hint}")
        read[name] = _convert(value, hints[name])
    for name, wanted in find_mistyped(read, hints).items():
        words = wanted if quote else wanted.replace("None", "null")  # as Python or JSON calls it
        raise InputError(f"{where}{quote}{name}{quote} {shown(values[name])}: give {words}")
    return read


def _convert(value: Any, hint: Any) -> Any:
    """Return a value of JSON or Python in the form of a setting: a list or a single value as a tuple, a whole number as
    a float, a path as text."""
    several = next((option for option in (hint, *get_args(hint)) if get_origin(option) is tuple), None)
    if several and value is not None:
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(_convert(each, get_args(several)[0]) for each in values)
    options = get_args(hint) or (hint,)
    if type(value) is int and float in options and int not in options:
        return float(value)
    return str(value) if isinstance(value, PurePath) else value


def list_of_texts(texts: str | Iterable[str], name: str = "texts") -> list[str]:
    """Return texts as a list; a single text becomes a list of one. name: of the argument, for errors.

    Raises InputError if one of them is not text.
    """
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable) or hasattr(texts, "columns"):
        raise InputError(name, "", f"must be a list of texts, not {shown(texts)}")
    found = list(texts)
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise InputError(name, "", f": number {number} (from 0) is not text: {shown(text)}")
    return found

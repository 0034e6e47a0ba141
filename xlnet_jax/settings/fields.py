"""Fields of settings: a default, the bounds of its values, and marks that say what the setting decides.

A field with neither is written as in any dataclass. Lists of settings by their marks are derived with `marked`, so that
a new field is listed where it is written, and nowhere else.
"""

import ast
import dataclasses
import difflib
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast, get_type_hints

import tyro

from xlnet_jax.printing import without_secrets

T = TypeVar("T")

CheckpointArgument = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
Given = Annotated[frozenset[str], tyro.conf.Fixed, tyro.conf.Suppress]
"""Type of the field `given` of settings: the dotted names of those that the user gave. It is not a setting itself."""
Mark = Literal["operational", "weights", "text", "blocks", "common", "preset"]
"""operational: may change when a run resumes. weights: fixed by the weights of a checkpoint. text: says which text is
read. blocks: decides into which tokens and blocks that text is cut. common: shown by --help. preset: decided by presets
and checkpoints, and not shown by --help-all either."""


class Bound(NamedTuple):
    """Values that a setting may have; `text` completes the sentence "NAME VALUE ..."."""

    holds: Callable[[Any], bool]
    text: str

    def or_value(self, value: Any, meaning: str) -> "Bound":
        """Return a bound that allows this value as well."""
        return Bound(lambda given: given == value or self.holds(given), f"{self.text}, or {value} for {meaning}")


class Setting(NamedTuple):
    """One setting of a tree of dataclasses."""

    name: str  # dotted, as on the command line
    value: Any
    field: dataclasses.Field[Any]
    hint: Any  # its type

    @property
    def python_name(self) -> str:
        """Dotted name in Python's spelling, as `data.batch_size`."""
        return self.name.replace("-", "_")

    def has(self, *marks: Mark) -> bool:
        """Say whether the field has one of these marks."""
        return is_marked(self.field, *marks)


def setting(default: Any, *says: Bound | Mark) -> Any:
    """Return a dataclass field with these bounds and marks. The bounds of a tuple hold for each of its elements, and
    None is always allowed where the field's type has it."""
    bounds = tuple(s for s in says if isinstance(s, Bound))
    return dataclasses.field(default=default, metadata={"bounds": bounds, "marks": frozenset(says) - set(bounds)})


def operational(default: Any, *says: Bound | Mark) -> Any:
    """Return a dataclass field that may change when a run resumes."""
    return setting(default, *says, "operational")


def marked(kind: type, *marks: Mark) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass that have one of these marks."""
    return tuple(f.name for f in dataclasses.fields(kind) if is_marked(f, *marks))


def fields_of(settings: Any) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a dataclass that are settings: all but `given`, which lists the settings that were given."""
    return tuple(field for field in dataclasses.fields(settings) if field.name != "given")


def flatten(config: Any, prefix: str = "") -> list[Setting]:
    """Return every setting of a tree of dataclasses."""
    hints, settings = get_type_hints(type(config)), []
    for field in fields_of(config):
        value, name = getattr(config, field.name), prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            settings += flatten(value, f"{name}.")
        else:
            settings.append(Setting(name, value, field, hints[field.name]))
    return settings


def with_values(config: T, values: Mapping[str, Any]) -> T:
    """Return settings with these values, by dotted names in Python's spelling, as `data.batch_size`."""
    inner: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        first, _, rest = name.partition(".")
        inner.setdefault(first, {})[rest] = value
    changed = {name: v[""] if "" in v else with_values(getattr(config, name), v) for name, v in inner.items()}
    return dataclasses.replace(cast(Any, config), **changed)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the setting that was probably meant, by its dotted name or its last part; None where none is near."""
    known = list(known)
    by_last_part = {k.rpartition(".")[2]: k for k in known}
    near = difflib.get_close_matches(name, known, 1, 0.6)
    near = near or [by_last_part[m] for m in difflib.get_close_matches(name.rpartition(".")[2], by_last_part, 1)]
    return near[0] if near else None


def differences(ours: Any, theirs: Any) -> Iterator[tuple[Setting, Any]]:
    """Yield (our setting, their value) wherever two trees of one kind differ. URLs are the same where only what gives
    access differs."""
    for our, their in zip(flatten(ours), flatten(theirs), strict=True):
        if our.value != their.value and without_secrets(our.value) != without_secrets(their.value):
            yield our, their.value


def given_in(config: Any, start: Any) -> frozenset[str]:
    """Return the dotted names of the settings that somebody gave.

    A flag, a key of a --config file and a keyword of Python are on record in `config.given`, whatever their values. In
    settings that were changed by other means, those that differ from `start` were given.
    """
    return config.given | {setting.name for setting, _ in differences(config, start)}


def give(start: T, settings: T, given: Collection[str], prefix: str = "") -> T:
    """Return `start` with the values that `settings` has for what was given. given: dotted names; prefix: of the fields
    of `start` among them, as `data.`."""
    names = (field.name for field in fields_of(start) if prefix + field.name.replace("_", "-") in given)
    return dataclasses.replace(cast(Any, start), **{name: getattr(settings, name) for name in names})


def docstrings_of(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, inherited ones included."""
    found: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(kind.__mro__)):
        (definition,) = ast.parse(inspect.getsource(base)).body
        for field, below in itertools.pairwise(cast(ast.ClassDef, definition).body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                found[ast.unparse(field.target)] = " ".join(ast.literal_eval(below.value).split())
    return found


def is_marked(field: dataclasses.Field[Any], *marks: Mark) -> bool:
    """Return True if a field has one of these marks."""
    return not field.metadata.get("marks", frozenset()).isdisjoint(marks)

"""Every setting has bounds at its field, and a value outside them ends in a line that names field, value and bound."""

import dataclasses
import re
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from xlnet_jax.errors import InputError
from xlnet_jax.planning.settings import PlanConfig
from xlnet_jax.settings.bounds import ANY_TEXT, above, at_least, between, bounds_of, check_bounds, out_of_bounds
from xlnet_jax.settings.config import Config, ModelConfig
from xlnet_jax.settings.fields import differences, flatten, marked, operational, setting, with_values
from xlnet_jax.tasks.config import FinetuneConfig

KINDS = {"pretraining": Config, "finetuning": FinetuneConfig, "planning": PlanConfig}
FREE = {"qa.null-threshold": "a log-odds ratio may be any finite number"}
PROBES = (-(2**30), -2, -1, -0.5, 0, 0.5, 1, 2, 3, 2**30)


SETTINGS = [(kind, s) for kind, config in KINDS.items() for s in flatten(config())]


def options_of(hint):
    """The types that a hint allows, the elements of tuples among them."""
    inner = [option for option in get_args(hint) if option is not Ellipsis]
    return {hint} if not inner or get_origin(hint) is Literal else set().union(*map(options_of, inner))


def hint_of(kind, name):
    *groups, last = name.replace("-", "_").split(".")
    owner = KINDS[kind]
    for group in groups:
        owner = get_type_hints(owner)[group]
    return get_type_hints(owner)[last]


def mistake_of(kind, name, value):
    """The line that refuses a value of this setting."""
    value = (value,) if get_origin(hint_of(kind, name)) is tuple else value
    with pytest.raises(InputError) as mistake:
        check_bounds(with_values(KINDS[kind](), {name.replace("-", "_"): value}))
    return str(mistake.value)


def in_messages(name):
    return name if "." in name else f"`{name.replace('-', '_')}`"


@pytest.mark.parametrize(("kind", "setting"), SETTINGS, ids=lambda part: getattr(part, "name", part))
def test_every_setting_is_bounded_by_its_type_and_its_bounds(kind, setting):
    """A number has a bound or a reason for none, fits a device, and is a number; text is not empty unless its default
    is; what is out of bounds is named with the bound."""
    name, bounds = setting.name, [bound for bound in bounds_of(setting.field) if bound != ANY_TEXT]
    hint = hint_of(kind, name)
    number = next((type for type in (float, int) if type in options_of(hint)), None)
    if number:
        assert bool(bounds) != (name in FREE), f"give {name} a bound at its field, or list it as free"
        too_large = float("inf") if number is float else 2**31
        assert mistake_of(kind, name, too_large).startswith(f"{in_messages(name)} {too_large} must be ")
        assert re.match(rf"{in_messages(name)} \(?'many',?\)? must be", mistake_of(kind, name, "many"))
    elif str in options_of(hint) and setting.value != "" and ANY_TEXT not in bounds_of(setting.field):
        assert mistake_of(kind, name, "") == f"{in_messages(name)} is empty: leave it out, or name something"
    for bound in bounds:
        probes = ["x"] if number is None else [number(p) for p in PROBES if p == number(p)]
        outside = [probe for probe in probes if not bound.holds(probe)]
        assert outside, f"no probe lies outside of the bound {bound.text}"
        assert re.fullmatch(r"must be [^\n]+", bound.text)
        for value in outside:
            broken = next(b for b in bounds if not b.holds(value))
            assert mistake_of(kind, name, value) == f"{in_messages(name)} {value} {broken.text}"


@pytest.mark.parametrize(
    ("bound", "inside", "outside", "text"),
    [
        (at_least(1), (1, 7), (0, -1, 0.5), "must be at least 1"),
        (at_least(0, "0 = none"), (0,), (-1,), "must be at least 0 (0 = none)"),
        (above(0), (1e-9, 3), (0, -1), "must be above 0"),
        (above(0, "leave it out"), (1,), (0,), "must be above 0: leave it out"),
        (between(0, 1), (0, 0.5, 1), (-0.1, 1.1), "must be in [0, 1]"),
        (between(0, 1, "[)"), (0, 0.5), (-0.1, 1), "must be in [0, 1)"),
        (between(0, 1, "(]"), (0.5, 1), (0, 1.1), "must be in (0, 1]"),
        (between(0, 1, "()"), (0.5,), (0, 1), "must be in (0, 1)"),
        (at_least(1).or_value(-1, "all"), (-1, 1), (0, -2), "must be at least 1, or -1 for all"),
    ],
)
def test_bounds_include_and_exclude_their_ends(bound, inside, outside, text):
    assert all(bound.holds(value) for value in inside)
    assert not any(bound.holds(value) for value in outside)
    assert not bound.holds(float("nan"))
    assert bound.text == text


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a command."""

    count: int = setting(1, at_least(1))
    names: tuple[str, ...] = ()
    rate: float | None = None
    quiet: bool = operational(False)
    side: Literal["left", "right"] = "left"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"count": 0}, "`count` 0 must be at least 1"),
        ({"count": True}, "`count` True must be a whole number"),
        ({"count": 1.5}, "`count` 1.5 must be a whole number"),
        ({"count": None}, "`count` None must be a whole number"),
        ({"names": "a"}, "`names` 'a' must be a list, each text"),
        ({"names": ("a", "")}, "`names` is empty: leave it out, or name something"),
        ({"rate": "x"}, "`rate` 'x' must be a number or None"),
        ({"rate": float("nan")}, "`rate` nan must be a finite number"),
        ({"quiet": 1}, "`quiet` 1 must be true or false"),
        ({"side": "top"}, "`side` 'top' must be one of left, right"),
    ],
)
def test_any_dataclass_is_checked(change, line):
    assert list(out_of_bounds(Options())) == []
    assert list(out_of_bounds(Options(**change))) == [line]
    dotted = line.replace("`", "options.", 1).replace("`", "", 1)
    assert list(out_of_bounds(Options(**change), "options.")) == [dotted]


def test_settings_fixed_by_weights_are_those_that_shape_parameters_or_their_use():
    """A run may set the others beside --init: they change neither the parameters nor what they were trained for."""
    others = {f.name for f in dataclasses.fields(ModelConfig)} - set(marked(ModelConfig, "weights"))
    assert others == {
        "mem_len", "dropout", "attention_dropout", "init_std", "dtype", "remat", "attention", "profile",
    }  # fmt: skip


def test_marks_list_the_settings_that_decide_text_and_blocks():
    assert set(marked(Config, "text")) == {"corpus", "validation", "corpus_errors", "text_field", "tfds_data_dir"}
    assert {s.name for s in flatten(Config()) if s.has("blocks")} == {
        "init", "tokenizer", "model.vocab-size", "data.seq-len", "data.reuse-len", "data.window",
        "data.windows-per-block", "data.validation-fraction", "data.normalization", "data.token-level",
    }  # fmt: skip


def test_differences_name_the_settings_of_a_tree_that_differ():
    ours = with_values(Config(seed=1), {"data.seq_len": 64})
    assert [(s.name, s.value, their) for s, their in differences(ours, Config())] == [
        ("seed", 1, 0),
        ("data.seq-len", 64, 512),
    ]

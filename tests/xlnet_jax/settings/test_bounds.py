"""Every setting has bounds at its field, and a value outside them ends in a line that names field, value and bound."""

import dataclasses
import re
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from xlnet_jax.errors import InputError
from xlnet_jax.planning.settings import PlanConfig
from xlnet_jax.settings.bounds import ANY_TEXT, above, at_least, between, bounds_of, check_bounds, out_of_bounds
from xlnet_jax.settings.config import Config, ModelConfig
from xlnet_jax.settings.fields import differences, flatten, marked, operational, setting
from xlnet_jax.tasks.config import FinetuneConfig

KINDS = {"pretraining": Config, "finetuning": FinetuneConfig, "planning": PlanConfig}
FREE = {"qa.null-threshold": "a log-odds ratio may be any finite number"}
PROBES = (-(2**30), -2, -1, -0.5, 0, 0.0, 0.5, 1, 2, 3, 2**30, "x")


def every_setting():
    return [(kind, s) for kind, config in KINDS.items() for s in flatten(config())]


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


def with_value(config, name, value):
    head, _, rest = name.replace("-", "_").partition(".")
    value = with_value(getattr(config, head), rest, value) if rest else value
    return dataclasses.replace(config, **{head: value})


def in_messages(name):
    return name if "." in name else f"`{name.replace('-', '_')}`"


def first_line(config):
    with pytest.raises(InputError) as mistake:
        check_bounds(config)
    return str(mistake.value)


NUMERIC = [(kind, s.name) for kind, s in every_setting() if options_of(hint_of(kind, s.name)) & {int, float}]
BOUNDED = [(kind, s.name, bound) for kind, s in every_setting() for bound in bounds_of(s.field) if bound != ANY_TEXT]
TEXTS = [(kind, s.name) for kind, s in every_setting() if str in options_of(hint_of(kind, s.name))]


@pytest.mark.parametrize(("kind", "name"), NUMERIC)
def test_every_number_has_a_bound_or_a_reason_for_none(kind, name):
    bounded = {(k, n) for k, n, _ in BOUNDED}
    assert ((kind, name) in bounded) != (name in FREE), f"give {name} a bound at its field, or list it as free"


@pytest.mark.parametrize(("kind", "name", "bound"), BOUNDED)
def test_a_value_outside_its_bound_is_named_with_the_bound(kind, name, bound):
    hint = hint_of(kind, name)
    number = float if float in options_of(hint) else int
    is_text = str in options_of(hint)
    probes = [p for p in PROBES if isinstance(p, str) == is_text and (is_text or number is float or p == int(p))]
    field = next(s.field for s in flatten(KINDS[kind]()) if s.name == name)
    outside = [p if is_text else number(p) for p in probes if not bound.holds(p)]
    assert outside, f"no probe lies outside of the bound {bound.text}"
    for value in outside:
        line = first_line(with_value(KINDS[kind](), name, (value,) if get_origin(hint) is tuple else value))
        broken = next(b for b in bounds_of(field) if not b.holds(value))
        assert line == f"{in_messages(name)} {value} {broken.text}"


@pytest.mark.parametrize(("kind", "name"), NUMERIC)
@pytest.mark.parametrize(("value", "text"), [(2**31, "2147483648 must be below 2^31"), ("many", "'many' must be ")])
def test_a_number_fits_a_device_and_is_a_number(kind, name, value, text):
    hint = hint_of(kind, name)
    if float in options_of(hint) and value == 2**31:
        value, text = float("inf"), "inf must be a finite number"
    line = first_line(with_value(KINDS[kind](), name, (value,) if get_origin(hint) is tuple else value))
    assert line.startswith((f"{in_messages(name)} {text}", f"{in_messages(name)} ({value!r},) must be a tuple"))


@pytest.mark.parametrize(("kind", "name"), TEXTS)
def test_text_is_not_empty_unless_that_is_its_default(kind, name):
    default = next(s for s in flatten(KINDS[kind]()) if s.name == name)
    value = ("",) if get_origin(hint_of(kind, name)) is tuple else ""
    config = with_value(KINDS[kind](), name, value)
    if default.value == "" or ANY_TEXT in bounds_of(default.field):
        check_bounds(config)
    else:
        assert first_line(config) == f"{in_messages(name)} is empty: leave it out, or name something"


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
        ({"names": "a"}, "`names` 'a' must be a tuple, each element text"),
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
    ours = with_value(Config(seed=1), "data.seq_len", 64)
    assert [(s.name, s.value, their) for s, their in differences(ours, Config())] == [
        ("seed", 1, 0),
        ("data.seq-len", 64, 512),
    ]


def test_lines_are_one_line_of_plain_text():
    for _, _, bound in BOUNDED:
        assert re.fullmatch(r"must be [^\n]+", bound.text)

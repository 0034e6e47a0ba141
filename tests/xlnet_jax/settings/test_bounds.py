"""Every setting has bounds at its field, and a value outside them ends in a line that names field, value and bound."""

import dataclasses
import re
from typing import Literal, get_args, get_origin

import pytest

from xlnet_jax.errors import InputError
from xlnet_jax.planning.settings import PlanConfig
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import (
    above,
    at_least,
    between,
    check_bounds,
    flatten,
    operational,
    out_of_bounds,
    setting,
    with_values,
)
from xlnet_jax.tasks.config import FinetuneConfig

FREE = {"qa.null-threshold": "a log-odds ratio may be any finite number"}
PROBES = (-(2**30), -2, -1, -0.5, 0, 0.5, 1, 2, 3, 2**30)


def options_of(hint):
    """The types that a hint allows, the elements of tuples among them."""
    inner = [option for option in get_args(hint) if option is not Ellipsis]
    return {hint} if not inner or get_origin(hint) is Literal else set().union(*map(options_of, inner))


@pytest.mark.parametrize("kind", [Config, FinetuneConfig, PlanConfig])
def test_every_number_has_bounds_or_a_reason_for_none_and_fits_a_device(kind):
    for each in flatten(kind()):
        number = next((number for number in (float, int) if number in options_of(each.hint)), None)
        if number is None:
            continue
        bounds = each.field.metadata.get("bounds", ())
        assert bool(bounds) != (each.name in FREE), f"give {each.name} a bound at its field, or list it as free"
        refused = [float("inf") if number is float else 2**31]
        for bound in bounds:
            outside = [number(probe) for probe in PROBES if probe == number(probe) and not bound.holds(probe)]
            assert outside, f"no probe lies outside of the bound {bound.text} of {each.name}"
            refused += outside
        for value in refused:
            changed = {each.python_name: (value,) if get_origin(each.hint) is tuple else value}
            name = f"`{each.python_name}`"
            with pytest.raises(InputError, match=rf"^{re.escape(name)} {re.escape(str(value))} must be [^\n]+$"):
                check_bounds(with_values(kind(), changed))


@pytest.mark.parametrize(
    ("bound", "inside", "outside", "text"),
    [
        (at_least(0, "0 = none"), (0, 7), (-1, -0.5), "must be at least 0 (0 = none)"),
        (above(0, "leave it out"), (1e-9, 3), (0, -1), "must be above 0: leave it out"),
        (between(0, 1, "[)"), (0, 0.5), (-0.1, 1), "must be in [0, 1)"),
        (between(0, 1, "(]"), (0.5, 1), (0, 1.1), "must be in (0, 1]"),
        (at_least(1).or_value(-1, "all"), (-1, 1), (0, -2), "must be at least 1, or -1 for all"),
    ],
)
def test_bounds_include_and_exclude_their_ends(bound, inside, outside, text):
    assert all(bound.holds(value) for value in inside)
    assert not any(bound.holds(value) for value in (*outside, float("nan")))
    assert bound.text == text


@dataclasses.dataclass(frozen=True)
class Options:
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
        ({"names": "a"}, "`names` 'a' must be a list, each text"),
        ({"names": ("a", "")}, "`names` is empty: leave it out, or name something"),
        ({"rate": float("nan")}, "`rate` nan must be a finite number"),
        ({"quiet": 1}, "`quiet` 1 must be true or false"),
        ({"side": "top"}, "`side` 'top' must be one of left, right"),
    ],
)
def test_any_dataclass_is_checked(change, line):
    assert list(out_of_bounds(Options())) == []
    assert list(map(str, out_of_bounds(Options(**change)))) == [line]

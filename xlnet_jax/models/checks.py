"""Check the arrays that a network is called with: axes and types in every call, numbers in those that are not traced.
A compiled program contains no check.

The end of a name gives the axes of the array (dims.py). All arrays of a call have the same B, L, P and so on.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from xlnet_jax.errors import InputError

Sizes = Mapping[str, int]
INTEGERS, FLOATS, NUMBERS = (np.integer,), (np.floating,), (np.integer, np.floating, np.bool_)
_NAMES: dict[Any, str] = {INTEGERS: "integers", FLOATS: "floating-point numbers", NUMBERS: "numbers"}
_MOST = 2**29  # twice a rank must stay between models.masks.LOWEST and HIGHEST


class _Rule(NamedTuple):
    types: tuple[type, ...]
    text: str = ""
    holds: Callable[[np.ndarray, Sizes], Any] = lambda numbers, _: True  # for each number, or each row


def _below(size: str) -> _Rule:
    return _Rule(INTEGERS, f"from 0 to {size} - 1", lambda x, sizes: (x >= 0) & (x < sizes.get(size, 2**31)))


def _begins_document_BL(start_BL: np.ndarray, _: Sizes) -> Any:
    before_BL = np.concatenate([np.minimum(start_BL[:, :1], 0), start_BL[:, :-1]], axis=1)
    return (start_BL == np.arange(start_BL.shape[1])[None]) | (start_BL == before_BL)


_FLAG = _Rule(NUMBERS, "0 or 1", lambda x, _: (x == 0) | (x == 1))
_RULES = {
    "input_ids": _below("V"),
    "segment_ids": _Rule(
        INTEGERS,
        "from 0 to segments - 1",
        lambda x, sizes: "segments" not in sizes or _below("segments").holds(x, sizes),
    ),
    "attention_mask": _FLAG,
    "perm_mask": _Rule(NUMBERS, "0 where the row may attend, else 1", lambda x, _: x >= 0),
    "target_mapping": _Rule(
        NUMBERS,
        "a one-hot row; map padding to the last position, with weight 0",
        lambda x, _: ((x == 1).sum(-1) == 1) & ((x == 0).sum(-1) == x.shape[-1] - 1),
    ),
    "predicted": _FLAG,
    "tied": _FLAG,
    "is_reversed": _FLAG,
    "memory": _FLAG,
    "mems": _Rule(FLOATS),
    "perm_rank": _Rule(INTEGERS, f"between {-_MOST} and {_MOST}", lambda x, _: (x > -_MOST) & (x < _MOST)),
    "target_positions": _below("L"),
    "document_start": _Rule(INTEGERS, "the first position of the token's document", _begins_document_BL),
    "at": _below("T"),
    "cls_index": _below("L"),
    "start": _below("L"),
}


def check_arrays(sizes: Sizes | None = None, /, **arrays: Any) -> None:
    """Raise InputError for the first array whose axes, type or numbers are wrong.

    sizes: those of the network, by the letter of the axis. arrays: by the name of the argument; None = not given.
    """
    known, seen_in = dict(sizes or {}), dict.fromkeys(sizes or {}, "the network")
    for name, array in arrays.items():
        if array is None:
            continue
        stem, _, axes = name.rpartition("_")
        if not isinstance(array, np.ndarray | jax.Array):
            raise InputError(name, "", f"is a {type(array).__name__}: give a NumPy or jax array [{', '.join(axes)}]")
        wrong = f"`{name}` has the shape {tuple(array.shape)} and must be [{', '.join(axes)}]"
        if len(array.shape) != len(axes):
            raise InputError(wrong)
        for axis, size in zip(axes, array.shape, strict=True):
            if known.setdefault(axis, size) != size:
                raise InputError(f"{wrong}: {axis} is {known[axis]} in {seen_in[axis]}")
            seen_in.setdefault(axis, f"`{name}`")
        if known.get("L") == 0:
            raise InputError(f"{wrong}, with at least one position")
        if stem in _RULES:
            _check_numbers(name, array, _RULES[stem], known)


def _check_numbers(name: str, array: Any, rule: _Rule, sizes: Sizes) -> None:
    if not any(jax.dtypes.issubdtype(array.dtype, kind) for kind in rule.types):
        raise InputError(name, "", f"has the type {array.dtype}, but must have {_NAMES[rule.types]}")
    if isinstance(array, jax.core.Tracer) or not getattr(array, "is_fully_addressable", True) or rule.types == FLOATS:
        return
    numbers = np.asarray(array)
    if jax.dtypes.issubdtype(array.dtype, np.integer):
        _require(name, numbers, (numbers >= -(2**31)) & (numbers < 2**31), "in 32 bits")
    of_sizes = "".join(f" ({size} = {value})" for size, value in sizes.items() if size in rule.text.split())
    _require(name, numbers, rule.holds(numbers, sizes), rule.text + of_sizes)


def _require(name: str, numbers: np.ndarray, holds: Any, text: str) -> None:
    if not np.all(holds):
        place = tuple(int(i) for i in np.argwhere(~np.asarray(holds))[0])
        found = f", not {numbers[place]}" if numbers[place].ndim == 0 else ""
        raise InputError(name, "", f"at {list(place)} must be {text}{found}")

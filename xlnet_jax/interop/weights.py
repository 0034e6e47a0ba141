"""Parameters in the names and layouts of other formats. Each format is a table of `Weight`."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from flax.core import meta

from xlnet_jax.errors import InputError
from xlnet_jax.models.heads import DETECTORS, PairHead, init_params
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.settings.config import HeadConfig, ModelConfig

GENERATOR = "generator"
"""Key of ELECTRA's generator among the parameters: a separate network (objectives/replaced.py)."""


class Layout(NamedTuple):
    """Conversion of an array between our layout and another format's."""

    to_theirs: Callable[[np.ndarray], np.ndarray]
    to_ours: Callable[[np.ndarray], np.ndarray]


SAME = Layout(lambda a: a, lambda a: a)
TRANSPOSED = Layout(np.transpose, np.transpose)
TWO_LEADING_ONES = Layout(lambda a: a[None, None], lambda a: a[0, 0])  # [D] here, [1, 1, D] there


@dataclass(frozen=True)
class Weight:
    """Array of another format, and the part of our parameters it holds."""

    name: str  # theirs
    path: str  # ours, joined by /
    part: tuple[int | slice, ...] = ()  # index into the axes that we stack: layers, the three biases
    layout: Layout = SAME
    required: bool = True  # False: a checkpoint may lack it


def stack(weights: Iterable[Weight], part: tuple[int, ...]) -> Iterator[Weight]:
    """Yield the weights of one layer as part of the arrays of all layers."""
    for weight in weights:
        yield replace(weight, path=f"backbone/layers/{weight.path}", part=part)


@dataclass
class Mismatch:
    """Names of arrays that do not fit the network."""

    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.missing or self.unknown or self.misshapen)

    def __str__(self) -> str:
        kinds = (("missing", self.missing), ("unknown", self.unknown), ("of another shape", self.misshapen))
        return "; ".join(f"{len(names)} {kind}: {some(names)}" for kind, names in kinds if names)


def some(names: list[str]) -> str:
    """Return the first names of a list, for a message."""
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def initial_params(config: ModelConfig, head: HeadConfig | None = None, seed: int = 0) -> dict[str, Any]:
    """Return newly initialized parameters: nested dicts of arrays. head: None = language modeling."""
    return meta.unbox(init_params(config, head, jax.random.key(seed)))


def abstract_params(config: ModelConfig, head: HeadConfig | None) -> dict[str, jax.ShapeDtypeStruct]:
    """Return path -> shape of every parameter of the head and both streams. Computes nothing."""
    # Finetuning has no query stream, but keeps its parameters for further pretraining.
    return {**_query_stream(config), **_initial_shapes(config, head)}


@functools.lru_cache
def _initial_shapes(config: ModelConfig, head: HeadConfig | None) -> Mapping[str, jax.ShapeDtypeStruct]:
    return flatten(jax.eval_shape(lambda: initial_params(config, head)))


@functools.lru_cache
def optional_params(config: ModelConfig, head: HeadConfig | None) -> Mapping[str, jax.ShapeDtypeStruct]:
    """Return path -> shape of the parameters that a checkpoint may have or lack: the query stream, which only plm
    trains, the pair head (models/heads.py) of data.pair_loss, and ELECTRA's detector (models/bert.py)."""
    found = _query_stream(config)
    if head:
        return found

    def shapes(module: nn.Module, *inputs: Any) -> Any:
        return jax.eval_shape(lambda: meta.unbox(module.init(jax.random.key(0), *inputs)["params"]))

    found |= flatten({"pair_head": shapes(PairHead(config), np.zeros((1, 1, config.d_model), np.float32))})
    if detector := DETECTORS.get(config.network):
        of_detector = shapes(detector(config), text_inputs(jnp.asarray(np.zeros((1, 1), np.int32))))
        found |= flatten({"detector": of_detector["detector"]})
    return found


def _query_stream(config: ModelConfig) -> dict[str, jax.ShapeDtypeStruct]:
    if config.positions != "relative":
        return {}
    return {"backbone/mask_embedding": jax.ShapeDtypeStruct((config.d_model,), jnp.float32)}


flatten: Callable[[Mapping[str, Any]], dict[str, Any]] = functools.partial(traverse_util.flatten_dict, sep="/")
"""function that joins the keys of nested dicts by /: {'a': {'b': x}} -> {'a/b': x}"""

nest: Callable[[Mapping[str, Any]], dict[str, Any]] = functools.partial(traverse_util.unflatten_dict, sep="/")
"""function that undoes `flatten`"""


def to_theirs(params: Mapping[str, Any], table: Iterable[Weight]) -> dict[str, np.ndarray]:
    """Return their names -> arrays, without the weights that we lack."""
    flat = flatten(params)
    return {
        w.name: np.ascontiguousarray(w.layout.to_theirs(np.asarray(flat[w.path])[w.part]))
        for w in table
        if w.path in flat
    }


def left_behind(params: Mapping[str, Any], table: Iterable[Weight]) -> list[str]:
    """Return a note on the parameters that the table does not cover, if there are any; a generator counts as one."""
    paths = flatten(params).keys() - {w.path for w in table}
    names = sorted({GENERATOR if path.startswith(f"{GENERATOR}/") else path for path in paths})
    return [f"dropped, because the format cannot hold it: {', '.join(names)}"] if names else []


def find_mismatch(
    variables: Mapping[str, Any], table: Iterable[Weight], shapes: Mapping[str, jax.ShapeDtypeStruct]
) -> Mismatch:
    """Compare arrays, by their names in a format, with the shapes of a network."""
    mismatch, known = Mismatch(), set()
    for w in table:
        known.add(w.name)
        given, expected = variables.get(w.name), _expected_shape(w, shapes)
        if given is None:
            if w.required:
                mismatch.missing.append(w.name)
        elif tuple(given.shape) != expected:
            mismatch.misshapen.append(f"{w.name} is {size(given.shape)}, not {size(expected)}")
    mismatch.unknown += sorted(variables.keys() - known)
    return mismatch


def _expected_shape(weight: Weight, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> tuple[int, ...]:
    # Zero strides, so this takes no memory.
    part = np.broadcast_to(np.float32(0), shapes[weight.path].shape)[weight.part]
    return weight.layout.to_theirs(part).shape


def to_ours(
    variables: Mapping[str, np.ndarray],
    table: Iterable[Weight],
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    instead: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Return nested parameters, float32.

    A parameter with a missing or misshapen part is left out, unless `instead` (path -> array) has it: then fitting
    parts are kept and the others come from `instead`.
    """
    instead, incomplete = instead or {}, set()
    flat: dict[str, np.ndarray] = {path: np.array(value, np.float32) for path, value in instead.items()}
    for w in table:
        given = variables.get(w.name)
        if given is None or tuple(given.shape) != _expected_shape(w, shapes):
            incomplete.add(w.path)
        elif w.part:
            flat.setdefault(w.path, np.empty(shapes[w.path].shape, np.float32))[w.part] = w.layout.to_ours(given)
        else:
            flat[w.path] = np.ascontiguousarray(w.layout.to_ours(given), dtype=np.float32)
    return nest({path: value for path, value in flat.items() if path not in incomplete - instead.keys()})


def refuse_beyond_xlnet(config: ModelConfig, holder: str) -> None:
    """Raise InputError on settings that a format for XLNet only cannot hold."""
    for name, value in (("positions", "relative"), ("norm", "post")):
        if getattr(config, name) != value:
            raise InputError(f"{holder} cannot hold `model.{name}` {getattr(config, name)}: use `to` native")
    if not config.num_segments:
        raise InputError(
            f"{holder} cannot hold a network without segment encodings (`model.num_segments` 0): use `to` native"
        )


def size(shape: Iterable[int]) -> str:
    """Format a shape for messages, as 12x64."""
    return "x".join(str(n) for n in shape) or "a scalar"

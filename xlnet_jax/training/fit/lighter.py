"""Settings that need less memory than those of a run, in the order in which they are tried."""

import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal, TypeVar

from jax.sharding import Mesh

from xlnet_jax.settings.config import RunConfig
from xlnet_jax.training import sharding

C = TypeVar("C", bound=RunConfig)
Value = str | int

CHOSEN = ("model.remat", "optimizer.accumulate", "data.batch_size", "mesh.data", "mesh.fsdp")
LIGHTEST_FIRST: tuple[Literal["none", "dots", "attention", "full"], ...] = ("none", "dots", "attention", "full")
"""Remat policies, from the one that recomputes nothing and keeps the most in memory."""


def lighter(config: C, mesh: Mesh, keep_batch: bool) -> Iterator[C]:
    """Yield settings that need less memory than those of a run on this mesh.

    First more remat, then also more micro-batches, down to one row at a time on each device, then a batch of one row on
    each device; then the same over with parameters and optimizer state divided over more and more devices. keep_batch:
    leave the global batch as it is, so that each step learns from the same rows.
    """
    yield from _on_mesh(config, mesh, keep_batch)
    for fsdp in _doubling(mesh.shape["data"] // config.mesh.dcn_data):
        divided = with_values(config, {"mesh.data": -1, "mesh.fsdp": config.mesh.fsdp * fsdp})
        if config.model.d_model % divided.mesh.fsdp == 0:
            yield divided
            yield from _on_mesh(divided, mesh, keep_batch)


def _on_mesh(config: C, mesh: Mesh, keep_batch: bool) -> Iterator[C]:
    for remat in LIGHTEST_FIRST[LIGHTEST_FIRST.index(config.model.remat) + 1 :]:
        yield with_values(config, {"model.remat": remat})
    rows, shards, accumulate = config.data.batch_size, sharding.batch_shards(mesh), config.optimizer.accumulate
    for more in _doubling(rows // (shards * accumulate)):
        yield with_values(config, {"model.remat": "full", "optimizer.accumulate": accumulate * more})
    if not keep_batch and rows > shards:
        yield with_values(config, {"model.remat": "full", "optimizer.accumulate": 1, "data.batch_size": shards})


def _doubling(number: int) -> Iterator[int]:
    """Yield divisors of a number above 1, each at least twice the one before; the last is the number itself."""
    before = 1
    for divisor in range(2, number + 1):
        if number % divisor == 0 and divisor >= 2 * before and (divisor == number or 2 * divisor <= number):
            yield divisor
            before = divisor


def with_values(config: C, values: Mapping[str, Value]) -> C:
    """Return settings with these values, by their dotted names."""
    for name, value in values.items():
        group, _, last = name.partition(".")
        config = replace(config, **{group: replace(getattr(config, group), **{last: value})})
    return config


def values_of(config: RunConfig) -> dict[str, Value]:
    """Return the settings that `lighter` chooses, by their dotted names."""
    return {name: operator.attrgetter(name)(config) for name in CHOSEN}


def changed(ours: RunConfig, theirs: RunConfig) -> dict[str, Value]:
    """Return those of our settings that `lighter` chooses in which they differ from theirs."""
    there = values_of(theirs)
    return {name: value for name, value in values_of(ours).items() if value != there[name]}


def in_words(values: Mapping[str, Value]) -> str:
    """Return e.g. '`model.remat` full and `optimizer.accumulate` 4'."""
    return " and ".join(f"`{name}` {values[name]}" for name in CHOSEN if name in values)

"""Lengths of a window's parts that follow data.seq_len where nobody gives them: a preset's values suit its own windows
only. With 19 targets, for example, 15 % of 128 tokens are masked, but 30 % of 64."""

from collections.abc import Collection
from dataclasses import replace
from typing import TypeVar

from data_pipelines.windows import resized
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config, DataConfig

C = TypeVar("C", bound=Config)

LENGTHS = ("reuse_len", "perm_size", "num_predict")


def following(config: C, start: Config, given: Collection[str]) -> C:
    """Return the settings with the lengths that were not given in proportion to seq_len, as they are in `start`.

    given: dotted names of settings, as `data.reuse-len`.
    """
    scaled = _scaled(start, max(config.data.seq_len, 1))
    follow = [name for name in LENGTHS if f"data.{name.replace('_', '-')}" not in given]
    data = replace(config.data, **{name: getattr(scaled, name) for name in follow})
    if "perm_size" in follow and not _divides(data.perm_size, data) and _divides(start.data.perm_size, data):
        data = replace(data, perm_size=start.data.perm_size)  # beside a reuse_len that was given
    return replace(config, data=data)


def _scaled(start: Config, seq_len: int) -> DataConfig:
    """Return the settings for windows of another length: as the objective derives them, such as 15 % of targets, where
    `start` has them so, and otherwise in proportion."""
    derive = objective_named(start.objective).start
    scaled = replace(start, data=resized(start.data, seq_len))
    return derive(scaled).data if _lengths(derive(start).data) == _lengths(start.data) else scaled.data


def _lengths(data: DataConfig) -> list[int | None]:
    return [getattr(data, name) for name in LENGTHS]


def _divides(perm_size: int, data: DataConfig) -> bool:
    return perm_size > 0 and not (data.reuse_len % perm_size or (data.seq_len - data.reuse_len) % perm_size)

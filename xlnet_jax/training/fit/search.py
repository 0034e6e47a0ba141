"""Compile steps until one fits. All processes of a run compile the same ones in the same order, and agree on each."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, TypeVar

import jax

from xlnet_jax.settings.config import RunConfig
from xlnet_jax.training.fit.available import available_on
from xlnet_jax.training.fit.lighter import changed, in_words, lighter
from xlnet_jax.training.fit.need import AbstractStep, Need, input_bytes, need_of
from xlnet_jax.training.run.process import Process

C = TypeVar("C", bound=RunConfig)

PATIENCE = 300.0
"""seconds after which a search for advice compiles nothing more"""

_ALMOST = 0.9
"""the compiler may pack the buffers of fewer rows a little more tightly"""


@dataclass(frozen=True)
class Tried(Generic[C]):
    """Settings with their step, and what it needs of a device of this process."""

    config: C
    step: AbstractStep
    need: Need
    fits: bool
    """on the devices of all processes"""


class Search(Generic[C]):
    """Steps of one run by their settings. build: make the step of settings, as it runs on the largest batch. name: of
    the run, for the exchange between processes."""

    def __init__(self, build: Callable[[C], AbstractStep], process: Process, name: str) -> None:
        self._build, self._process, self._name, self._numbers = build, process, name, count()
        available = [n for n in self.agreed(available_on(jax.local_devices()[0])) if n]
        self.available = min(available) if available else None
        """bytes that a step may need on each device; None = not known"""

    def agreed(self, value: Any) -> list[Any]:
        """Return the values of all processes."""
        return self._process.hosts.gather(f"fit {next(self._numbers)} of {self._name}", value)

    def say(self, line: str) -> None:
        """Print a line, in process 0."""
        self._process.console.print(line)

    def attempt(self, config: C, available: int | None) -> Tried[C]:
        """Compile the step of these settings, to see whether it needs no more than the bytes available."""
        step = self._build(config)
        need = need_of(step, available)
        return Tried(config, step, need, all(self.agreed(need.fits(available))))

    def untried(self, config: C) -> Tried[C]:
        """Return these settings without compiling their step, for a run that has no steps left."""
        step = self._build(config)
        return Tried(config, step, Need(input_bytes(step), 0), fits=True)

    def first_lighter(
        self, first: Tried[C], available: int | None, keep_batch: bool, patience: float | None = None
    ) -> Tried[C] | None:
        """Return the first settings that fit and are lighter than `first`; None where none does. After `patience`
        seconds return the last ones tried, which do not fit."""
        began, tried = time.monotonic(), first
        for config in lighter(first.config, first.step.program.mesh, keep_batch):
            if available is not None and _least(config, tried) > available:
                continue
            if patience is not None and self.agreed(time.monotonic() - began > patience)[0]:
                return tried
            self.say(f"fit         trying {in_words(changed(config, first.config)).replace('`', '')}")
            tried = self.attempt(config, available)
            if tried.fits:
                return tried
        return None


def _least(config: RunConfig, tried: Tried[Any]) -> float:
    """Return the least bytes that a step can need, by what one needs that was tried just before.

    Remat and micro-batches leave the inputs as they are. Activations shrink in proportion to the rows of a micro-batch,
    and nothing else does.
    """
    differing = set(changed(config, tried.config))
    if not differing <= {"model.remat", "optimizer.accumulate"}:
        return 0.0
    share = tried.config.optimizer.accumulate / config.optimizer.accumulate if len(differing) == 1 else 0.0
    temporaries = (tried.need.temporaries or 0) if "optimizer.accumulate" in differing else 0
    return sum(tried.need.inputs.values()) + _ALMOST * share * temporaries

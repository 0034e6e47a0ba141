"""Memory that a training step needs on each device, by kind: as the compiler counts it, or as far as that is known."""

import re
import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from data_pipelines.objectives.fields import batch_spec, shape_of
from xlnet_jax.dims import Batch
from xlnet_jax.errors import is_out_of_memory
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config
from xlnet_jax.training import sharding
from xlnet_jax.training.program import Program

AbstractBatch = dict[str, jax.ShapeDtypeStruct]


class DoesNotFit(Exception):
    """The compiler's answer that a step needs more memory than a device has. needed: the bytes, where it says them."""

    def __init__(self, needed: int | None, words: str) -> None:
        super().__init__(words)
        self.needed = needed


@dataclass(frozen=True)
class AbstractStep:
    """Train step before it is compiled: the run's program, and shapes, types and shardings of its batch."""

    program: Program[Any]
    batch: AbstractBatch


@dataclass(frozen=True)
class Need:
    """Bytes that a step needs on each device."""

    inputs: dict[str, int]
    """parameters, optimizer, memory of text, batch, and what the compiler's layout adds to them (padding)"""
    temporaries: int | None
    """activations, gradients and everything else that a step allocates; None = unknown, as it was not compiled"""
    program: int = 0
    """instructions of the program"""
    refused: str = ""
    """the compiler's own words, where it found that the step does not fit"""

    @property
    def known(self) -> int:
        """Sum of what is known: all that a device must hold at once, if the step was compiled."""
        return sum(self.inputs.values()) + (self.temporaries or 0) + self.program

    def fits(self, available: int | None) -> bool:
        """Say whether the step was compiled and needs no more than these bytes; None = nobody knows how many."""
        return self.temporaries is not None and not self.refused and (available is None or self.known <= available)

    def in_words(self) -> str:
        """Return e.g. '21.40 GiB (parameters 0.36, optimizer 0.71, activations and gradients 20.33)'."""
        sizes = self.inputs | {"activations and gradients": self.temporaries or 0, "program": self.program}
        scale, unit = _unit(self.known)
        shown = {kind: f"{size / scale:.2f}" for kind, size in sizes.items()}
        kinds = ", ".join(f"{kind} {number}" for kind, number in shown.items() if number != "0.00")
        if self.temporaries is None:
            return f"more than {self.known / scale:.2f} {unit} ({kinds}, and activations and gradients)"
        return f"{self.known / scale:.2f} {unit} ({kinds})"


def bytes_in_words(size: int) -> str:
    """Return e.g. '21.40 GiB', or MiB where it is less than one GiB."""
    scale, unit = _unit(size)
    return f"{size / scale:.2f} {unit}"


def _unit(size: int) -> tuple[int, str]:
    return (2**30, "GiB") if size >= 2**30 else (2**20, "MiB")


def need_of(step: AbstractStep, available: int | None = None) -> Need:
    """Return what a step needs, by compiling it, unless its inputs alone exceed what is `available`.

    jax keeps the compiled step: the first call of `program.train_step` on such a batch does not compile again.
    """
    inputs = input_bytes(step)
    if available is not None and sum(inputs.values()) > available:
        return Need(inputs, None)
    try:
        compiled, _ = compile_step(step)
    except DoesNotFit as refused:
        return Need(inputs, refused.needed, refused=str(refused))
    return compiled_need(compiled, inputs)


def compiled_need(compiled: Any, inputs: dict[str, int]) -> Need:
    """Return what a compiled step needs. inputs: its `input_bytes`."""
    stats = compiled.memory_analysis()
    padding = max(stats.argument_size_in_bytes - sum(inputs.values()), 0)  # the compiler pads arrays to its layout
    temporaries = stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return Need(inputs | {"padding": padding}, temporaries, stats.generated_code_size_in_bytes)


def input_bytes(step: AbstractStep) -> dict[str, int]:
    """Return the bytes of a step's inputs on each device, by kind; nothing is compiled."""
    state = step.program.plan.abstract
    kinds = {"parameters": state.params, "optimizer": state.opt_state, "memory of text": state.mems_ZBMD}
    return {kind: sharding.bytes_on_device(tree) for kind, tree in (kinds | {"batch": step.batch}).items()}


def compile_step(step: AbstractStep) -> tuple[Any, float]:
    """Return the compiled step, and the seconds that compiling took. Raises DoesNotFit."""
    start = time.perf_counter()
    jitted: Any = step.program.train_step
    try:
        compiled = jitted.lower(step.program.plan.abstract, step.batch).compile()
    except Exception as error:
        raise _read(error) from None
    return compiled, time.perf_counter() - start


def batch_of_windows(config: Config, mesh: Mesh) -> AbstractBatch:
    """Return the shapes, types and shardings of a batch of pretraining."""
    data, over_batch = config.data, sharding.over_batch(mesh)
    spec = batch_spec(objective_named(config.objective).filling.fields, data)
    return {
        name: jax.ShapeDtypeStruct(shape_of(field, data.batch_size, data), jnp.dtype(field.dtype), sharding=over_batch)
        for name, field in spec.items()
    }


def batch_like(rows: Batch, batch_size: int, mesh: Mesh) -> AbstractBatch:
    """Return the shapes, types and shardings of a global batch whose rows are like these."""
    over_batch = sharding.over_batch(mesh)
    return {
        name: jax.ShapeDtypeStruct(
            (batch_size, *a.shape[1:]), jax.dtypes.canonicalize_dtype(a.dtype), sharding=over_batch
        )
        for name, a in rows.items()
    }


_REFUSAL = re.compile(
    r"temporaries \((?P<needed>[\d.]+)(?P<unit>[KMG])\) exceeds available HBM"
    r"|Used (?P<used>[\d.]+)(?P<used_unit>[KMG]) of [\d.]+[KMG]"
)


def _read(error: Exception) -> Exception:
    """Return DoesNotFit where the compiler ran out of device memory; any other error unchanged."""
    match = _REFUSAL.search(str(error))
    if not match and not is_out_of_memory(error):
        return error
    number, unit = (group for group in match.groups() if group) if match else ("", "")
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}
    return DoesNotFit(int(float(number) * scale[unit]) if match else None, str(error))

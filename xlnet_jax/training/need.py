"""Memory that a training step needs on each device, by kind, as the compiler counts it."""

import re
import time
from dataclasses import dataclass
from typing import Any

from xlnet_jax.errors import is_out_of_memory
from xlnet_jax.training import sharding
from xlnet_jax.training.program import AbstractBatch, Program


class DoesNotFit(Exception):
    """The compiler's answer that a step needs more memory than a device has. needed: the bytes, where it says them."""

    def __init__(self, needed: int | None, words: str) -> None:
        super().__init__(words)
        self.needed = needed


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
        """Return True if the step was compiled and needs at most these bytes; None = their number is not known."""
        return self.temporaries is not None and not self.refused and (available is None or self.known <= available)

    def in_words(self) -> str:
        """Return e.g. '21.40 GiB (parameters 0.36, optimizer 0.71, activations and gradients 20.33)'."""
        sizes = self.inputs | {"activations and gradients": self.temporaries or 0, "program": self.program}
        scale, unit = size_unit(self.known)
        shown = {kind: f"{size / scale:.2f}" for kind, size in sizes.items()}
        kinds = ", ".join(f"{kind} {number}" for kind, number in shown.items() if number != "0.00")
        if self.temporaries is None:
            return f"more than {self.known / scale:.2f} {unit} ({kinds}, and activations and gradients)"
        return f"{self.known / scale:.2f} {unit} ({kinds})"


def size_unit(size: int) -> tuple[int, str]:
    """Return a unit of memory, in bytes, and its name."""
    return (2**30, "GiB") if size >= 2**30 else (2**20, "MiB")


def input_bytes(program: Program[Any], batch: AbstractBatch) -> dict[str, int]:
    """Return the bytes of a step's inputs on each device, by kind; nothing is compiled."""
    state = program.plan
    kinds = {"parameters": state.params, "optimizer": state.opt_state, "memory of text": state.mems_ZBMD}
    return {kind: sharding.bytes_on_device(tree) for kind, tree in (kinds | {"batch": batch}).items()}


def compile_step(program: Program[Any], batch: AbstractBatch) -> tuple[Any, float]:
    """Return the compiled train step, and the seconds that compiling took. Raises DoesNotFit.

    jax keeps it: the first call of `program.train_step` on such a batch does not compile again.
    """
    start = time.perf_counter()
    jitted: Any = program.train_step
    try:
        compiled = jitted.lower(program.plan, batch).compile()
    except Exception as error:
        raise _refusal_of_compiler(error) from None
    return compiled, time.perf_counter() - start


def compiled_need(compiled: Any, inputs: dict[str, int]) -> Need:
    """Return what a compiled step needs. inputs: its `input_bytes`."""
    stats = compiled.memory_analysis()
    padding = max(stats.argument_size_in_bytes - sum(inputs.values()), 0)  # the compiler pads arrays to its layout
    temporaries = stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return Need(inputs | {"padding": padding}, temporaries, stats.generated_code_size_in_bytes)


_REFUSAL = re.compile(
    r"temporaries \((?P<needed>[\d.]+)(?P<unit>[KMG])\) exceeds available HBM"
    r"|Used (?P<used>[\d.]+)(?P<used_unit>[KMG]) of [\d.]+[KMG]"
)


def _refusal_of_compiler(error: Exception) -> Exception:
    """Return DoesNotFit where the compiler ran out of device memory; any other error unchanged."""
    match = _REFUSAL.search(str(error))
    if not match and not is_out_of_memory(error):
        return error
    number, unit = (group for group in match.groups() if group) if match else ("", "")
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}
    return DoesNotFit(int(float(number) * scale[unit]) if match else None, str(error))

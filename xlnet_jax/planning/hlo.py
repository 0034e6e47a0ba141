"""Parse the text of a compiled program (HLO): its instructions and how often each one runs, including loops."""

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

_ITEMSIZE = {"pred": 1, "bf16": 2, "f16": 2, "token": 0}
_SHAPE = re.compile(r"([a-z]+\d*)\[([\d,]*)\](\{[^}]*\})?")
_CALLED = re.compile(
    r"(calls|condition|body|to_apply|called_computations|branch_computations)=\{?(%[^,})\s]+(?:, ?%[^,})\s]+)*)"
)
_INTEGER = re.compile(r"constant\((\d+)\)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')


class Shape(NamedTuple):
    """Size and location of an array."""

    bytes: int  # without the padding of its layout
    in_hbm: bool  # False = in a smaller, faster memory on the chip


@dataclass(frozen=True)
class Instruction:
    """One line of a program."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]  # of the result; several for a tuple
    operands: tuple[str, ...]
    text: str
    is_root: bool

    @functools.cached_property
    def called(self) -> dict[str, tuple[str, ...]]:
        """Names of the computations that the instruction runs, by role."""
        return {role: tuple(re.split(", ?", names)) for role, names in _CALLED.findall(self.text)}

    @property
    def op_name(self) -> str:
        """Scopes of the source code of the instruction, separated by slashes; empty if the compiler added it."""
        found = _OP_NAME.search(self.text)
        return found[1] if found else ""

    @property
    def estimated_cycles(self) -> int | None:
        """The compiler's estimate of the cycles of one run; None = no estimate."""
        found = _CYCLES.search(self.text)
        return int(found[1]) if found else None

    @property
    def call_target(self) -> str:
        """Name of the code that a custom call runs; empty for other instructions."""
        found = _TARGET.search(self.text) if self.opcode == "custom-call" else None
        return found[1] if found else ""


Computation: TypeAlias = dict[str, Instruction]
"""Instructions of a function of a program, by name."""


def root_of(computation: Computation) -> Instruction:
    """Return the instruction whose result a function returns."""
    return next(i for i in computation.values() if i.is_root)


def name_of_parameter(computation: Computation, number: int) -> str:
    """Return the name of a parameter of a function."""
    return next(i.name for i in computation.values() if i.opcode == "parameter" and i.text == f"parameter({number})")


@dataclass(frozen=True)
class HloModule:
    """All functions of a compiled program."""

    computations: dict[str, Computation]
    entry: str

    def runs(self) -> Iterator[tuple[Computation, Instruction, int]]:
        """Yield every scheduled instruction with its function and the number of times it runs.

        Instructions inside a fusion are not scheduled themselves: only the fusion is yielded.
        """
        yield from self._runs(self.entry, 1)

    def _runs(self, name: str, times: int) -> Iterator[tuple[Computation, Instruction, int]]:
        computation = self.computations[name]
        for instruction in computation.values():
            yield computation, instruction, times
            called = instruction.called
            if instruction.opcode == "while":
                yield from self._runs(called["body"][0], times * self.trips(called["condition"][0]))
            elif instruction.opcode == "conditional":
                # Only one branch runs. Count the longest.
                branches = called.get("branch_computations") or called["called_computations"]
                yield from self._runs(max(branches, key=lambda b: len(self.computations[b])), times)
            elif instruction.opcode in ("call", "async-start"):
                for callee in called.get("to_apply", ()) + called.get("calls", ()):
                    yield from self._runs(callee, times)

    def trips(self, condition: str) -> int:
        """Return the number of iterations of a loop: the number that its counter is compared with."""
        bounds = [int(n) for i in self._inside(condition) for n in _INTEGER.findall(i.text) if i.opcode == "constant"]
        return max(bounds, default=1)

    def fused(self, fusion: Instruction) -> Computation:
        """Return the function that a fusion runs."""
        (callee,) = fusion.called["calls"]
        return self.computations[callee]

    def _inside(self, name: str) -> Iterator[Instruction]:
        for instruction in self.computations[name].values():
            yield instruction
            for callee in instruction.called.get("calls", ()):
                yield from self._inside(callee)


def parse(text: str) -> HloModule:
    """Parse a program from the text that `compiled.as_text()` returns."""
    computations: dict[str, Computation] = {}
    entry, current = "", {}
    for line in text.splitlines():
        if line.startswith("  "):
            if " = " in line:
                instruction = _instruction(line)
                current[instruction.name] = instruction
        elif line.startswith(("%", "ENTRY")) and line.endswith("{"):
            name = line.removeprefix("ENTRY ").split(" ", 1)[0]
            current = computations[name] = {}
            entry = name if line.startswith("ENTRY") else entry
    return HloModule(computations, entry)


def _instruction(line: str) -> Instruction:
    left, _, right = line.strip().partition(" = ")
    result, right = _split_at_closing(right) if right.startswith("(") else right.split(" ", 1)
    opcode, _, right = right.strip().partition("(")
    operands, attributes = _split_at_closing("(" + right)
    names = re.findall(r"%[^,()\s]+", operands)
    # A constant or parameter has its number in place of operands.
    kept = f"{opcode}{operands}" if opcode in ("constant", "parameter") else attributes
    is_root, shapes = left.startswith("ROOT "), _shapes(result)
    if opcode == "fusion-start":  # on GPUs; its operands stand before its result, and a semaphore after it
        opcode, shapes = "fusion", shapes[len(names) : -1]
    return Instruction(left.removeprefix("ROOT "), opcode, shapes, tuple(names), kept, is_root)


def _split_at_closing(text: str) -> tuple[str, str]:
    depth = 0
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[: i + 1], text[i + 1 :]
    raise ValueError(f"unbalanced: {text[:80]}")


def _shapes(result: str) -> tuple[Shape, ...]:
    return tuple(
        Shape(math.prod(int(n) for n in dims.split(",") if n) * _itemsize(kind), "S(" not in layout)
        for kind, dims, layout in _SHAPE.findall(result)
    )


def _itemsize(kind: str) -> int:
    return _ITEMSIZE[kind] if kind in _ITEMSIZE else max(int(re.sub(r"\D*(\d+).*", r"\1", kind)) // 8, 1)

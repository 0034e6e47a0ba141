"""Count the bytes that a compiled step moves: between devices, and between a device and its memory. They are counted in
the scheduled program, so a loop counts once for each iteration."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from xlnet_jax.planning.hlo import Computation, Instruction, Program

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")


class Collective(NamedTuple):
    """Collective operation of a step, with the number of times it runs."""

    kind: str
    times: int
    bytes: int  # each time, on each device: the larger of input and output
    group: int  # devices that take part together

    @property
    def sent(self) -> float:
        """Bytes that a member of the group must send at least, over all times: those of a ring, which is optimal."""
        share = (self.group - 1) / self.group
        return self.times * self.bytes * {"all-reduce": 2 * share, "collective-permute": 1.0}.get(self.kind, share)


def collectives(program: Program, devices: int) -> list[Collective]:
    """Return the collectives of one step, in program order. devices: those of the mesh, for any without groups."""
    found = []
    for _, instruction, times in program.runs():
        for kind, inside in _exchanges(program, instruction):
            shapes = [shape.bytes for shape in inside.shapes]
            # The result of an asynchronous collective holds its operands too.
            size = max(shapes) if inside.opcode.endswith("-start") and kind != "all-reduce" else sum(shapes)
            group = _group(inside.text, devices)
            # The result of a reduce-scatter is a part of its input; a fusion around an all-reduce has the whole.
            found.append(Collective(kind, times, size * group if inside.opcode == "reduce-scatter" else size, group))
    return [c for c in found if c.group > 1]


def _exchanges(program: Program, instruction: Instruction) -> Iterator[tuple[str, Instruction]]:
    """Yield the collective that an instruction is, or those inside a fusion."""
    kind = instruction.opcode.removesuffix("-start")
    if kind in COLLECTIVES:
        yield kind, instruction
    elif instruction.opcode == "fusion":
        (callee,) = instruction.called["calls"]
        for within in program.computations[callee].instructions.values():
            for kind, inside in _exchanges(program, within):
                yield ("reduce-scatter" if callee.startswith("%all-reduce-scatter") else kind), inside


def _group(text: str, devices: int) -> int:
    """Return the size of a group, from replica_groups written as lists, as [groups,size]<=[devices], or as axes."""
    if "source_target_pairs" in text:
        return 2
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return len(listed[1].split(","))
    if counted := re.search(r"replica_groups=\[\d+,(\d+)\]", text):
        return int(counted[1])
    if axes := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", text):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", axes[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'([^']+)'", axes[2]))
    return devices


# ---- memory ----------------------------------------------------------------------------------------------------------

_MOVES_NOTHING = (
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call", "after-all",
    "partition-id", "replica-id", "opt-barrier", "async-start", "reshape",
)  # fmt: skip
_SLICES = ("dynamic-slice", "slice", "gather")


def memory_bytes(program: Program) -> int:
    """Return the bytes that a step reads from a device's memory and writes to it.

    Every instruction is assumed to read its operands and write its result once. Of a slice, and of a buffer that is
    updated in place, only the part counts. Arrays that the compiler keeps in faster memory do not count.
    """
    return sum(times * _moved(program, computation, instruction) for computation, instruction, times in program.runs())


def _moved(program: Program, computation: Computation, instruction: Instruction) -> int:
    if instruction.opcode in _MOVES_NOTHING or instruction.opcode.endswith("-done"):
        return 0
    if instruction.opcode.endswith("-start"):
        return _copied(instruction)
    if instruction.opcode == "custom-call" and "Allocate" in instruction.text:
        return 0
    written = sum(
        size
        for size, shape in zip(_written(program, computation, instruction), instruction.shapes, strict=True)
        if shape.in_hbm
    )
    return written + sum(
        _read(program, computation, instruction, place)
        for place, name in enumerate(instruction.operands)
        if _in_hbm(computation, name)
    )


def _copied(instruction: Instruction) -> int:
    """Return the bytes of an asynchronous copy: its result holds both its source and its destination."""
    size = min(shape.bytes for shape in instruction.shapes[:2])
    return sum(size for shape in instruction.shapes[:2] if shape.in_hbm)


def _in_hbm(computation: Computation, name: str) -> bool:
    found = computation.instructions.get(name)
    return found is not None and len(found.shapes) == 1 and found.shapes[0].in_hbm


def _size(computation: Computation, name: str) -> int:
    found = computation.instructions.get(name)
    return sum(shape.bytes for shape in found.shapes) if found else 0


def _read(program: Program, computation: Computation, reader: Instruction, place: int) -> int:
    """Return the bytes that an instruction reads of one operand."""
    name = reader.operands[place]
    whole = _size(computation, name)
    if reader.opcode in _SLICES and place == 0:
        return min(whole, sum(shape.bytes for shape in reader.shapes))
    if reader.opcode == "dynamic-update-slice" and place == 0:
        return 0
    if reader.opcode != "fusion":
        return whole
    inner = program.computations[reader.called["calls"][0]]
    return min(whole, _read_inside(program, inner, inner.parameters[place]))


def _read_inside(program: Program, fused: Computation, name: str) -> int:
    total = 0
    for user in fused.users(name):
        if user.opcode == "bitcast":
            total += _read_inside(program, fused, user.name)
        else:
            total += sum(_read(program, fused, user, i) for i, operand in enumerate(user.operands) if operand == name)
    return total


def _written(program: Program, computation: Computation, instruction: Instruction) -> list[int]:
    """Return the bytes written of each part of a result: of an update in place, the update alone."""
    if instruction.opcode == "dynamic-update-slice":
        return [_size(computation, instruction.operands[1])]
    if instruction.opcode == "fusion":
        inner = program.computations[instruction.called["calls"][0]]
        return _written(program, inner, inner.root)
    if instruction.opcode == "tuple":
        parts = (computation.instructions[name] for name in instruction.operands)
        return [sum(_written(program, computation, part)) for part in parts]
    if instruction.opcode == "bitcast":
        return [sum(_written(program, computation, computation.instructions[instruction.operands[0]]))]
    return [shape.bytes for shape in instruction.shapes]

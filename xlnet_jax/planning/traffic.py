"""Count the bytes that a compiled step moves: between devices, and between a device and its memory. They are counted in
the scheduled program, so a loop counts once for each iteration."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from xlnet_jax.planning.hlo import Computation, Instruction, Program, Shape

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
    found: list[Collective] = []
    chains: set[tuple[str, str]] = set()
    for _, instruction, times in program.runs():
        for kind, inside in exchanges(program, instruction):
            # A collective that runs beside other work stands in each fusion of a chain: its start, steps, which may
            # lie in an inner loop, and its end.
            if chain := re.search(r'chain_id="\d+"', inside.text):
                if (same := (kind, chain[0])) in chains:
                    continue
                chains.add(same)
            shapes = [shape.bytes for shape in inside.shapes]
            # The result of an asynchronous collective holds its operands too.
            size = max(shapes) if inside.opcode.endswith("-start") and kind != "all-reduce" else sum(shapes)
            group = _group(inside.text, devices)
            # The result of a reduce-scatter is a part of its input; a fusion around an all-reduce has the whole.
            found.append(Collective(kind, times, size * group if inside.opcode == "reduce-scatter" else size, group))
    return [c for c in found if c.group > 1]


def exchanges(program: Program, instruction: Instruction) -> Iterator[tuple[str, Instruction]]:
    """Yield the collective that an instruction is, or those inside a fusion."""
    kind = instruction.opcode.removesuffix("-start")
    if kind in COLLECTIVES:
        yield kind, instruction
    elif instruction.opcode == "fusion":
        inner = program.fused(instruction)
        for within in inner.instructions.values():
            for kind, inside in exchanges(program, within):
                yield ("reduce-scatter" if inner.name.startswith("%all-reduce-scatter") else kind), inside


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

# A reshape is not among these: the compiler writes those that keep the layout as `bitcast`, the others copy.
_MOVES_NOTHING = (
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call", "after-all",
    "partition-id", "replica-id", "opt-barrier", "async-start", "async-update",
)  # fmt: skip
_COPIED_IN_BACKGROUND = ("copy-start", "slice-start")
_SLICES = ("dynamic-slice", "slice", "gather")
_FREE_CALLS = ("AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound")
KERNEL = "tpu_custom_call"
"""target of the custom calls that are Pallas kernels"""


def memory_bytes(program: Program) -> int:
    """Return the bytes that a step reads from a device's memory and writes to it."""
    return sum(
        times * moved_bytes(program, computation, instruction) for computation, instruction, times in program.runs()
    )


def moved_bytes(program: Program, computation: Computation, instruction: Instruction) -> int:
    """Return the bytes that one run of an instruction of a computation reads from memory and writes to it.

    An instruction is assumed to read its operands and write its result once. Of a slice, and of a buffer that is
    updated in place, only the part counts. Arrays that the compiler keeps in faster memory do not count. A kernel moves
    the bytes that its author states, where it states any.
    """
    opcode = instruction.opcode
    if opcode in _MOVES_NOTHING or opcode.endswith("-done") or instruction.call_target in _FREE_CALLS:
        return 0
    if opcode in _COPIED_IN_BACKGROUND:
        return _copied(instruction)
    if instruction.call_target == KERNEL and (stated := stated_cost(instruction)) and stated.bytes:
        return stated.bytes
    sizes = _written(program, computation, instruction)
    written = sum(size for size, shape in zip(sizes, _results(instruction), strict=True) if shape.in_hbm)
    return written + sum(
        _read(program, computation, instruction, place)
        for place, name in enumerate(instruction.operands)
        if _in_hbm(computation, name)
    )


class StatedCost(NamedTuple):
    """Cost of one call of a kernel, as its author states it (`cost_estimate` of pallas_call)."""

    flops: int
    bytes: int


def stated_cost(call: Instruction) -> StatedCost | None:
    """Return the cost that a custom call carries; None = it carries none."""
    found = re.search(r'"cost_estimate":\{([^}]*)\}', call.text)
    if not found:
        return None
    numbers = {name: int(number) for name, number in re.findall(r'"(\w+)":"(\d+)"', found[1])}
    return StatedCost(numbers.get("flops", 0), numbers.get("bytes_accessed", 0))


def _copied(instruction: Instruction) -> int:
    """Return the bytes of an asynchronous copy: its result holds both its source and its destination."""
    size = min(shape.bytes for shape in instruction.shapes[:2])
    return sum(size for shape in instruction.shapes[:2] if shape.in_hbm)


def _results(instruction: Instruction) -> tuple[Shape, ...]:
    """Return the arrays that an instruction writes. An asynchronous collective lists its operands before them, and its
    semaphores after them."""
    count = len(instruction.operands)
    if instruction.opcode.endswith("-start") and len(instruction.shapes) >= 2 * count:
        return instruction.shapes[count : 2 * count]
    return instruction.shapes


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
    inner = program.fused(reader)
    return min(whole, _read_inside(program, inner, inner.parameters[place]))


def _read_inside(program: Program, fused: Computation, name: str) -> int:
    total = 0
    for user in fused.users(name):
        if user.opcode in ("bitcast", "reshape"):
            total += _read_inside(program, fused, user.name)
        else:
            total += sum(_read(program, fused, user, i) for i, operand in enumerate(user.operands) if operand == name)
    return total


def _written(
    program: Program, computation: Computation, instruction: Instruction, *, is_fused: bool = False
) -> list[int]:
    """Return the bytes written of each part of a result: of an update in place, the update alone."""
    opcode, operands = instruction.opcode, [computation.instructions.get(name) for name in instruction.operands]
    if opcode == "dynamic-update-slice" and not (is_fused and _is_made(computation, instruction.operands[0])):
        return [_size(computation, instruction.operands[1])]
    if opcode == "fusion":
        inner = program.fused(instruction)
        return _written(program, inner, inner.root, is_fused=True)
    if opcode in ("tuple", "bitcast"):
        parts = [sum(_written(program, computation, part, is_fused=is_fused)) for part in operands if part]
        return parts if opcode == "tuple" else [sum(parts)]
    return [shape.bytes for shape in _results(instruction)]


def _is_made(fused: Computation, name: str) -> bool:
    """Return True for an array that a fusion makes: where it updates a part of it, it writes all of it."""
    found = fused.instructions[name]
    while found.opcode == "bitcast":
        found = fused.instructions[found.operands[0]]
    return found.opcode != "parameter"

"""Count the cost of a compiled step by part of the model: bytes between devices, bytes between a device and its memory,
and cycles.

Counts come from the scheduled program, so a loop counts once for each iteration. Cycles are the compiler's estimates;
it does not estimate kernels, so those are counted from their compiled instructions. Which blocks of a long window a
kernel skips depends on the batch, so all are counted. Cycles are those of one jax device: one core, half a chip, on v2,
v3 and v7; both cores of a chip ("megacore") on v4 and v5p; the chip's only core on v5e and v6e. An instruction belongs
to the part of the model whose scopes (flax modules, `jax.named_scope`) are in its metadata.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from xlnet_jax.costs import Chip, chip_named
from xlnet_jax.planning.hlo import Computation, HloModule, Instruction, Shape, name_of_parameter, root_of
from xlnet_jax.storage.reading import read_json

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")


class Collective(NamedTuple):
    """Collective operation of a step, with the number of times it runs."""

    kind: str
    times: int
    bytes: int  # each time, on each device: the larger of input and output
    group: int  # number of devices that exchange data

    @property
    def sent(self) -> float:
        """Least bytes that a device of the group sends over all runs: those of a ring, which is optimal."""
        share = (self.group - 1) / self.group
        return self.times * self.bytes * {"all-reduce": 2 * share, "collective-permute": 1.0}.get(self.kind, share)


def collectives(program: HloModule, devices: int) -> list[Collective]:
    """Return the collectives of one step, in program order. devices: size of the mesh, for collectives without
    groups."""
    found: list[Collective] = []
    chains: set[tuple[str, str]] = set()
    for _, instruction, times in program.runs():
        for kind, inside in exchanges(program, instruction):
            # An asynchronous collective is in each fusion of a chain: its start, its steps (maybe in an inner loop)
            # and its end.
            if chain := re.search(r'chain_id="\d+"', inside.text):
                if (same := (kind, chain[0])) in chains:
                    continue
                chains.add(same)
            shapes = [shape.bytes for shape in inside.shapes]
            # The result of an asynchronous collective includes its operands.
            size = max(shapes) if inside.opcode.endswith("-start") and kind != "all-reduce" else sum(shapes)
            group = _group(inside.text, devices)
            # The result of a reduce-scatter is a part of its input; that of a fusion around an all-reduce is whole.
            found.append(Collective(kind, times, size * group if inside.opcode == "reduce-scatter" else size, group))
    return [c for c in found if c.group > 1]


def exchanges(program: HloModule, instruction: Instruction) -> Iterator[tuple[str, Instruction]]:
    """Yield the instruction if it is a collective, or the collectives inside a fusion."""
    kind = instruction.opcode.removesuffix("-start")
    if kind in COLLECTIVES:
        yield kind, instruction
    elif instruction.opcode == "fusion":
        scatters = instruction.called["calls"][0].startswith("%all-reduce-scatter")
        for within in program.fused(instruction).values():
            for kind, inside in exchanges(program, within):
                yield ("reduce-scatter" if scatters else kind), inside


def _group(text: str, devices: int) -> int:
    """Return the size of a group. replica_groups has three notations: lists, [groups,size]<=[devices], or mesh axes."""
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

# Not `reshape`: the compiler writes reshapes that keep the layout as `bitcast`; the others copy.
_MOVES_NOTHING = (
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call", "after-all",
    "partition-id", "replica-id", "opt-barrier", "async-start", "async-update",
)  # fmt: skip
_COPIED_IN_BACKGROUND = ("copy-start", "slice-start")
_SLICES = ("dynamic-slice", "slice", "gather")
_FREE_CALLS = ("AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound")
KERNEL = "tpu_custom_call"
"""call target of Pallas kernels"""


def moved_bytes(program: HloModule, computation: Computation, instruction: Instruction) -> int:
    """Return the bytes that one run of an instruction reads from memory and writes to memory.

    Assumes that an instruction reads its operands and writes its result once. For a slice or an update in place, only
    that part counts. Arrays in faster memory do not count. A kernel moves the bytes of its cost estimate, if it has
    one.
    """
    opcode = instruction.opcode
    if opcode in _MOVES_NOTHING or opcode.endswith("-done") or instruction.call_target in _FREE_CALLS:
        return 0
    if opcode in _COPIED_IN_BACKGROUND:
        return _copied(instruction)
    if stated := stated_cost(instruction, "bytes_accessed"):
        return stated
    sizes = _written(program, computation, instruction)
    written = sum(size for size, shape in zip(sizes, _results(instruction), strict=True) if shape.in_hbm)
    return written + sum(
        _read(program, computation, instruction, place)
        for place, name in enumerate(instruction.operands)
        if _in_hbm(computation, name)
    )


def stated_cost(call: Instruction, kind: Literal["flops", "bytes_accessed"]) -> int:
    """Return a kernel's `cost_estimate` (an argument of pallas_call) for one call; 0 if there is none, and for other
    instructions."""
    stated = re.search(rf'"cost_estimate":{{[^}}]*"{kind}":"(\d+)"', call.text) if call.call_target == KERNEL else None
    return int(stated[1]) if stated else 0


def _copied(instruction: Instruction) -> int:
    """Return the bytes of an asynchronous copy, whose result includes both source and destination."""
    size = min(shape.bytes for shape in instruction.shapes[:2])
    return sum(size for shape in instruction.shapes[:2] if shape.in_hbm)


def _results(instruction: Instruction) -> tuple[Shape, ...]:
    """Return the arrays that an instruction writes. An asynchronous collective lists its operands before them and its
    semaphores after them."""
    count = len(instruction.operands)
    if instruction.opcode.endswith("-start") and len(instruction.shapes) >= 2 * count:
        return instruction.shapes[count : 2 * count]
    return instruction.shapes


def _in_hbm(computation: Computation, name: str) -> bool:
    found = computation.get(name)
    return found is not None and len(found.shapes) == 1 and found.shapes[0].in_hbm


def _size(computation: Computation, name: str) -> int:
    found = computation.get(name)
    return sum(shape.bytes for shape in found.shapes) if found else 0


def _read(program: HloModule, computation: Computation, reader: Instruction, place: int) -> int:
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
    return min(whole, _read_inside(program, inner, name_of_parameter(inner, place)))


def _read_inside(program: HloModule, fused: Computation, name: str) -> int:
    total = 0
    for user in (i for i in fused.values() if name in i.operands):
        if user.opcode in ("bitcast", "reshape"):
            total += _read_inside(program, fused, user.name)
        else:
            total += sum(_read(program, fused, user, i) for i, operand in enumerate(user.operands) if operand == name)
    return total


def _written(
    program: HloModule, computation: Computation, instruction: Instruction, *, is_fused: bool = False
) -> list[int]:
    """Return the bytes written for each part of a result: for an update in place, only the update."""
    opcode, operands = instruction.opcode, [computation.get(name) for name in instruction.operands]
    if opcode == "dynamic-update-slice" and not (is_fused and _is_made(computation, instruction.operands[0])):
        return [_size(computation, instruction.operands[1])]
    if opcode == "fusion":
        inner = program.fused(instruction)
        return _written(program, inner, root_of(inner), is_fused=True)
    if opcode in ("tuple", "bitcast"):
        parts = [sum(_written(program, computation, part, is_fused=is_fused)) for part in operands if part]
        return parts if opcode == "tuple" else [sum(parts)]
    return [shape.bytes for shape in _results(instruction)]


def _is_made(fused: Computation, name: str) -> bool:
    """Return True for an array that the fusion creates, so that updating a part of it writes all of it."""
    found = fused[name]
    while found.opcode == "bitcast":
        found = fused[found.operands[0]]
    return found.opcode != "parameter"


KERNEL_CYCLES = Path(__file__).with_name("kernel_cycles.json")
"""cycles of a tile of the kernels at the sizes of XLNet-Large, which `python -m benchmarks.kernel_cycles` counts"""

TILE_FLOPS = {kernel: 2 * products * 2 * 128 * 896 * 128 for kernel, products in
              (("fused_attention_forward", 3), ("fused_attention_backward", 8))}  # fmt: skip
"""stated FLOPs of a tile there: products x 2 heads x 128 rows x 896 keys x 128 lanes"""

CONTENT_TILES = 4
"""tiles of content rows there for each tile of query rows"""


@functools.cache
def measured_shares() -> Mapping[tuple[str, str], float]:
    """Return the share of a device's peak FLOPs that a kernel reaches, by (kernel name, chip)."""
    shares = {}
    for name, kernels in read_json(KERNEL_CYCLES, dict[str, dict[str, Any]]).items():
        chip = chip_named(name)
        for kernel, flops in TILE_FLOPS.items():
            content, query = (kernels[kernel][kind]["cycles"] for kind in ("content", "query"))
            cycles = (CONTENT_TILES * content + query) * chip.devices / chip.cores  # cores of a device share its tiles
            shares[kernel, name] = (CONTENT_TILES + 1) * flops / (cycles * flops_a_cycle(chip))
    return shares


def flops_a_cycle(chip: Chip) -> float:
    """Return the peak FLOPs of a device in one cycle."""
    return chip.flops / chip.devices / chip.clock


StepPart: TypeAlias = Literal[
    "attention scores", "relative shift", "position product", "attention dropout", "hidden dropout", "projections",
    "feed-forward", "vocabulary", "memory, embedding", "optimizer", "collectives", "copies", "rest",
]  # fmt: skip

PART_OF_SCOPE: dict[str, StepPart] = {
    # xlnet_jax/models/attention.py: content and value products, softmax, masks and segments; or a fused kernel.
    "attention_scores": "attention scores",
    # xlnet_jax/kernels/plain.py
    "position_scores": "position product",
    "relative_shift": "relative shift",
    "attention_dropout": "attention dropout",
    # Modules of xlnet_jax/models/layers.py and xlnet.py, without their inner scopes: projections, residual, norm.
    "Dropout": "hidden dropout",
    "attention": "projections",
    "feed_forward": "feed-forward",
    "backbone": "memory, embedding",
    # xlnet_jax/models/layers.py and xlnet_jax/objectives/language_model.py
    "vocabulary": "vocabulary",
    # Slices and updates of the arrays that the loop over layers reads and writes.
    "dynamic_index_in_dim": "copies",
    "dynamic_update_index_in_dim": "copies",
}
"""part of the model, by the innermost scope listed here"""

_COPIES = ("copy", "copy-start", "slice-start")
_PRODUCTS = ("dot", "convolution")
_NO_WORK = ("parameter", "constant", "bitcast", "tuple", "get-tuple-element", "broadcast", "iota")


def part_of(program: HloModule, instruction: Instruction) -> StepPart:
    """Return the part of the model that an instruction belongs to.

    A fusion belongs to the part of its largest product, or without a product to the part that computes the most bytes
    in it. Its root does not decide, because it is often only the last of many steps.
    """
    if any(exchanges(program, instruction)):
        return "collectives"
    if instruction.opcode in _COPIES:
        return "copies"
    if instruction.opcode != "fusion":
        return part_of_scopes(instruction.op_name)
    fused = [(i, part_of_scopes(i.op_name)) for i in _fused(program, instruction)]
    for eligible in ([(i, part) for i, part in fused if i.opcode in _PRODUCTS], fused):
        computed: Counter[StepPart] = Counter()
        for inner, part in eligible:
            if part != "rest":
                computed[part] += sum(shape.bytes for shape in inner.shapes)
        if computed:
            return computed.most_common(1)[0][0]
    return part_of_scopes(instruction.op_name)


def part_of_scopes(op_name: str) -> StepPart:
    """Return the part for scopes such as "jit(train_step)/jvp(XLNetLM)/backbone", outermost first."""
    scopes = op_name.split("/")
    # Strip transformations, as in transpose(jvp(vocabulary)), and the numbers of flax modules.
    names = [re.sub(r"^(?:\w+\()*|\)*$|_\d+\)*$", "", scope) for scope in scopes]
    for name in reversed(names):
        if name in PART_OF_SCOPE:
            return PART_OF_SCOPE[name]
    # `jvp` marks the loss and its gradient. The rest of the step is the optimizer.
    return "optimizer" if names[0] == "train_step" and "jvp(" not in op_name else "rest"


def _fused(program: HloModule, fusion: Instruction) -> Iterator[Instruction]:
    """Yield the instructions that compute something in a fusion and in the fusions inside it."""
    for inner in program.fused(fusion).values():
        if inner.opcode == "fusion":
            yield from _fused(program, inner)
        elif inner.opcode not in _NO_WORK:
            yield inner


class Cost(NamedTuple):
    """Cost of instructions in one step on each device."""

    bytes: int = 0
    """bytes between the cores and their memory"""
    cycles: int = 0
    """cycles by the compiler's estimate"""
    kernel_cycles: int = 0
    """cycles of Pallas kernels, which the compiler does not estimate"""
    traffic_cycles: int = 0
    """cycles of other instructions without an estimate: their memory traffic at the peak bandwidth"""
    kernels_at_least: int = 0
    """part of kernel_cycles that is a lower bound"""
    copy_cycles: int = 0
    """cycles of the memory traffic of asynchronous copies, which can overlap with all other cycles"""
    kernel_traffic_cycles: int = 0
    """cycles of the memory traffic of kernels, which can overlap with their computation"""

    @property
    def all_cycles(self) -> int:
        """Cycles of all instructions."""
        return self.cycles + self.kernel_cycles + self.traffic_cycles

    def plus(self, other: "Cost", times: int = 1) -> "Cost":
        """Return this cost plus `times` the other."""
        return Cost(*(a + times * b for a, b in zip(self, other, strict=True)))


def cost_by_part(program: HloModule, chip: Chip) -> dict[StepPart, Cost]:
    """Return the cost of a step by part of the model. Every instruction belongs to one part."""
    parts: dict[StepPart, Cost] = {}
    for computation, instruction, times in program.runs():
        cost = cost_of(program, computation, instruction, chip)
        if any(cost):
            part = part_of(program, instruction)
            parts[part] = parts.get(part, Cost()).plus(cost, times)
    return parts


def cost_of(program: HloModule, computation: Computation, instruction: Instruction, chip: Chip) -> Cost:
    """Return the cost of one run of an instruction.

    Asynchronous copies can overlap with other instructions, and collectives have their own bound (Plan.at_least), so
    neither counts in `all_cycles`. All other instructions of a core run one after the other.
    """
    size = moved_bytes(program, computation, instruction)
    if (cycles := instruction.estimated_cycles) is not None:
        return Cost(size, cycles)
    by_traffic = round(size / (chip.memory_bandwidth / chip.devices) * chip.clock)
    if any(exchanges(program, instruction)):
        return Cost(size)
    if instruction.opcode.endswith("-start"):
        return Cost(size, copy_cycles=by_traffic)
    flops = stated_cost(instruction, "flops")
    if not flops:
        return Cost(size, traffic_cycles=by_traffic)
    name = instruction.op_name.removesuffix("/pallas_call").rpartition("/")[2]
    if share := measured_shares().get((name, chip.name)):
        cycles = round(flops / flops_a_cycle(chip) / share)
        return Cost(size, kernel_cycles=cycles, kernel_traffic_cycles=by_traffic)
    floor = max(round(flops / flops_a_cycle(chip)), by_traffic)
    return Cost(size, kernel_cycles=floor, kernels_at_least=floor)

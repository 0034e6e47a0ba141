"""Sum memory traffic and cycles of a compiled step by part of the model."""

from typing import NamedTuple

from xlnet_jax.costs.chips import Chip
from xlnet_jax.planning.cycles import cycles_of_traffic, kernel_cycles
from xlnet_jax.planning.hlo import Computation, Instruction, Program
from xlnet_jax.planning.parts import Part, part_of
from xlnet_jax.planning.traffic import exchanges, moved_bytes


class Cost(NamedTuple):
    """Cost of instructions in one step, on each device."""

    bytes: int = 0
    """between the cores and their memory"""
    cycles: int = 0
    """as the compiler estimates them"""
    kernel_cycles: int = 0
    """of Pallas kernels, which the compiler does not estimate"""
    traffic_cycles: int = 0
    """of other instructions without an estimate: their memory traffic at the peak bandwidth"""
    kernels_at_least: int = 0
    """cycles among kernel_cycles that are a floor"""

    @property
    def all_cycles(self) -> int:
        """Cycles of all instructions."""
        return self.cycles + self.kernel_cycles + self.traffic_cycles

    def plus(self, other: "Cost", times: int = 1) -> "Cost":
        """Return the sum of this cost and of another, which occurs several times."""
        return Cost(*(a + times * b for a, b in zip(self, other, strict=True)))


def cost_by_part(program: Program, chip: Chip) -> dict[Part, Cost]:
    """Return the cost of a step by part of the model; every instruction counts for one part."""
    parts: dict[Part, Cost] = {}
    for computation, instruction, times in program.runs():
        cost = cost_of(program, computation, instruction, chip)
        if any(cost):
            part = part_of(program, instruction)
            parts[part] = parts.get(part, Cost()).plus(cost, times)
    return parts


def cost_of(program: Program, computation: Computation, instruction: Instruction, chip: Chip) -> Cost:
    """Return the cost of one run of an instruction.

    Asynchronous copies run beside other instructions, and collectives have a bound of their own (Plan.at_least), so
    neither has cycles. All other instructions of a core run one after the other.
    """
    size = moved_bytes(program, computation, instruction)
    if (cycles := instruction.estimated_cycles) is not None:
        return Cost(size, cycles)
    if instruction.opcode.endswith("-start") or any(exchanges(program, instruction)):
        return Cost(size)
    by_traffic = cycles_of_traffic(size, chip)
    kernel = kernel_cycles(instruction, chip)
    if kernel is None:
        return Cost(size, traffic_cycles=by_traffic)
    if not kernel.is_floor:
        return Cost(size, kernel_cycles=kernel.number)
    floor = max(kernel.number, by_traffic)
    return Cost(size, kernel_cycles=floor, kernels_at_least=floor)

"""Count the cycles of instructions: the compiler's estimates, and those of kernels, which the compiler does not know.

Cycles are those of one device, as jax counts devices: a core, and half a chip, on v2, v3 and v7; both cores of a chip
together ("megacore") on v4 and v5p; the chip's only core on v5e and v6e.
"""

from collections.abc import Mapping
from typing import NamedTuple

from xlnet_jax.costs.chips import Chip
from xlnet_jax.planning.hlo import Instruction
from xlnet_jax.planning.traffic import KERNEL, stated_cost

MEASURED: Mapping[tuple[str, str], float] = {
    ("fused_attention_forward", "v3"): 0.17,
    ("fused_attention_backward", "v3"): 0.17,
    ("fused_attention_forward", "v5e"): 0.46,
    ("fused_attention_backward", "v5e"): 0.62,
    ("fused_attention_forward", "v6e"): 0.13,
    ("fused_attention_backward", "v6e"): 0.18,
    ("fused_attention_forward", "v5p"): 0.46,
    ("fused_attention_backward", "v5p"): 0.63,
}
"""(kernel name, chip) -> share of the chip's peak FLOPs at which the kernel runs, from the instruction bundles that the
kernel compiler prints: stated FLOPs of a call / (bundles x FLOPs a cycle).

At the sizes of XLNet-Large, a tile of content rows and one of query rows take, forward and then backward, 2,978, 2,736,
5,584 and 6,270 bundles on v5e; 2,695, 2,493, 4,981 and 5,062 on v6e; 2,980, 2,756, 5,570 and 6,265 on v5p, whose two
cores share the tiles. On v3 both kernels of all layers together take roughly 580 million bundles a step. A bundle is a
cycle if nothing waits, so the share is what the kernel reaches at best."""


class KernelCycles(NamedTuple):
    """Cycles of one call of a Pallas kernel."""

    number: int
    is_floor: bool
    """True = the cycles of its FLOPs at the chip's peak; the kernel takes at least so long"""


def kernel_cycles(
    call: Instruction, chip: Chip, measured: Mapping[tuple[str, str], float] = MEASURED
) -> KernelCycles | None:
    """Return the cycles of a call of a Pallas kernel; None = another instruction, or a kernel that states no FLOPs."""
    stated = stated_cost(call) if call.call_target == KERNEL else None
    if not stated or not stated.flops:
        return None
    share = measured.get((kernel_name(call), chip.name))
    return KernelCycles(round(stated.flops / (flops_a_cycle(chip) * (share or 1.0))), share is None)


def kernel_name(call: Instruction) -> str:
    """Return the name that pallas_call was given: the last scope of the call but one."""
    return call.op_name.removesuffix("/pallas_call").rpartition("/")[2]


def flops_a_cycle(chip: Chip) -> float:
    """Return the peak FLOPs of a device in one cycle."""
    return chip.flops / chip.devices / chip.clock


def cycles_of_traffic(size: int, chip: Chip) -> int:
    """Return the cycles in which the memory of a chip moves this many bytes for one of its devices."""
    return round(size / (chip.memory_bandwidth / chip.devices) * chip.clock)

"""Cycles of a step: those that the compiler estimates, of kernels, and of instructions that neither knows."""

import dataclasses

import pytest

from tests.xlnet_jax.planning.compilers import needs_libtpu, run_program
from tests.xlnet_jax.planning.test_traffic import COST, KERNEL, program_of
from xlnet_jax.costs import CHIPS
from xlnet_jax.planning import step_cost
from xlnet_jax.planning.step_cost import Cost, cost_by_part, flops_a_cycle

CHIP = {chip.name: chip for chip in CHIPS}
# A chip of round numbers: a cycle moves 4 bytes of the memory, and has 1,000 FLOPs.
ROUND = dataclasses.replace(CHIP["v5e"], devices=1, flops=1e12, memory_bandwidth=4e9, clock=1e9)

KNOWN = '%known = f32[8,128]{1,0} exponential(%x), backend_config={"window_config":{},"estimated_cycles":"1000"}'
UNKNOWN = "%unknown = f32[1024]{0} reshape(%x)"
STARTED = "%near = (f32[8,128]{1,0:S(1)}, f32[8,128]{1,0}, u32[]{:S(2)}) copy-start(%x)"
EXCHANGED = "%sum = f32[8,128]{1,0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%add"
CALL = KERNEL.replace("COST", COST)
FLOPS, BYTES = 33_554_432, 123_456  # of the kernel


def total(*lines, chip=ROUND):
    parts = cost_by_part(program_of(*lines), chip).values()
    return Cost(*(sum(numbers) for numbers in zip(*parts, strict=True)))


def test_an_instruction_takes_the_cycles_of_its_estimate_or_else_of_its_traffic():
    cost = total(KNOWN, UNKNOWN, STARTED, EXCHANGED)  # the last two run beside others, or have a bound of their own
    assert (cost.cycles, cost.traffic_cycles, cost.kernel_cycles) == (1000, 2 * 4096 // 4, 0)
    assert total(KNOWN, UNKNOWN, CALL).all_cycles == 1000 + 2048 + FLOPS // 1000


def test_a_kernel_takes_as_long_as_was_measured_or_at_least_as_its_flops_and_its_traffic(monkeypatch):
    assert total(CALL).kernel_cycles == total(CALL).kernels_at_least == FLOPS // 1000
    assert total(CALL.replace(str(FLOPS), "1000")).kernel_cycles == BYTES // 4
    assert total(CALL.replace(f'"flops":"{FLOPS}",', "")).kernel_cycles == 0
    for chip, cycles, at_least in (("v5e", 2 * FLOPS, 0), ("v3", FLOPS, FLOPS)):
        monkeypatch.setattr(step_cost, "MEASURED", {("fused_attention", chip): 0.5})
        cost = total(CALL)
        assert (cost.kernel_cycles, cost.kernels_at_least) == (round(cycles / 1000), at_least // 1000)


def test_a_cycle_is_one_of_a_device_and_not_of_its_chip():
    v3 = CHIP["v3"]
    assert flops_a_cycle(v3) == pytest.approx(2 * 2 * 128**2, rel=0.01)  # one of two cores, two arrays
    assert total(UNKNOWN, chip=v3).traffic_cycles == pytest.approx(
        8192 / 450e9 * 0.94e9, abs=1
    )  # half of the bandwidth


COMPILE = """
import sys
import jax
from xlnet_jax.planning.hlo import parse
from xlnet_jax.planning.topologies import find_topology
sharding = jax.sharding.SingleDeviceSharding(find_topology(sys.argv[1]).devices[0])
matrix = jax.ShapeDtypeStruct((4096, 4096), "bfloat16", sharding=sharding)
program = parse(jax.jit(lambda a, b: a @ b).lower(matrix, matrix).compile().as_text())
print(sum(times * (instruction.estimated_cycles or 0) for _, instruction, times in program.runs()))
"""


@needs_libtpu
@pytest.mark.parametrize("topology", ["v2:2x2", "v3:2x2", "v4:1x1x1", "v5e:1x1", "v5p:1x1x1", "v6e:1x1", "v7:1x1x1"])
def test_cycles_are_those_of_one_device_at_the_clock_of_its_chip(topology):
    """The compiler expects a large product of matrices to run a little below the peak of the device."""
    chip = CHIP[topology.partition(":")[0]]
    assert 0.8 < 2 * 4096**3 / (int(run_program(COMPILE, topology)) * flops_a_cycle(chip)) < 1

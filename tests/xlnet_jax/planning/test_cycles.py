"""Cycles of a step: those that the compiler estimates, of kernels, and of instructions that neither knows."""

import dataclasses

import pytest

from tests.xlnet_jax.planning.compilers import needs_libtpu, run_program
from xlnet_jax.costs import CHIPS
from xlnet_jax.planning import step_cost
from xlnet_jax.planning.hlo import parse
from xlnet_jax.planning.step_cost import Cost, cost_by_part, flops_a_cycle

CHIP = {chip.name: chip for chip in CHIPS}
# A chip of round numbers: a cycle moves 4 bytes of the memory, and has 1,000 FLOPs.
ROUND = dataclasses.replace(CHIP["v5e"], devices=1, flops=1e12, memory_bandwidth=4e9, clock=1e9)

PROGRAM = """\
HloModule step, is_scheduled=true

%body (state: (s32[], f32[1024])) -> (s32[], f32[1024]) {
  %state = (s32[]{:S(1)}, f32[1024]{0}) parameter(0)
  %i = s32[]{:S(1)} get-tuple-element(%state), index=0
  %x = f32[1024]{0} get-tuple-element(%state), index=1
  %known = f32[1024]{0} exponential(%x), backend_config={"window_config":{},"estimated_cycles":"1000"}
  %unknown = f32[1024]{0} reshape(%known)
  %near = (f32[1024]{0:S(1)}, f32[1024]{0}, u32[]{:S(2)}) copy-start(%unknown)
  %there = f32[1024]{0:S(1)} copy-done(%near)
  %sum = f32[1024]{0:S(1)} all-reduce(%there), replica_groups={{0,1}}, to_apply=%add
  %kernel = f32[1024]{0} custom-call(%unknown), custom_call_target="tpu_custom_call", metadata={op_name="jit(step)/fused/mine/pallas_call"}, backend_config={"custom_call_config":{"cost_estimate":{"flops":"5000000","bytes_accessed":"4000"}}}
  ROOT %next = (s32[]{:S(1)}, f32[1024]{0}) tuple(%i, %kernel)
}

%condition (state.1: (s32[], f32[1024])) -> pred[] {
  %layers = s32[]{:S(1)} constant(24)
  %state.1 = (s32[]{:S(1)}, f32[1024]{0}) parameter(0)
  %i.1 = s32[]{:S(1)} get-tuple-element(%state.1), index=0
  ROOT %less = pred[]{:S(1)} compare(%i.1, %layers), direction=LT
}

ENTRY %main (p: (s32[], f32[1024])) -> (s32[], f32[1024]) {
  %p = (s32[]{:S(1)}, f32[1024]{0}) parameter(0)
  %loop = (s32[]{:S(1)}, f32[1024]{0}) while(%p), condition=%condition, body=%body
  %x.2 = f32[1024]{0} get-tuple-element(%loop), index=1
  %once = f32[1024]{0} negate(%x.2), backend_config={"estimated_cycles":"7"}
  ROOT %out = (s32[]{:S(1)}, f32[1024]{0}) tuple(%i, %once)
}
"""  # noqa: E501


def total(text, chip=ROUND):
    parts = cost_by_part(parse(text), chip).values()
    return Cost(*(sum(numbers) for numbers in zip(*parts, strict=True)))


def test_cycles_are_summed_over_the_turns_of_loops():
    cost = total(PROGRAM)
    assert cost.cycles == 24 * 1000 + 7
    # Without an estimate: as long as its traffic. The reshape, but not the copy in the background.
    assert cost.traffic_cycles == 24 * 2 * 4096 // 4
    assert cost.kernel_cycles == cost.kernels_at_least == 24 * 5000  # its FLOPs at the peak
    assert cost.all_cycles == 24 * (1000 + 2048 + 5000) + 7


def test_a_kernel_takes_as_long_as_was_measured_or_at_least_as_its_flops_and_its_traffic(monkeypatch):
    assert total(PROGRAM.replace('"5000000"', '"1000"')).kernel_cycles == 24 * 1000  # its traffic
    assert total(PROGRAM.replace('"flops":"5000000",', "")).kernel_cycles == 0
    for chip, cycles, at_least in (("v5e", 10_000, 0), ("v3", 5000, 5000)):
        monkeypatch.setattr(step_cost, "MEASURED", {("mine", chip): 0.5})
        cost = total(PROGRAM)
        assert (cost.kernel_cycles, cost.kernels_at_least) == (24 * cycles, 24 * at_least)


def test_a_cycle_is_one_of_a_device_and_not_of_its_chip():
    v3 = CHIP["v3"]
    assert flops_a_cycle(v3) == pytest.approx(2 * 2 * 128**2, rel=0.01)  # one of two cores, two arrays
    seconds = 4 * 2 * 4096 * 24 / 450e9  # at half of the bandwidth
    assert total(PROGRAM, v3).traffic_cycles == pytest.approx(seconds * 0.94e9 / 4, rel=0.05)


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

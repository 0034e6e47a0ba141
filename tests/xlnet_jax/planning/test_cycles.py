"""Cycles of a step: those that the compiler estimates, of kernels, and of instructions that neither knows."""

import dataclasses
import importlib.util
import subprocess
import sys

import pytest

from xlnet_jax.costs import CHIPS
from xlnet_jax.planning.hlo import parse
from xlnet_jax.planning.step_cost import (
    Cost,
    KernelCycles,
    cost_by_part,
    cycles_of_traffic,
    flops_a_cycle,
    kernel_cycles,
    kernel_name,
)

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


def total(program, chip=ROUND):
    parts = cost_by_part(program, chip).values()
    return Cost(*(sum(numbers) for numbers in zip(*parts, strict=True)))


def test_cycles_are_summed_over_the_turns_of_loops():
    assert total(parse(PROGRAM)).cycles == 24 * 1000 + 7


def test_an_instruction_without_an_estimate_takes_as_long_as_its_traffic():
    assert total(parse(PROGRAM)).traffic_cycles == 24 * 2 * 4096 // 4  # the reshape: not the copy in the background


def test_a_kernel_takes_at_least_as_long_as_its_flops_at_the_peak():
    cost = total(parse(PROGRAM))
    assert cost.kernel_cycles == cost.kernels_at_least == 24 * 5000
    assert cost.all_cycles == 24 * (1000 + 2048 + 5000) + 7


def test_a_kernel_of_few_flops_takes_at_least_as_long_as_its_traffic():
    assert total(parse(PROGRAM.replace('"5000000"', '"1000"'))).kernel_cycles == 24 * 1000


def test_a_kernel_whose_speed_was_measured_takes_that_long():
    call = parse(PROGRAM).computations["%body"].instructions["%kernel"]
    assert kernel_name(call) == "mine"
    assert kernel_cycles(call, ROUND, {("mine", "v5e"): 0.5}) == KernelCycles(10_000, is_floor=False)
    assert kernel_cycles(call, ROUND, {("mine", "v3"): 0.5}) == KernelCycles(5000, is_floor=True)


def test_a_cycle_is_one_of_a_device_and_not_of_its_chip():
    assert flops_a_cycle(CHIP["v3"]) == pytest.approx(2 * 2 * 128**2, rel=0.01)  # one of two cores, two arrays
    assert cycles_of_traffic(450 * 10**9, CHIP["v3"]) == 940_000_000  # a second at half of the bandwidth


def test_what_is_no_kernel_or_states_no_flops_has_no_cycles_of_a_kernel():
    instructions = parse(PROGRAM.replace('"flops":"5000000",', "")).computations["%body"].instructions
    assert kernel_cycles(instructions["%kernel"], ROUND) is None
    assert kernel_cycles(instructions["%known"], ROUND) is None


COMPILE = """
import os, sys
from xlnet_jax.planning.topologies import ENVIRONMENT, find_topology
os.environ.update(ENVIRONMENT)
import jax
from xlnet_jax.planning.hlo import parse
sharding = jax.sharding.SingleDeviceSharding(find_topology(sys.argv[1]).devices[0])
matrix = jax.ShapeDtypeStruct((4096, 4096), "bfloat16", sharding=sharding)
program = parse(jax.jit(lambda a, b: a @ b).lower(matrix, matrix).compile().as_text())
print(sum(times * (instruction.estimated_cycles or 0) for _, instruction, times in program.runs()))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="the TPU compiler: pip install 'xlnet_jax[plan]'"
)
@pytest.mark.parametrize("topology", ["v2:2x2", "v3:2x2", "v4:1x1x1", "v5e:1x1", "v5p:1x1x1", "v6e:1x1", "v7:1x1x1"])
def test_cycles_are_those_of_one_device_at_the_clock_of_its_chip(topology):
    """The compiler expects a large product of matrices to run a little below the peak of the device."""
    done = subprocess.run([sys.executable, "-c", COMPILE, topology], capture_output=True, text=True, check=True)
    chip = CHIP[topology.partition(":")[0]]
    assert 0.8 < 2 * 4096**3 / (int(done.stdout) * flops_a_cycle(chip)) < 1

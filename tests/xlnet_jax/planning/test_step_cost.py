"""Cost of a step, counted in small programs that are written out here: bytes that it moves, cycles of its instructions,
and the parts of the model that these count for."""

import dataclasses
import re
from typing import get_args

import jax
import jax.numpy as jnp
import pytest

from tests.xlnet_jax.planning.compilers import TINY, needs_libtpu, run_plan, run_program
from xlnet_jax.costs import CHIPS
from xlnet_jax.planning import step_cost
from xlnet_jax.planning.hlo import parse, root_of
from xlnet_jax.planning.step_cost import (
    Collective,
    Cost,
    StepPart,
    collectives,
    cost_by_part,
    flops_a_cycle,
    moved_bytes,
    part_of,
    part_of_scopes,
)

KERNEL = """\
%kernel = f32[8,128]{1,0:T(8,128)} custom-call(%x), custom_call_target="tpu_custom_call", \
metadata={op_name="jit(step)/fused_attention/pallas_call"}, \
backend_config={"custom_call_config":{"body":"TUzvUg==",COST"needs_layout_passes":true}}"""
COST = """"cost_estimate":{"flops":"33554432","transcendentals":"7","bytes_accessed":"123456"},"""
ARRAY = 4 * 8 * 128


def program_of(*lines, functions=""):
    """Return a program of these instructions, which may read %x, 8 x 128 float32 numbers."""
    body = "\n".join(f"  {line}" for line in ("%x = f32[8,128]{1,0:T(8,128)} parameter(0)", *lines))
    return parse(f"HloModule step\n\n{functions}\nENTRY %main (x: f32[8,128]) -> f32[] {{\n{body}\n}}\n")


def bytes_of(*lines, functions=""):
    return memory_bytes(program_of(*lines, functions=functions))


def memory_bytes(program):
    return sum(times * moved_bytes(program, *instruction) for *instruction, times in program.runs())


def test_a_loop_inside_a_loop_runs_as_often_as_both():
    product, n = jax.ShapeDtypeStruct((8, 8), "float32"), (3, 5)

    def repeat(x, turn, count):
        return jax.lax.fori_loop(0, count, lambda _, x: turn(x), x)

    nested = jax.jit(lambda x, y: repeat(x, lambda x: repeat(x, lambda x: jnp.sin(x @ y), n[1]), n[0]))
    program = parse(nested.lower(product, product).compile().as_text())
    products = [t for _, i, t in program.runs() if i.opcode in ("dot", "custom-call") or "dot_general" in i.op_name]
    assert max(products) == n[0] * n[1]


@pytest.mark.parametrize("branches", ["%skip, %update", "%update, %skip"])
def test_of_the_branches_of_a_step_the_one_that_does_the_work_counts(branches):
    functions = """\
%skip (same: f32[8,128]) -> f32[8,128] {
  ROOT %same = f32[8,128]{1,0} parameter(0)
}

%update (old: f32[8,128]) -> f32[8,128] {
  %old = f32[8,128]{1,0} parameter(0)
  ROOT %new = f32[8,128]{1,0} negate(%old)
}
"""
    line = f"ROOT %next = f32[8,128]{{1,0}} conditional(%x, %x, %x), branch_computations={{{branches}}}"
    assert bytes_of(line, functions=functions) == 2 * ARRAY


def test_an_exchange_beside_other_work_counts_once():
    gather = 'all-gather(%own), replica_groups={{0,1,2,3,4,5,6,7}}, frontend_attributes={chain_id="0"}'
    functions = f"""\
%begins (own: f32[8,128]) -> f32[64,128] {{
  %own = f32[8,128]{{1,0}} parameter(0)
  ROOT %g = f32[64,128]{{1,0}} {gather}
}}

%ends (own: f32[8,128], begun: f32[64,128]) -> f32[64,128] {{
  %own = f32[8,128]{{1,0}} parameter(0)
  %begun = f32[64,128]{{1,0}} parameter(1)
  %g = f32[64,128]{{1,0}} {gather}
  ROOT %ended = f32[64,128]{{1,0}} custom-call(%begun, %g), custom_call_target="AsyncCollectiveDone"
}}
"""
    program = program_of(
        "%start = f32[64,128]{1,0} fusion(%x), kind=kCustom, calls=%begins",
        "ROOT %done = f32[64,128]{1,0} fusion(%x, %start), kind=kCustom, calls=%ends",
        functions=functions,
    )
    assert collectives(program, 8) == [Collective("all-gather", 1, 8 * ARRAY, 8)]


LOOP = program_of(
    "%zero = s32[] constant(0)",
    "%begin = (s32[], f32[8,128]{1,0}) tuple(%zero, %x)",
    "%loop = (s32[], f32[8,128]{1,0}) while(%begin), condition=%condition, body=%body",
    "%scattered = f32[1,128]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1",
    functions="""\
%all-reduce-scatter.1 (whole: f32[8,128]) -> f32[1,128] {
  %whole = f32[8,128]{1,0} parameter(0)
  %all-reduce.3 = f32[8,128]{1,0} all-reduce(%whole), replica_groups={{0,1,2,3,4,5,6,7},{8,9,10,11,12,13,14,15}}
  ROOT %part = f32[1,128]{1,0} slice(%all-reduce.3), slice={[0:1], [0:128]}
}

%body (state: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %state = (s32[], f32[8,128]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %rows = f32[8,128]{1,0} get-tuple-element(%state), index=1
  %near = f32[8,128]{1,0:T(8,128)S(1)} copy(%rows)
  %sum = f32[8,128]{1,0} all-reduce(%near), replica_groups=mesh['x'=4,'y'=4], device_ids=([4,4]T(1,0)) {'x'}
  ROOT %next = (s32[], f32[8,128]{1,0}) tuple(%i, %sum)
}

%condition (state.2: (s32[], f32[8,128])) -> pred[] {
  %turns = s32[] constant(24)
  %state.2 = (s32[], f32[8,128]{1,0}) parameter(0)
  %i.2 = s32[] get-tuple-element(%state.2), index=0
  ROOT %less = pred[] compare(%i.2, %turns), direction=LT
}
""",
)


def test_a_loop_counts_as_often_as_it_turns_and_what_stays_near_moves_nothing():
    assert collectives(LOOP, 16) == [Collective("all-reduce", 24, ARRAY, 4), Collective("reduce-scatter", 1, ARRAY, 8)]
    # A turn reads the rows and writes their sum; the scattered sum reads all and writes an eighth.
    assert memory_bytes(LOOP) == 24 * 2 * ARRAY + ARRAY + ARRAY // 8


def test_a_reduce_scatter_counts_the_whole_that_it_reads():
    program = program_of("ROOT %part = f32[1,128]{1,0} reduce-scatter(%x), replica_groups=[2,8]<=[16], dimensions={0}")
    assert collectives(program, 16) == [Collective("reduce-scatter", 1, ARRAY, 8)]


def test_a_ring_sends_what_no_exchange_can_do_without():
    assert Collective("all-reduce", 3, 800, 4).sent == pytest.approx(3 * 2 * 800 * 3 / 4)
    assert Collective("all-gather", 3, 800, 4).sent == pytest.approx(3 * 800 * 3 / 4)
    assert Collective("collective-permute", 3, 800, 2).sent == 3 * 800


@pytest.mark.parametrize(
    ("lines", "moved"),
    [
        (["ROOT %r = f32[1024]{0:T(1024)} reshape(%x)"], 2 * ARRAY),  # it changes the layout: a copy
        (["ROOT %r = f32[1,8,128]{2,1,0:T(8,128)} bitcast(%x)"], 0),
        (["ROOT %c = f32[8,128]{0,1:T(8,128)} copy(%x)"], 2 * ARRAY),
        (["%z = f32[]{:T(128)S(1)} constant(0)", "ROOT %p = f32[9,128]{1,0} pad(%x, %z)"], ARRAY + 4 * 9 * 128),
        (["ROOT " + KERNEL.replace("COST", COST)], 123_456),
        (["ROOT " + KERNEL.replace("COST", "")], 2 * ARRAY),  # operands and result once
        (["%s = (f32[8,128]{1,0}, f32[32,128]{1,0}, u32[]{:S(2)}) all-gather-start(%x)"], ARRAY + 4 * ARRAY),
        (["%s = f32[8,128]{1,0} all-reduce-start(%x)", "ROOT %d = f32[8,128]{1,0} all-reduce-done(%s)"], 2 * ARRAY),
    ],
)
def test_instructions_read_their_operands_and_write_their_result(lines, moved):
    assert bytes_of(*lines) == moved


def test_a_reshape_in_a_fusion_moves_nothing_beside_what_the_fusion_moves():
    functions = """\
%fused (p: f32[8,128]) -> f32[128] {
  %p = f32[8,128]{1,0:T(8,128)} parameter(0)
  %flat = f32[1024]{0:T(1024)} reshape(%p)
  ROOT %part = f32[128]{0:T(128)} slice(%flat), slice={[0:128]}
}
"""
    assert bytes_of("ROOT %f = f32[128]{0:T(128)} fusion(%x), kind=kLoop, calls=%fused", functions=functions) == 2 * 512


@pytest.mark.parametrize(("start", "is_made"), [("bitcast(%p)", False), ("broadcast(%zero), dimensions={}", True)])
def test_an_update_in_a_fusion_writes_a_part_unless_the_fusion_makes_the_whole(start, is_made):
    functions = f"""\
%fused (p: f32[8,128]) -> f32[8,128] {{
  %p = f32[8,128]{{1,0:T(8,128)}} parameter(0)
  %zero = f32[] constant(0)
  %i = s32[] constant(0)
  %row = f32[1,128]{{1,0:T(8,128)}} broadcast(%zero), dimensions={{}}
  %start = f32[8,128]{{1,0:T(8,128)}} {start}
  ROOT %u = f32[8,128]{{1,0:T(8,128)}} dynamic-update-slice(%start, %row, %i, %i)
}}
"""
    moved = bytes_of("ROOT %f = f32[8,128]{1,0:T(8,128)} fusion(%x), kind=kLoop, calls=%fused", functions=functions)
    assert moved == (ARRAY if is_made else ARRAY // 8)


def test_an_asynchronous_fusion_moves_what_the_fusion_moves():
    functions = """\
%fused (p: f32[8,128], i: s32[]) -> f32[1,128] {
  %p = f32[8,128]{1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %part = f32[1,128]{1,0} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={1,128}
}
"""
    lines = (
        "%i = s32[] constant(3)",
        "%s = ((f32[8,128]{1,0}, s32[]), f32[1,128]{1,0}, u32[]) fusion-start(%x, %i), kind=kLoop, calls=%fused",
        "ROOT %d = f32[1,128]{1,0} fusion-done(%s)",
    )
    assert bytes_of(*lines, functions=functions) == pytest.approx(2 * ARRAY // 8, abs=16)


# ---- cycles ----------------------------------------------------------------------------------------------------------

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
    assert (cost.copy_cycles, cost.kernel_traffic_cycles) == (4096 // 4, 0)  # one side of the copy is on the chip
    assert total(KNOWN, UNKNOWN, CALL).all_cycles == 1000 + 2048 + FLOPS // 1000


def test_a_kernel_takes_as_long_as_was_measured_or_at_least_as_its_flops_and_its_traffic(monkeypatch):
    assert total(CALL).kernel_cycles == total(CALL).kernels_at_least == FLOPS // 1000
    assert total(CALL.replace(str(FLOPS), "1000")).kernel_cycles == BYTES // 4
    assert total(CALL.replace(f'"flops":"{FLOPS}",', "")).kernel_cycles == 0
    for chip, cycles, at_least in (("v5e", 2 * FLOPS, 0), ("v3", FLOPS, FLOPS)):
        monkeypatch.setattr(step_cost, "measured_shares", lambda chip=chip: {("fused_attention", chip): 0.5})
        cost = total(CALL)
        assert (cost.kernel_cycles, cost.kernels_at_least) == (round(cycles / 1000), at_least // 1000)
        assert cost.kernel_traffic_cycles == (0 if at_least else BYTES // 4)


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


# ---- parts of the model ----------------------------------------------------------------------------------------------

FORWARD = "jit(train_step)/jvp(XLNetLM)/backbone/while/body/closed_call/layers"
BACKWARD = (
    "jit(train_step)/transpose(jvp(XLNetLM))/backbone/while/body/closed_call/checkpoint/rematted_computation/layers"
)


@pytest.mark.parametrize(
    ("op_name", "part"),
    [
        (f"{BACKWARD}/attention/attention_scores/fused/pallas_call", "attention scores"),
        (f"{FORWARD}/attention/attention_scores/position_scores/BNTH,BNRH->BNTR/dot_general", "position product"),
        (f"{BACKWARD}/attention/attention_scores/position_scores/relative_shift/jit(_pad)/pad", "relative shift"),
        (f"{FORWARD}/attention/attention_scores/attention_dropout/shift_right_logical", "attention dropout"),
        (f"{BACKWARD}/feed_forward/Dropout_1/ge", "hidden dropout"),
        (f"{FORWARD}/attention/BTD,DNH->BNTH/dot_general", "projections"),
        ("jit(train_step)/jvp(XLNetLM)/backbone/backbone._embed/gather", "memory, embedding"),
        ("jit(train_step)/jvp(XLNetLM)/backbone/while/body/jit(dynamic_index_in_dim)/squeeze", "copies"),
        ("jit(train_step)/transpose(jvp(vocabulary))/reduce_sum", "vocabulary"),
        ("jit(train_step)/jit(_where)/select_n", "optimizer"),
        ("", "rest"),
    ],
)
def test_the_innermost_scope_that_is_known_names_the_part(op_name, part):
    assert part_of_scopes(op_name) == part


def part_of_fusion(*inner):
    """Return the part of a fusion of instructions: (opcode, shape, scope)."""
    lines = [
        f'  %i{n} = {shape}{{0}} {opcode}(%p), metadata={{op_name="{FORWARD}/attention/{scope}/x"}}'
        for n, (opcode, shape, scope) in enumerate(inner)
    ]
    functions = "\n".join(["%fused (p: u32[8]) -> u32[8] {", "  %p = u32[8]{0} parameter(0)", *lines, "}", ""])
    scope = f'metadata={{op_name="{FORWARD}/feed_forward/x"}}'
    program = program_of(f"ROOT %f = u32[8]{{0}} fusion(%x), kind=kLoop, calls=%fused, {scope}", functions=functions)
    return part_of(program, root_of(program.computations["%main"]))


def test_a_fusion_counts_for_the_part_that_computes_the_most_in_it_and_not_for_its_root():
    hashing = [("multiply", "u32[8]", "attention_dropout")] * 3
    assert part_of_fusion(*hashing, ("select", "f32[8]", "attention_scores")) == "attention dropout"
    assert part_of_fusion(*hashing, ("select", "f32[64]", "attention_scores")) == "attention scores"
    # With a product, for the part of the largest product; with nothing that is known, for its own scope.
    product = ("convolution", "f32[8]", "attention_scores")
    assert part_of_fusion(product, *hashing) == "attention scores"
    assert part_of_fusion(product, ("convolution", "f32[9]", "position_scores"), *hashing) == "position product"
    assert part_of_fusion(("iota", "u32[8]", "attention_dropout")) == "feed-forward"


def test_collectives_and_copies_are_parts_of_their_own():
    assert set(cost_by_part(LOOP, ROUND)) == {"collectives", "copies"}


TINY_WITH_DROPOUT = f"{TINY} --model.dropout 0.1 --model.attention-dropout 0.1 --model.attention plain"


@needs_libtpu
def test_a_real_step_has_every_part():
    code, out = run_plan(f"{TINY_WITH_DROPOUT} --data.batch-size 8 --topology v5e:2x2 --breakdown")
    assert code == 0
    table = out.partition("part of a step")[2]
    rows = dict(re.findall(r"^ +([a-z][a-z,\- ]*?)  +[\d.,]+ +.* ([\d.]+)%", table, re.MULTILINE))
    assert set(rows) == {*get_args(StepPart), "all"}
    assert float(rows.pop("all")) == 100
    assert sum(map(float, rows.values())) == pytest.approx(100, abs=0.05 * len(rows))
    assert float(rows["rest"]) < 10

"""Parts of the model that the instructions of a step count for."""

import re
from typing import get_args

import pytest

from tests.xlnet_jax.planning.compilers import TINY, needs_libtpu, run_plan
from tests.xlnet_jax.planning.test_cycles import ROUND
from tests.xlnet_jax.planning.test_traffic import PROGRAM
from xlnet_jax.planning.hlo import parse
from xlnet_jax.planning.step_cost import Part, cost_by_part, part_of, part_of_scopes

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
        (f"{FORWARD}/feed_forward/inner/dot_general", "feed-forward"),
        ("jit(train_step)/jvp(XLNetLM)/backbone/backbone._embed/gather", "memory, embedding"),
        ("jit(train_step)/jvp(XLNetLM)/backbone/while/body/jit(dynamic_index_in_dim)/squeeze", "copies"),
        ("jit(train_step)/transpose(jvp(vocabulary))/reduce_sum", "vocabulary"),
        ("jit(train_step)/jit(_where)/select_n", "optimizer"),
        ("jit(train_step)/jvp()/sub", "rest"),
        ("", "rest"),
    ],
)
def test_the_innermost_scope_that_is_known_names_the_part(op_name, part):
    assert part_of_scopes(op_name) == part


def fusion(*inner):
    """Return a program whose only instruction is a fusion of instructions: (opcode, shape, scope)."""
    lines = [
        f'  %i{n} = {shape}{{0}} {opcode}(%p), metadata={{op_name="{FORWARD}/attention/{scope}/x"}}'
        for n, (opcode, shape, scope) in enumerate(inner)
    ]
    lines[-1] = lines[-1].replace("  %", "  ROOT %")
    return parse(
        "HloModule step\n\n%fused (p: u32[8]) -> u32[8] {\n  %p = u32[8]{0} parameter(0)\n"
        + "\n".join(lines)
        + "\n}\n\nENTRY %main (x: u32[8]) -> u32[8] {\n  %x = u32[8]{0} parameter(0)\n"
        + "  ROOT %f = u32[8]{0} fusion(%x), kind=kLoop, calls=%fused, "
        + f'metadata={{op_name="{FORWARD}/feed_forward/x"}}\n}}\n'
    )


def part_of_fusion(*inner):
    program = fusion(*inner)
    return part_of(program, program.computations["%main"].root)


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
    assert set(cost_by_part(parse(PROGRAM), ROUND)) == {"collectives", "copies", "rest"}


TINY_WITH_DROPOUT = f"{TINY} --model.dropout 0.1 --model.attention-dropout 0.1 --model.attention plain"


@needs_libtpu
def test_a_real_step_has_every_part():
    code, out = run_plan(f"{TINY_WITH_DROPOUT} --batch 8 --topology v5e:2x2 --breakdown")
    assert code == 0
    table = out.partition("part of a step")[2]
    rows = dict(re.findall(r"^ +([a-z][a-z,\- ]*?)  +[\d.,]+ +.* ([\d.]+)%", table, re.MULTILINE))
    assert set(rows) == {*get_args(Part), "all"}
    assert float(rows.pop("all")) == 100
    assert sum(map(float, rows.values())) == pytest.approx(100, abs=0.05 * len(rows))
    assert float(rows["rest"]) < 10

"""The fused attention kernels compiled for TPUs that are not here, alone and inside the step."""

import pytest

from tests.xlnet_jax.planning.compilers import needs_libtpu, run_program

pytestmark = needs_libtpu

PROGRAM = """
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.xlnet_jax.kernels.attention_cases import Case, inputs_of, pulled_back
from xlnet_jax.kernels.implementations import fused_attention_BNTH, why_not_fused
from xlnet_jax.planning.topologies import find_topology

mesh = Mesh(np.array(find_topology(sys.argv[1]).devices[:1]), ("data",))
length, memory = map(int, sys.argv[2:])
inputs = inputs_of(Case(length=length, targets=85, memory=memory, rate=0.1, dtype="bfloat16"))
grad = jax.ShapeDtypeStruct(inputs.query_BNTH.shape, "bfloat16", sharding=NamedSharding(mesh, PartitionSpec()))


def program(grad_BNTH):
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        assert why_not_fused(inputs) is None
        return pulled_back(fused_attention_BNTH, inputs)(grad_BNTH)


text = jax.jit(program).lower(grad).compile().as_text()
print(*(f"fused_attention_{name}" in text for name in ("forward", "backward")))
"""


@pytest.mark.parametrize(
    ("topology", "length", "memory"),
    [
        ("v2:2x2", 512, 384),
        ("v3:2x2", 512, 384),
        ("v4:2x2x1", 512, 384),
        ("v5e:1x1", 2048, 1024),
        ("v5p:1x1x1", 2048, 1024),
        ("v6e:1x1", 2048, 1024),
        ("v7:2x2x1", 2048, 1024),
        ("v3:2x2", 4096, 384),
        ("v5e:1x1", 16384, 384),
    ],
)
def test_both_kernels_compile(topology, length, memory):
    """At the largest sizes that they take whole (`Generation.reach`), and in blocks."""
    assert run_program(PROGRAM, topology, length, memory).split() == ["True", "True"]


STEP = """
import dataclasses
import sys

from xlnet_jax.objectives.presets import base, demo
from xlnet_jax.planning.estimate import make_plan
from xlnet_jax.planning.topologies import find_topology

demo = demo()
model = dataclasses.replace(
    demo.model, num_heads=4, mem_len=384, dtype="bfloat16", remat="full", dropout=0.1, attention_dropout=0.1
)
for attention in ("plain", "auto"):
    config = dataclasses.replace(demo, model=dataclasses.replace(model, attention=attention))
    config = dataclasses.replace(config, data=dataclasses.replace(base().data, batch_size=32))
    plan = make_plan(config, find_topology(sys.argv[1]))
    print(plan.config.model.attention, plan.total.bytes, *sorted(plan.parts), sep=",")
"""
OF_SCORES = {"relative shift", "attention dropout", "position product"}


@pytest.mark.parametrize("topology", ["v5e:2x2", "v3:2x2"])
def test_a_step_with_the_kernel_moves_less_than_half_of_the_bytes(topology):
    """Scores by distance, their shift and the dropout masks of attention never reach the device's memory."""
    lines = run_program(STEP, topology).replace("memory, embedding", "memory").splitlines()
    (plain, plain_bytes, *plain_parts), (fused, fused_bytes, *fused_parts) = (line.split(",") for line in lines)
    assert (plain, fused) == ("plain", "fused")
    assert set(plain_parts) >= OF_SCORES
    assert not OF_SCORES & set(fused_parts)
    assert int(fused_bytes) < 0.5 * int(plain_bytes)

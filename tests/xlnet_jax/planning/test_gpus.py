"""Plans for GPUs that are not here: their names, and steps and attention kernels that jax's CUDA plugin compiles."""

import pytest

from tests.xlnet_jax.planning.compilers import has_gpu_compiler, needs_gpu_compiler, run_program
from xlnet_jax.errors import InputError
from xlnet_jax.planning.topologies import GPUS, chip_of_gpu, describe_gpu, find_topology, parse_gpus


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h200-1", ("h200", 1)),
        ("A100-4", ("a100", 4)),
        ("h100-64", ("h100", 64)),
        ("h100-12", None),
        ("h100-0", None),
        ("v5e-1", None),
    ],
)
def test_a_name_says_the_kind_and_the_number(name, expected):
    assert parse_gpus(name) == expected


@pytest.mark.parametrize(
    ("name", "slices", "line"),
    [
        ("h100-12", 1, r"`topology` h100-12: there is no such slice\. .* as h100-8: l4 a6000 a100 h100 h200$"),
        ("h100-8", 2, r"^`mesh.dcn_data` 2: GPUs have no slices; name all of them, as h100-16$"),
        ("h200-1", 1, r"pip install 'xlnet_jax\[plan-gpu\]' in an environment of its own$"),
    ],
)
def test_gpus_that_cannot_be_had_are_refused(name, slices, line):
    if name == "h200-1" and has_gpu_compiler:
        pytest.skip("the compiler is here")
    with pytest.raises(InputError, match=line):
        find_topology(name, slices)


@pytest.mark.parametrize("kind", GPUS)
def test_devices_are_known_by_the_name_that_the_description_gives(kind):
    chip = chip_of_gpu(kind)
    text = describe_gpu(kind)
    assert f'device_description_str: "{chip.device_kinds[0]}"' in text
    assert f"memory_bandwidth: {chip.memory_bandwidth:.0f}\n" in text


KERNELS = """
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.xlnet_jax.kernels.attention_cases import Case, inputs_of
from xlnet_jax.kernels.arguments import numbers_of
from xlnet_jax.kernels.implementations import fused_attention_BNTH, why_not_fused
from xlnet_jax.planning.topologies import find_topology

kind, width, dtype = sys.argv[1:]
mesh = Mesh(np.array(find_topology(kind).devices[:1]), ("data",))
inputs = inputs_of(Case(length=512, targets=85, memory=384, width=int(width), rate=0.1, dtype=dtype))


def program(numbers, seed_BN, grad_BNTH):
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        drawn = inputs._replace(dropout=inputs.dropout._replace(seed_BN=seed_BN))
        assert why_not_fused(drawn) is None
        read_BNTH, pull = jax.vjp(lambda n: fused_attention_BNTH(drawn._replace(**n)), numbers)
        return read_BNTH, pull(grad_BNTH)


here = NamedSharding(mesh, PartitionSpec())
arguments = jax.tree.map(
    lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=here),
    (numbers_of(inputs), inputs.dropout.seed_BN, inputs.query_BNTH),
)
text = jax.jit(program).lower(*arguments).compile().as_text()
calls = [line for line in text.splitlines() if "__gpu$xla.gpu.triton" in line]
for name in ("forward", "backward", "backward_keys"):
    print(sum(f"fused_attention_{name}/pallas_call" in line for line in calls))
"""


@needs_gpu_compiler
@pytest.mark.parametrize(
    ("kind", "width", "dtype"),
    [
        ("h200-1", 64, "bfloat16"),
        ("h200-1", 128, "float32"),
        ("a100-1", 64, "bfloat16"),
        ("a6000-1", 64, "float32"),  # little shared memory
        ("l4-1", 128, "bfloat16"),
    ],
)
def test_the_kernels_compile_for_a_described_gpu(kind, width, dtype):
    assert run_program(KERNELS, kind, width, dtype).split() == ["1", "1", "1"]


STEP = """
import dataclasses
import sys

from xlnet_jax.objectives.presets import base
from xlnet_jax.planning.estimate import make_plan
from xlnet_jax.planning.topologies import find_topology

for attention in ("plain", "auto"):
    config = base()
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, attention=attention),
        data=dataclasses.replace(config.data, batch_size=int(sys.argv[2])),
    )
    plan = make_plan(config, find_topology(sys.argv[1]))
    kinds = {c.kind for c in plan.collectives}
    print(plan.config.model.attention, len(plan.topology.devices), plan.fits, "all-reduce" in kinds, plan.total.bytes)
    print(*sorted(plan.parts), sep=";")
"""
IN_KERNELS = {"relative shift", "attention dropout"}


@needs_gpu_compiler
@pytest.mark.parametrize(("topology", "devices"), [("h200-1", 1), ("h100-8", 8), ("a100-4", 4)])
def test_a_step_of_base_with_the_kernels_shifts_nothing_in_memory_and_moves_less(topology, devices):
    """Scores by distance alone are left of the arrays that are as large as the scores."""
    plain, plain_parts, fused, fused_parts = run_program(STEP, topology, 8 * devices).splitlines()
    *told, plain_bytes = plain.split()
    assert told == ["plain", str(devices), "True", str(devices > 1)]
    *told, fused_bytes = fused.split()
    assert told == ["fused", str(devices), "True", str(devices > 1)]
    assert set(plain_parts.split(";")) >= IN_KERNELS
    assert not set(fused_parts.split(";")) & IN_KERNELS
    assert int(fused_bytes) < 0.6 * int(plain_bytes)

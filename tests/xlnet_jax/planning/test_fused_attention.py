"""The fused attention kernels compiled for TPUs and GPUs that are not here, alone and inside the step."""

import json

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from benchmarks.kernel_cycles import COMPILE
from tests.xlnet_jax.kernels.attention_cases import Case, inputs_of
from tests.xlnet_jax.planning.compilers import needs_gpu_compiler, needs_libtpu, run_program
from xlnet_jax.kernels.arguments import numbers_of
from xlnet_jax.kernels.implementations import fused_attention_BNTH, why_not_fused


@needs_libtpu
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
def test_the_kernels_compile_for_a_tpu(topology, length, memory):
    """At the largest sizes that they take whole (`TpuSizes.fits`), and in blocks."""
    forward, backward, _ = map(int, run_program(COMPILE, topology, length, memory, 64, "bfloat16").split())
    assert forward
    assert backward


@pytest.mark.parametrize(
    ("kind", "width", "dtype"),
    [
        ("NVIDIA A100-SXM4-80GB", 64, "bfloat16"),
        ("NVIDIA H100 80GB HBM3", 128, "float32"),
        ("NVIDIA H200", 16, "float32"),
    ],
)
def test_the_kernels_are_lowered_for_a_gpu_without_its_compiler(kind, width, dtype):
    """To Triton's language; `make gpu-plans` compiles them."""
    inputs = inputs_of(Case(length=512, targets=85, memory=384, width=width, rate=0.1, dtype=dtype))

    def program(numbers, grad_BNTH):
        assert why_not_fused(inputs) is None
        read_BNTH, pull = jax.vjp(lambda n: fused_attention_BNTH(inputs._replace(**n)), numbers)
        return read_BNTH, pull(grad_BNTH)

    with use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=AbstractDevice(kind, None, "gpu"))):
        traced = jax.jit(program).trace(numbers_of(inputs), inputs.query_BNTH)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @__gpu$xla.gpu.triton") == 3


@needs_gpu_compiler
@pytest.mark.parametrize(
    ("kind", "width", "dtype"),
    [
        ("h200-1", 64, "bfloat16"),
        ("h200-1", 128, "float32"),
        ("h200-1", 16, "bfloat16"),
        ("a100-1", 64, "bfloat16"),
        ("a6000-1", 64, "float32"),  # little shared memory
        ("l4-1", 128, "bfloat16"),
    ],
)
def test_the_kernels_compile_for_a_gpu(kind, width, dtype):
    assert run_program(COMPILE, kind, 512, 384, width, dtype).split() == ["1", "1", "1"]


STEP = """
import json
import sys

from xlnet_jax.objectives.presets import base
from xlnet_jax.planning.estimate import make_plan
from xlnet_jax.planning.topologies import find_topology
from xlnet_jax.settings.fields import with_values

for attention in ("plain", "auto"):
    config = with_values(base(), {"model.attention": attention, **json.loads(sys.argv[2])})
    plan = make_plan(config, find_topology(sys.argv[1]))
    reduces = "all-reduce" in {c.kind for c in plan.collectives}
    print(plan.config.model.attention, plan.fits, reduces, plan.total.bytes, *sorted(plan.parts), sep=";")
"""


# Short windows of a narrow network compile in a third of the time. A v5e would keep their scores on the chip.
SHORT = {
    "model.num_layers": 2, "model.d_model": 256, "model.num_heads": 4, "model.d_ff": 512, "model.vocab_size": 1000,
    "model.mem_len": 192, "data.seq_len": 256, "data.reuse_len": 128, "data.perm_size": 128, "data.num_predict": 42,
}  # fmt: skip


@pytest.mark.parametrize(
    ("topology", "devices", "settings"),
    [
        pytest.param("v3:2x2", 8, {"data.batch_size": 32, **SHORT}, marks=needs_libtpu, id="v3:2x2"),
        *(
            pytest.param(name, n, {"data.batch_size": 8 * n}, marks=needs_gpu_compiler, id=name)
            for name, n in (("h200-1", 1), ("h100-8", 8), ("a100-4", 4))
        ),
    ],
)
def test_a_step_with_the_kernels_moves_less_and_keeps_no_scores_in_memory(topology, devices, settings):
    """On a GPU scores by distance are left of the arrays that are as large as the scores."""
    is_tpu = topology.startswith("v")
    lines = run_program(STEP, topology, json.dumps(settings)).splitlines()
    (plain, *_, plain_bytes), (fused, *_, fused_bytes) = (line.split(";")[:4] for line in lines)
    assert [line.split(";")[1:3] for line in lines] == [["True", str(devices > 1)]] * 2
    assert (plain, fused) == ("plain", "fused")
    of_scores = {"relative shift", "attention dropout", *(["position product"] if is_tpu else [])}
    plain_parts, fused_parts = (set(line.split(";")[4:]) for line in lines)
    assert plain_parts >= of_scores
    assert not of_scores & fused_parts
    assert int(fused_bytes) < (0.5 if is_tpu else 0.6) * int(plain_bytes)

"""Fused attention for TPUs and GPUs, interpreted on the CPU, against kernels/plain.py: values, gradients, masks,
sharding, remat."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from tests.xlnet_jax.kernels.attention_cases import (
    CASES,
    Case,
    assert_a_mesh_computes_what_one_device_does,
    assert_rows_depend_on_what_they_see,
    compare,
    inputs_of,
)
from tests.xlnet_jax.random_models import SMALL
from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import Relations
from xlnet_jax.kernels.implementations import fused_attention_BNTH, why_not_fused
from xlnet_jax.kernels.mesh import interpret_kernels
from xlnet_jax.models.inputs import compact_inputs
from xlnet_jax.models.xlnet import Backbone

on_both = pytest.mark.parametrize("device", ["v5e", "gpu"])


@pytest.mark.parametrize(
    ("device", "case"),
    [
        *(
            pytest.param(device, case, id=f"{device}: {name}")
            for device in ("v5e", "gpu")
            for name, case in CASES.items()
        ),
        pytest.param("v3", CASES["two streams with all terms"], id="the first TPUs"),
        pytest.param("gpu", Case(heads=1, width=8, length=100, targets=0, memory=37, rate=0.2), id="narrow heads"),
        # Tiles hold content and query rows together, and the last ones padding.
        pytest.param("gpu", Case(heads=1, length=100, targets=70, memory=37, rate=0.2), id="tiles of both streams"),
    ],
)
def test_values_and_gradients_are_those_of_plain(device, case):
    compare(device, case, 5e-6, 5e-6)


@on_both
def test_bfloat16_differs_by_rounding_alone(device):
    compare(device, Case(batch=1, heads=1, rate=0.3, dtype="bfloat16"), 0.015, 0.03)


@on_both
@pytest.mark.parametrize("name", ["two streams with all terms", "two tiles of a content stream, a span, forwards"])
def test_a_row_depends_on_the_keys_that_it_sees_and_on_no_others(device, name):
    case = dataclasses.replace(CASES[name], rate=0.0, heads=1)
    rows = [1, 2, case.length // 2, case.length - 1, case.length + case.targets - 1]
    assert_rows_depend_on_what_they_see(case, rows, device)


@on_both
def test_a_mesh_computes_what_one_device_does(device):
    """With dropout, where two heads share random words across devices."""
    assert_a_mesh_computes_what_one_device_does(Case(batch=4, rate=0.3), device)


@on_both
@pytest.mark.parametrize(("remat", "forwards"), [("none", 1), ("full", 2), ("attention", 1), ("dots", 1)])
def test_remat_runs_the_forward_kernel_again_only_where_its_output_is_not_saved(device, remat, forwards):
    config = dataclasses.replace(SMALL, num_layers=2, num_heads=2, d_head=32, d_model=16, mem_len=4, remat=remat)
    ids = jnp.ones((2, 8), jnp.int32)
    inputs = compact_inputs(ids, ids, ids, ids[:, :3], jnp.zeros(2, bool), jnp.ones((2, 4), bool))
    mems = jnp.zeros((2, 2, 4, 16))
    network = Backbone(dataclasses.replace(config, attention="fused"))
    with interpret_kernels(device):
        params = jax.eval_shape(lambda: network.init(jax.random.key(0), inputs, mems))
        jaxpr = jax.make_jaxpr(jax.grad(lambda p: network.apply(p, inputs, mems).query_BPD.sum()))(params).jaxpr
    of_keys = ["fused_attention_backward_keys"] if device == "gpu" else []
    expected = ["fused_attention_backward", *of_keys, *forwards * ["fused_attention_forward"]]
    assert sorted(kernels_in(jaxpr)) == expected


def kernels_in(jaxpr) -> list[str]:
    """Return the names of the kernels whose output a program reads, inside loops and calls too; a loop counts once.

    jax leaves calls behind whose output is saved instead; compilers remove them.
    """
    found, read = [], {var for eqn in jaxpr.eqns for var in eqn.invars if isinstance(var, jax.extend.core.Var)}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "pallas_call":
            found += [eqn.params["name"]] * bool(read & set(eqn.outvars))
        else:
            for inner in jax.extend.core.jaxprs_in_params(eqn.params):
                found += kernels_in(inner)
    return found


@on_both
def test_what_a_kernel_does_not_support_has_a_reason_and_plain_computes_it(device):
    inputs = inputs_of(Case(segments=False))
    mask_BTK, query_BP = inputs.relations.visible_BTK(), inputs.relations.query_position_BP
    dense = inputs._replace(relations=Relations(mask_BTK=mask_BTK, query_position_BP=query_BP))
    assert why_not_fused(inputs) == "the device is cpu, and there is no kernel for it"
    with interpret_kernels(device):
        assert why_not_fused(dense) == "the mask is dense, and the kernel computes visibility from ranks and spans"
        narrow = inputs_of(Case(width=24, segments=False))
        assert why_not_fused(narrow) == "heads are 24 wide, and the kernel wants a width that divides 128"
        np.testing.assert_array_equal(fused_attention_BNTH(dense), plain.attention_BNTH(dense))
    np.testing.assert_array_equal(fused_attention_BNTH(inputs), plain.attention_BNTH(inputs))


@pytest.mark.parametrize(
    ("capability", "width", "dtype", "lacks"),
    [
        ("7.5", 64, "float32", ", and the kernel wants 8.0"),
        ("gfx942", 64, "float32", ", and the kernel wants 8.0"),
        ("8.0", 64, "float32", None),
        ("8.6", 128, "float32", ", with too little shared memory for heads of 128 in float32"),
        ("8.6", 128, "bfloat16", None),
        ("8.9", 64, "float32", None),
        ("9.0", 128, "float32", None),
    ],
)
def test_a_gpu_that_lacks_bfloat16_products_or_shared_memory_is_not_supported(
    capability, width, dtype, lacks, monkeypatch
):
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(compute_capability=capability)])
    with interpret_kernels("gpu"):
        reason = why_not_fused(inputs_of(Case(width=width, segments=False, dtype=dtype)))
    assert reason == (lacks and f"the device has compute capability {capability}{lacks}")

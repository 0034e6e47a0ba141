"""Fused attention for TPUs and GPUs, interpreted on the CPU, against kernels/plain.py: values, gradients, masks,
sharding, remat."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from tests.xlnet_jax.kernels.attention_cases import CASES, Case, compare, error, inputs_of, pulled_back
from tests.xlnet_jax.random_models import SMALL
from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import Visibility, visible_BTK
from xlnet_jax.kernels.fused import call as fused
from xlnet_jax.kernels.triton import call as triton
from xlnet_jax.models import attention
from xlnet_jax.models.inputs import compact_inputs
from xlnet_jax.models.xlnet import Backbone
from xlnet_jax.settings.config import MeshConfig, RunConfig
from xlnet_jax.training import sharding

KERNELS = {"TPU": fused, "GPU": triton}
on_both = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


@on_both
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_plain(kernel, name):
    compare(kernel, CASES[name], 5e-6, 5e-6)


def test_values_and_gradients_are_those_of_plain_on_the_first_tpus():
    compare(fused, CASES["two streams with all terms"], 5e-6, 5e-6, generation="v3")


@pytest.mark.parametrize(("width", "targets"), [(8, 0), (64, 70)])
def test_a_gpu_computes_narrow_heads_and_tiles_of_both_streams(width, targets):
    """Tiles hold content and query rows together, and the last ones padding."""
    case = Case(heads=1, width=width, length=100, targets=targets, memory=37, rate=0.2)
    compare(triton, case, 5e-6, 5e-6)


@on_both
def test_bfloat16_differs_by_rounding_alone(kernel):
    compare(kernel, Case(batch=1, heads=1, rate=0.3, dtype="bfloat16"), 0.015, 0.03)


@on_both
@pytest.mark.parametrize("name", ["two streams with all terms", "two tiles of a content stream, a span, forwards"])
def test_a_row_depends_on_the_keys_that_it_sees_and_on_no_others(kernel, name):
    """Dropout off, as it would cut dependencies; a row without any key depends on all values alike."""
    case = dataclasses.replace(CASES[name], rate=0.0, heads=1)
    inputs = inputs_of(case)
    visible_TK = np.asarray(visible_BTK(inputs.visibility))[0]
    assert not visible_TK[0].any()
    assert 0.1 < visible_TK.mean() < 0.9
    with kernel.interpreted():
        pull = pulled_back(kernel.attention_BNTH, inputs)
        rows = [1, 2, case.length // 2, case.length - 1, case.length + case.targets - 1]
        for row in rows:
            _, grads = pull(jnp.zeros_like(inputs.query_BNTH).at[0, 0, row].set(jnp.arange(1.0, case.width + 1)))
            for grad_BNKH in (grads.key_BNKH, grads.value_BNKH):
                depends_K = (np.asarray(grad_BNKH)[0, 0] != 0).any(-1)
                np.testing.assert_array_equal(depends_K, visible_TK[row])
        _, grads = pull(jnp.zeros_like(inputs.query_BNTH).at[0, 0, 0].set(1.0))
    np.testing.assert_allclose(grads.value_BNKH[0, 0], 1.0 / visible_TK.shape[1], rtol=1e-6)


@on_both
def test_a_mesh_computes_what_one_device_does(kernel):
    """Batch over data and fsdp, heads over tensor; dropout on, where two heads share random words across devices."""
    inputs = inputs_of(Case(batch=4, rate=0.3))
    grad_BNTH = jax.random.normal(jax.random.key(2), inputs.query_BNTH.shape)
    mesh = sharding.make_mesh(_run_config(), jax.devices()[:8])
    with kernel.interpreted():
        alone, alone_grads = pulled_back(kernel.attention_BNTH, inputs)(grad_BNTH)
        with sharding.axes_of(mesh):
            divided = jax.device_put(grad_BNTH, jax.NamedSharding(mesh, jax.P(("data", "fsdp"), "tensor")))
            together, together_grads = pulled_back(kernel.attention_BNTH, inputs)(divided)
    assert together.sharding.shard_shape(together.shape)[:2] == (1, 1)
    assert error(together, alone) < 1e-5
    for mine, reference in zip(together_grads, alone_grads, strict=True):
        assert error(mine, reference) < 1e-5


def _run_config() -> RunConfig:
    return dataclasses.replace(RunConfig(), mesh=MeshConfig(fsdp=2, tensor=2))


@on_both
@pytest.mark.parametrize(("remat", "forwards"), [("none", 1), ("full", 2), ("attention", 1), ("dots", 1)])
def test_remat_runs_the_forward_kernel_again_only_where_its_output_is_not_saved(kernel, remat, forwards, monkeypatch):
    config = dataclasses.replace(SMALL, num_layers=2, num_heads=2, d_head=32, d_model=16, mem_len=4, remat=remat)
    ids = jnp.ones((2, 8), jnp.int32)
    inputs = compact_inputs(ids, ids, ids, ids[:, :3], jnp.zeros(2, bool), jnp.ones((2, 4), bool))
    mems = jnp.zeros((2, 2, 4, 16))
    monkeypatch.setitem(attention.IMPLEMENTATIONS, "plain", kernel.attention_BNTH)
    network = Backbone(config)
    with kernel.interpreted():
        params = jax.eval_shape(lambda: network.init(jax.random.key(0), inputs, mems))
        jaxpr = jax.make_jaxpr(jax.grad(lambda p: network.apply(p, inputs, mems).query_BPD.sum()))(params).jaxpr
    of_keys = ["fused_attention_backward_keys"] if kernel is triton else []
    expected = ["fused_attention_backward", *of_keys, *forwards * ["fused_attention_forward"]]
    assert sorted(kernels_in(jaxpr)) == expected


def kernels_in(jaxpr) -> list[str]:
    """Names of the kernels whose output a program reads, inside loops and calls too; a loop counts once.

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
def test_what_a_kernel_does_not_support_has_a_reason_and_plain_computes_it(kernel):
    inputs = inputs_of(Case(segments=False))
    dense = inputs._replace(visibility=Visibility(mask_BTK=visible_BTK(inputs.visibility)))
    narrow = inputs_of(Case(width=24, segments=False))
    assert kernel.supports(inputs) == "the device is cpu, and there is no kernel for it"
    with kernel.interpreted():
        assert kernel.supports(dense) == "the mask is dense, and the kernel computes visibility from ranks and spans"
        assert kernel.supports(narrow) == "heads are 24 wide, and the kernel wants a width that divides 128"
        np.testing.assert_array_equal(kernel.attention_BNTH(dense), plain.attention_BNTH(dense))
    np.testing.assert_array_equal(kernel.attention_BNTH(inputs), plain.attention_BNTH(inputs))


@pytest.mark.parametrize(
    ("capability", "is_supported"), [("7.5", False), ("gfx942", False), ("8.0", True), ("12.0", True)]
)
def test_a_gpu_without_bfloat16_products_is_not_supported(capability, is_supported, monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(compute_capability=capability)])
    with triton.interpreted():
        reason = triton.supports(inputs_of(Case(segments=False)))
    assert reason == (
        None if is_supported else f"the device has compute capability {capability}, and the kernel wants 8.0"
    )


@pytest.mark.parametrize(
    ("capability", "width", "dtype", "is_supported"),
    [
        ("8.6", 128, "float32", False),
        ("8.6", 128, "bfloat16", True),
        ("8.9", 64, "float32", True),
        ("9.0", 128, "float32", True),
    ],
)
def test_wide_float32_heads_want_more_shared_memory_than_some_gpus_have(
    capability, width, dtype, is_supported, monkeypatch
):
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(compute_capability=capability)])
    with triton.interpreted():
        reason = triton.supports(inputs_of(Case(width=width, segments=False, dtype=dtype)))
    too_small = (
        f"the device has compute capability {capability}, with too little shared memory for heads of 128 in float32"
    )
    assert reason == (None if is_supported else too_small)

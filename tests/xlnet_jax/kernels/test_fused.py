"""Fused attention for TPUs and GPUs, interpreted on the CPU, against kernels/plain.py: values, gradients, masks,
sharding, remat. Small chips hold so little that a few hundred keys are many: windows are computed in blocks of 128 rows
and 128 keys."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from tests.xlnet_jax.kernels.attention_cases import Case, inputs_of, pulled_back
from tests.xlnet_jax.kernels.running import running_kernels
from tests.xlnet_jax.random_models import SMALL
from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import AttentionInputs, Relations, round_up
from xlnet_jax.kernels.implementations import attention_BNTH, fused_attention_BNTH, why_not_fused
from xlnet_jax.kernels.mesh import interpret_kernels
from xlnet_jax.kernels.tpu.operands import sizes_of
from xlnet_jax.kernels.tpu.tiles import GENERATIONS, ROWS
from xlnet_jax.models.inputs import compact_inputs
from xlnet_jax.models.xlnet import Backbone
from xlnet_jax.printing import tell
from xlnet_jax.settings.config import MeshConfig, RunConfig
from xlnet_jax.training import sharding

TWO_STREAMS = Case(rate=0.3)
A_SPAN = Case(batch=1, heads=1, length=130, targets=0, memory=0, ranks=False, reach=20, backwards=False, segments=False)
CASES = [
    TWO_STREAMS,
    A_SPAN,  # two tiles of a content stream
    # Ranks within a span, and queries that skip registers.
    Case(batch=1, heads=1, length=150, targets=6, memory=120, reach=200, rate=0.1),
    # A window that fills its tile, wide heads.
    Case(batch=1, heads=1, width=128, length=128, targets=3, biases=False),
    # Heads that fill no group.
    Case(heads=3, width=32, targets=0, memory=0, positions=False, segments=False, biases=False, rate=0.5),
]
OF_ONE_DEVICE = [
    ("v3", TWO_STREAMS),
    ("gpu", Case(heads=1, width=8, length=100, targets=0, memory=37, rate=0.2)),  # narrow heads
    # Tiles hold content and query rows together, and the last ones padding.
    ("gpu", Case(heads=1, length=100, targets=70, memory=37, rate=0.2)),
]
LONG = [
    ("small", Case(length=300, targets=40, memory=90, rate=0.1)),
    ("small", Case(batch=1, heads=1, length=200, targets=150, memory=130, segments=False)),  # two tiles of queries
    ("small v3", Case(batch=1, heads=1, length=150, targets=6, memory=120, reach=60, rate=0.1)),
    # Three heads fill no group.
    ("small", Case(heads=3, width=32, length=290, targets=0, memory=0, positions=False, biases=False, rate=0.5)),
]


@pytest.fixture(autouse=True)
def small_chips(monkeypatch):
    blocks = {"row_block": 128, "key_block": 128}
    monkeypatch.setitem(GENERATIONS, "small", GENERATIONS["v5e"]._replace(**blocks))
    monkeypatch.setitem(GENERATIONS, "small v3", GENERATIONS["v3"]._replace(**blocks))


def error(ours, theirs) -> float:
    ours, theirs = np.asarray(ours, np.float32), np.asarray(theirs, np.float32)
    assert np.isfinite(ours).all()
    return float(abs(ours - theirs).max() / abs(theirs).max())


def assert_equal(ours, theirs, value_bound: float, gradient_bound: float) -> None:
    """Assert that two results of `pulled_back` are equal. Bounds are shares of the largest number."""
    assert ours[0].dtype == theirs[0].dtype
    assert error(ours[0], theirs[0]) < value_bound
    errors = {name: error(ours[1][name], reference) for name, reference in theirs[1].items()}
    assert max(errors.values()) < gradient_bound, errors


def compare(device: str, case: Case, value_bound: float, gradient_bound: float, interpret: Any = True) -> None:
    """Assert that the kernel of a device computes what plain attention does. Bounds: shares of the largest number."""
    inputs = inputs_of(case)
    grad_BNTH = jax.random.normal(jax.random.key(2), inputs.query_BNTH.shape, case.dtype)
    if device.startswith("small"):
        assert not sizes_of(inputs, GENERATIONS[device]).fits
    with running_kernels(device, interpret):
        ours = pulled_back(fused_attention_BNTH, inputs)(grad_BNTH)
    assert_equal(ours, pulled_back(plain.attention_BNTH, inputs)(grad_BNTH), value_bound, gradient_bound)


@pytest.mark.parametrize(
    ("device", "case"), [(d, case) for d in ("v5e", "gpu") for case in CASES] + OF_ONE_DEVICE + LONG
)
def test_values_and_gradients_are_those_of_plain(device, case):
    compare(device, case, 5e-6, 5e-6)


@pytest.mark.parametrize(
    ("device", "case"),
    [(device, TWO_STREAMS) for device in ("v3", "v5e", "gpu")]
    + [(device, Case(length=300, memory=10, rate=0.3)) for device in ("small", "small v3")],
)
def test_bfloat16_differs_by_rounding_alone(device, case):
    compare(device, dataclasses.replace(case, batch=1, heads=1, dtype="bfloat16"), 0.015, 0.03)


@pytest.mark.parametrize(
    ("device", "case"),
    [("v5e", Case(heads=1, batch=1, rate=0.3)), ("small", Case(heads=1, batch=1, length=260, targets=130, memory=0))],
)
def test_no_memory_of_a_tpu_is_read_before_it_is_written(device, case):
    """Memory starts as NaN: on the chip, and in outputs. Of a long window, tiles without a row at a block of positions
    stay so."""
    compare(device, case, 5e-6, 5e-6, interpret=pltpu.InterpretParams(uninitialized_memory="nan"))


@pytest.mark.parametrize(
    ("device", "case"),
    [
        *((device, case) for device in ("v5e", "gpu") for case in (TWO_STREAMS, A_SPAN)),
        ("small", Case(batch=1, length=260, targets=9, memory=30)),  # sees nothing in some blocks
    ],
)
def test_a_row_depends_on_the_keys_that_it_sees_and_on_no_others(device, case):
    """The first row sees no key at all, and depends on all values alike. Without dropout, which would cut
    dependencies."""
    case = dataclasses.replace(case, rate=0.0, heads=1)
    inputs, last = inputs_of(case), case.length + case.targets - 1
    visible_TK = np.asarray(inputs.relations.visible_BTK())[0]
    assert not visible_TK[0].any()
    assert 0.1 < visible_TK.mean() < 0.9
    with running_kernels(device):
        pull = pulled_back(fused_attention_BNTH, inputs)
        for row in (1, 2, case.length // 2, case.length - 1, last):
            _, grads = pull(jnp.zeros_like(inputs.query_BNTH).at[0, 0, row].set(jnp.arange(1.0, case.width + 1)))
            for name in ("key_BNKH", "value_BNKH"):
                np.testing.assert_array_equal((np.asarray(grads[name])[0, 0] != 0).any(-1), visible_TK[row])
        _, grads = pull(jnp.zeros_like(inputs.query_BNTH).at[0, 0, 0].set(1.0))
    np.testing.assert_allclose(grads["value_BNKH"][0, 0], 1.0 / visible_TK.shape[1], rtol=1e-6)


@pytest.mark.parametrize("row_block", [128, 384])
def test_tiles_skip_blocks_of_keys_that_none_of_their_rows_sees(row_block, monkeypatch):
    """Not even multiplied by 0: in reading order the last block of keys is NaN, and rows of earlier tiles do not show
    it."""
    monkeypatch.setitem(GENERATIONS, "small", GENERATIONS["small"]._replace(row_block=row_block))
    inputs = inputs_of(Case(batch=1, heads=1, length=384, targets=0, memory=0, segments=False))
    key_BK, last = inputs.relations.key_position_BK, slice(256, 384)
    in_order = inputs.relations._replace(row_rank_BT=2 * key_BK, key_rank_BK=2 * key_BK)
    inputs = inputs._replace(relations=in_order)
    spoilt = inputs._replace(key_BNKH=inputs.key_BNKH.copy(), value_BNKH=inputs.value_BNKH.copy())
    spoilt.key_BNKH[:, :, last] = spoilt.value_BNKH[:, :, last] = np.nan
    grad_BNTH = jnp.ones_like(inputs.query_BNTH).at[:, :, last].set(0)
    with running_kernels("small"):
        pull = pulled_back(fused_attention_BNTH, inputs)
        (read, grads), (spoilt_read, spoilt_grads) = pull(grad_BNTH), pull(grad_BNTH, spoilt)
    assert jnp.isnan(spoilt_read[:, :, last]).all()
    np.testing.assert_array_equal(spoilt_read[:, :, :256], read[:, :, :256])
    np.testing.assert_array_equal(spoilt_grads["query_BNTH"][:, :, :256], grads["query_BNTH"][:, :, :256])


@pytest.mark.parametrize("memory", [0, 384])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_blocks_of_a_long_window_hold_little_padding(generation, memory):
    for length in [2_700, 4_097, 4_224, 4_609, 8_320, *range(2_817, 40_000, 997)]:
        shapes = {"query_BNTH": (1, 1, length, 64), "key_BNKH": (1, 1, length + memory, 64)}
        shapes |= {"value_BNKH": shapes["key_BNKH"], "position_key_2NRH": (2, 1, 2 * length + memory, 64)}
        inputs = AttentionInputs(
            relations=Relations(None), **{k: jax.ShapeDtypeStruct(v, jnp.float32) for k, v in shapes.items()}
        )
        sizes, needed = sizes_of(inputs, GENERATIONS[generation]), length * (length + memory)
        if generation in ("v2", "v3", "v4"):
            assert round_up(length, ROWS) * sizes.padded_keys < 1.26 * needed, length  # tiles of padding are skipped
        else:
            assert sizes.padded_content * sizes.padded_keys < 1.15 * needed, length


@pytest.mark.parametrize("device", ["v5e", "gpu"])
def test_a_mesh_computes_what_plain_attention_does_on_one_device(device):
    """Batch over data and fsdp, heads over tensor; with dropout, where two heads share random words across devices."""
    inputs = inputs_of(dataclasses.replace(TWO_STREAMS, batch=4))
    grad_BNTH = jax.random.normal(jax.random.key(2), inputs.query_BNTH.shape)
    mesh = sharding.make_mesh(dataclasses.replace(RunConfig(), mesh=MeshConfig(fsdp=2, tensor=2)))
    with running_kernels(device), sharding.axes_of(mesh):
        divided = jax.device_put(grad_BNTH, jax.NamedSharding(mesh, jax.P(("data", "fsdp"), "tensor")))
        together = pulled_back(fused_attention_BNTH, inputs)(divided)
    assert together[0].sharding.shard_shape(together[0].shape)[:2] == (1, 1)
    assert_equal(together, pulled_back(plain.attention_BNTH, inputs)(grad_BNTH), 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("device", "remat", "forwards"),
    [("v5e", "none", 1), ("v5e", "full", 2), ("v5e", "attention", 1), ("v5e", "dots", 1), ("gpu", "attention", 1)],
)
def test_remat_runs_the_forward_kernel_again_only_where_its_output_is_not_saved(device, remat, forwards):
    config = dataclasses.replace(SMALL, num_layers=2, num_heads=2, d_head=32, d_model=16, mem_len=4, remat=remat)
    ids = jnp.ones((2, 8), jnp.int32)
    inputs = compact_inputs(
        ids, segment_ids_BL=ids, perm_rank_BL=ids, target_positions_BP=ids[:, :3], memory_BM=jnp.ones((2, 4), bool)
    )
    mems = jnp.zeros((2, 2, 4, 16))
    network = Backbone(dataclasses.replace(config, attention="fused"))
    with running_kernels(device):
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


@pytest.mark.parametrize("device", ["v5e", "gpu"])
def test_what_a_kernel_does_not_support_has_a_reason_and_plain_computes_it(device):
    inputs = inputs_of(Case(segments=False))
    mask_BTK, query_BP = inputs.relations.visible_BTK(), inputs.relations.query_position_BP
    dense = inputs._replace(relations=Relations(mask_BTK=mask_BTK, query_position_BP=query_BP))
    assert why_not_fused(inputs) == "the device is cpu, and there is no kernel for it"
    with interpret_kernels(device):
        assert why_not_fused(dense) == "the mask is dense, and the kernel computes visibility from ranks and spans"
        np.testing.assert_array_equal(fused_attention_BNTH(dense), plain.attention_BNTH(dense))
    np.testing.assert_array_equal(fused_attention_BNTH(inputs), plain.attention_BNTH(inputs))


@pytest.fixture
def notes(capsys):
    """Return a function that returns the notes printed since it was called last. A process prints each note once."""
    tell.cache_clear()
    yield lambda: capsys.readouterr().err
    tell.cache_clear()


@pytest.mark.parametrize("device", ["v5e", "gpu"])
@pytest.mark.parametrize("width", [6, 256])
def test_attention_that_no_kernel_computes_says_so(device, width, notes):
    inputs = inputs_of(Case(width=width, batch=1, heads=1))
    reason = f"heads are {width} wide, and the kernel needs a width that divides 128"
    with interpret_kernels(device):
        for implementation in ("fused", "auto", "auto"):
            attention_BNTH(inputs, implementation)
    assert notes() == f"note: attention is plain, not fused: {reason}\n"
    with pytest.raises(AssertionError, match=f"^plain attention ran: .*{reason}"), running_kernels(device):
        attention_BNTH(inputs)


def test_on_a_cpu_only_attention_that_must_be_fused_says_that_it_is_not(notes):
    inputs = inputs_of(Case(batch=1, heads=1))
    attention_BNTH(inputs, "auto")
    attention_BNTH(inputs, "plain")
    assert notes() == ""
    attention_BNTH(inputs, "fused")
    assert notes() == "note: attention is plain, not fused: the device is cpu, and there is no kernel for it\n"


def test_a_test_of_kernels_fails_if_it_calls_none():
    with pytest.raises(AssertionError, match="no kernel was traced"), running_kernels():
        attention_BNTH(inputs_of(Case(batch=1, heads=1)), "plain")


@pytest.mark.parametrize(
    ("capability", "width", "dtype", "lacks"),
    [
        ("gfx942", 64, "float32", ", and the kernel needs 8.0"),
        ("7.5", 64, "float32", ", and the kernel needs 8.0"),
        ("8.0", 64, "float32", None),
        ("8.6", 128, "float32", ", with too little shared memory for heads of 128 in float32"),
        ("8.6", 128, "bfloat16", None),
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

"""Fused attention, interpreted on the CPU, against kernels/plain.py: values, gradients, masks, sharding, remat."""

import dataclasses
from typing import NamedTuple

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from tests.xlnet_jax.random_models import SMALL
from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import (
    AttentionInputs,
    Positions,
    Ranks,
    Segments,
    Span,
    Visibility,
    visible_BTK,
)
from xlnet_jax.kernels.dropout import AttentionDropout, attention_seed_BN
from xlnet_jax.kernels.fused import call as fused
from xlnet_jax.models import attention
from xlnet_jax.models.inputs import compact_inputs
from xlnet_jax.models.masks import HIGHEST, LOWEST
from xlnet_jax.models.xlnet import Backbone
from xlnet_jax.settings.config import MeshConfig, RunConfig
from xlnet_jax.training import sharding


@dataclasses.dataclass(frozen=True)
class Case:
    """Sizes of a call and the terms that it has."""

    batch: int = 2
    heads: int = 2
    width: int = 64
    length: int = 24
    targets: int = 5
    memory: int = 8
    ranks: bool = True
    reach: int | None = None  # keys that a row sees before its own, in a span
    positions: bool = True
    backwards: bool = True
    segments: bool = True
    biases: bool = True
    rate: float = 0.0
    generation: str = "v5e"
    dtype: str = "float32"


CASES = {
    "two streams with all terms": Case(rate=0.3),
    "two streams on v3": Case(rate=0.3, generation="v3"),
    "two tiles of a content stream, a span, forwards": Case(
        length=130, targets=0, memory=0, ranks=False, reach=20, backwards=False, segments=False, batch=1
    ),
    "ranks within a span, and queries that skip registers": Case(
        batch=1, heads=1, length=150, targets=6, memory=120, reach=200, rate=0.1
    ),
    "a window that fills its tile, wide heads": Case(batch=1, heads=1, width=128, length=128, targets=3, biases=False),
    "heads that fill no group, without positions and segments": Case(
        heads=3, width=32, targets=0, memory=0, positions=False, segments=False, biases=False, rate=0.5
    ),
}


class Numbers(NamedTuple):
    """Inputs that have gradients."""

    query_BNTH: jnp.ndarray
    key_BNKH: jnp.ndarray
    value_BNKH: jnp.ndarray
    biases_3NH: jnp.ndarray | None
    position_2NRH: jnp.ndarray | None
    segment_2NH: jnp.ndarray | None


def inputs_of(case: Case, seed: int = 0) -> AttentionInputs:
    """Random inputs in which the first row of the first example sees no key."""
    rng = np.random.default_rng(seed)
    batch, keys, rows = case.batch, case.memory + case.length, case.length + case.targets

    def normal(*shape: int, dtype: str = "float32") -> jnp.ndarray:
        return jnp.asarray(rng.normal(size=shape), dtype)

    def integers(*shape: int, below: int) -> jnp.ndarray:
        return jnp.asarray(rng.integers(below, size=shape), jnp.int32)

    order_BL = np.stack([rng.permutation(case.length) for _ in range(batch)])
    target_BP = np.stack([rng.permutation(case.length)[: case.targets] for _ in range(batch)])
    row_rank_BT = np.concatenate([2 * order_BL, np.take_along_axis(2 * order_BL, target_BP, 1) - 1], axis=1)
    row_rank_BT[0, 0] = LOWEST - 1
    unused_BM = np.arange(case.memory)[None] < np.arange(batch)[:, None] * 3
    key_rank_BK = np.concatenate([np.where(unused_BM, HIGHEST, LOWEST), 2 * order_BL], axis=1)
    row_position_BT = np.concatenate([np.tile(np.arange(case.length), (batch, 1)), target_BP], axis=1)
    key_position_BK = np.tile(np.arange(-case.memory, case.length), (batch, 1))
    ranks = Ranks(jnp.asarray(row_rank_BT, jnp.int32), jnp.asarray(key_rank_BK, jnp.int32)) if case.ranks else None
    at = jnp.asarray(row_position_BT, jnp.int32), jnp.asarray(key_position_BK, jnp.int32)
    span = None if case.reach is None else Span(at[0] - case.reach, at[0].at[0, 0].set(-case.memory - 1), at[1])
    positions = segments = dropout = None
    if case.positions:
        is_reversed_B = jnp.arange(batch) % 2 == 0 if case.backwards else None
        positions = Positions(
            normal(2, case.heads, keys + case.length, case.width), is_reversed_B, at[0][:, case.length :], at[1]
        )
    if case.segments:
        key_2NH = normal(2, case.heads, case.width, dtype=case.dtype)
        segments = Segments(key_2NH, integers(batch, rows, below=3), integers(batch, keys, below=3))
    if case.rate:
        dropout = AttentionDropout(case.rate, attention_seed_BN(jax.random.key(1), jnp.arange(batch), case.heads))
    return AttentionInputs(
        *(normal(batch, case.heads, size, case.width, dtype=case.dtype) for size in (rows, keys, keys)),
        Visibility(ranks, span),
        normal(3, case.heads, case.width) if case.biases else None,
        positions,
        segments,
        dropout,
    )


def numbers_of(inputs: AttentionInputs) -> Numbers:
    positions, segments = inputs.positions, inputs.segments
    return Numbers(
        *inputs[:3],
        inputs.biases_3NH,
        None if positions is None else positions.key_2NRH,
        None if segments is None else segments.key_2NH,
    )


def with_numbers(inputs: AttentionInputs, numbers: Numbers) -> AttentionInputs:
    positions, segments = inputs.positions, inputs.segments
    return inputs._replace(
        query_BNTH=numbers.query_BNTH,
        key_BNKH=numbers.key_BNKH,
        value_BNKH=numbers.value_BNKH,
        biases_3NH=numbers.biases_3NH,
        positions=None if positions is None else positions._replace(key_2NRH=numbers.position_2NRH),
        segments=None if segments is None else segments._replace(key_2NH=numbers.segment_2NH),
    )


def pulled_back(implementation, inputs: AttentionInputs):
    """A jitted function of a gradient of the output: (output, gradients of all numbers)."""

    def both(numbers, grad_BNTH):
        read_BNTH, pull = jax.vjp(lambda n: implementation(with_numbers(inputs, n)), numbers)
        return read_BNTH, pull(grad_BNTH)[0]

    return lambda grad_BNTH: jax.jit(both)(numbers_of(inputs), grad_BNTH)


def error(ours, theirs) -> float:
    """Largest difference, relative to the largest value."""
    ours, theirs = np.asarray(ours, np.float32), np.asarray(theirs, np.float32)
    assert np.isfinite(ours).all()
    return float(abs(ours - theirs).max() / abs(theirs).max())


def compare(case: Case, value_bound: float, gradient_bound: float) -> None:
    inputs = inputs_of(case)
    grad_BNTH = jax.random.normal(jax.random.key(2), inputs.query_BNTH.shape, case.dtype)
    with fused.interpreted(case.generation):
        assert fused.supports(inputs) is None
        ours, our_grads = pulled_back(fused.attention_BNTH, inputs)(grad_BNTH)
    theirs, their_grads = pulled_back(plain.attention_BNTH, inputs)(grad_BNTH)
    assert ours.dtype == theirs.dtype
    assert error(ours, theirs) < value_bound
    errors = {
        name: error(mine, reference)
        for name, mine, reference in zip(Numbers._fields, our_grads, their_grads, strict=True)
        if reference is not None
    }
    assert max(errors.values()) < gradient_bound, errors


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_plain(name):
    compare(CASES[name], 5e-6, 5e-6)


def test_bfloat16_differs_by_rounding_alone():
    compare(Case(batch=1, heads=1, rate=0.3, dtype="bfloat16"), 0.015, 0.03)


@pytest.mark.parametrize("name", ["two streams with all terms", "two tiles of a content stream, a span, forwards"])
def test_a_row_depends_on_the_keys_that_it_sees_and_on_no_others(name):
    """Dropout off, as it would cut dependencies; a row without any key depends on all values alike."""
    case = dataclasses.replace(CASES[name], rate=0.0, heads=1)
    inputs = inputs_of(case)
    visible_TK = np.asarray(visible_BTK(inputs.visibility))[0]
    assert not visible_TK[0].any()
    assert 0.1 < visible_TK.mean() < 0.9
    with fused.interpreted():
        pull = pulled_back(fused.attention_BNTH, inputs)
        rows = [1, 2, case.length // 2, case.length - 1, case.length + case.targets - 1]
        for row in rows:
            _, grads = pull(jnp.zeros_like(inputs.query_BNTH).at[0, 0, row].set(jnp.arange(1.0, case.width + 1)))
            for grad_BNKH in (grads.key_BNKH, grads.value_BNKH):
                depends_K = (np.asarray(grad_BNKH)[0, 0] != 0).any(-1)
                np.testing.assert_array_equal(depends_K, visible_TK[row])
        _, grads = pull(jnp.zeros_like(inputs.query_BNTH).at[0, 0, 0].set(1.0))
    np.testing.assert_allclose(grads.value_BNKH[0, 0], 1.0 / visible_TK.shape[1], rtol=1e-6)


def test_a_mesh_computes_what_one_device_does():
    """Batch over data and fsdp, heads over tensor; dropout on, where two heads share random words across devices."""
    inputs = inputs_of(Case(batch=4, rate=0.3))
    grad_BNTH = jax.random.normal(jax.random.key(2), inputs.query_BNTH.shape)
    mesh = sharding.make_mesh(_run_config(), jax.devices()[:8])
    with fused.interpreted():
        alone, alone_grads = pulled_back(fused.attention_BNTH, inputs)(grad_BNTH)
        with sharding.axes_of(mesh):
            divided = jax.device_put(grad_BNTH, jax.NamedSharding(mesh, jax.P(("data", "fsdp"), "tensor")))
            together, together_grads = pulled_back(fused.attention_BNTH, inputs)(divided)
    assert together.sharding.shard_shape(together.shape)[:2] == (1, 1)
    assert error(together, alone) < 1e-5
    for mine, reference in zip(together_grads, alone_grads, strict=True):
        assert error(mine, reference) < 1e-5


def _run_config() -> RunConfig:
    return dataclasses.replace(RunConfig(), mesh=MeshConfig(fsdp=2, tensor=2))


@pytest.mark.parametrize(("remat", "forwards"), [("none", 1), ("full", 2), ("attention", 1), ("dots", 1)])
def test_remat_runs_the_forward_kernel_again_only_where_its_output_is_not_saved(remat, forwards, monkeypatch):
    config = dataclasses.replace(SMALL, num_layers=2, num_heads=2, d_head=32, d_model=16, mem_len=4, remat=remat)
    ids = jnp.ones((2, 8), jnp.int32)
    inputs = compact_inputs(ids, ids, ids, ids[:, :3], jnp.zeros(2, bool), jnp.ones((2, 4), bool))
    mems = jnp.zeros((2, 2, 4, 16))
    monkeypatch.setitem(attention.IMPLEMENTATIONS, "plain", fused.attention_BNTH)
    network = Backbone(config)
    with fused.interpreted():
        params = jax.eval_shape(lambda: network.init(jax.random.key(0), inputs, mems))
        jaxpr = jax.make_jaxpr(jax.grad(lambda p: network.apply(p, inputs, mems).query_BPD.sum()))(params).jaxpr
    kernels = sorted(kernels_in(jaxpr))
    assert kernels == ["fused_attention_backward"] + forwards * ["fused_attention_forward"]


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


def test_what_the_kernel_does_not_support_has_a_reason_and_plain_computes_it():
    inputs = inputs_of(Case(segments=False))
    dense = inputs._replace(visibility=Visibility(mask_BTK=visible_BTK(inputs.visibility)))
    narrow = inputs_of(Case(width=24, segments=False))
    assert fused.supports(inputs) == "the device is cpu, and the kernel is for TPUs"
    with fused.interpreted():
        assert fused.supports(dense) == "the mask is dense, and the kernel computes visibility from ranks and spans"
        assert fused.supports(narrow) == "heads are 24 wide, and the kernel wants a width that divides 128"
        np.testing.assert_array_equal(fused.attention_BNTH(dense), plain.attention_BNTH(dense))
    np.testing.assert_array_equal(fused.attention_BNTH(inputs), plain.attention_BNTH(inputs))

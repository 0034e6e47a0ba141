"""Attention calls with random inputs, and comparisons of a kernel's values and gradients with kernels/plain.py."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import AttentionInputs, Relations, numbers_of
from xlnet_jax.kernels.dropout import AttentionDropout, attention_seed_BN
from xlnet_jax.kernels.implementations import fused_attention_BNTH, why_not_fused
from xlnet_jax.kernels.mesh import interpret_kernels
from xlnet_jax.models.masks import HIGHEST, LOWEST
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
    dtype: str = "float32"


CASES = {
    "two streams with all terms": Case(rate=0.3),
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
    relations = Relations(key_position_BK=jnp.asarray(key_position_BK, jnp.int32))
    if case.ranks:
        row_rank_BT, key_rank_BK = (jnp.asarray(x, jnp.int32) for x in (row_rank_BT, key_rank_BK))
        relations = relations._replace(row_rank_BT=row_rank_BT, key_rank_BK=key_rank_BK)
    at_BT = jnp.asarray(row_position_BT, jnp.int32)
    if case.reach is not None:
        relations = relations.within(at_BT - case.reach, at_BT.at[0, 0].set(-case.memory - 1))
    biases_3NH = normal(3, case.heads, case.width) if case.biases else None
    position_key_2NRH = segment_key_2NH = dropout = None
    if case.positions:
        position_key_2NRH = normal(2, case.heads, keys + case.length, case.width)
        relations = relations._replace(
            query_position_BP=at_BT[:, case.length :] if case.targets else None,
            is_reversed_B=jnp.arange(batch) % 2 == 0 if case.backwards else None,
        )
    if case.segments:
        segment_key_2NH = normal(2, case.heads, case.width, dtype=case.dtype)
        of_rows, of_keys = integers(batch, rows, below=3), integers(batch, keys, below=3)
        relations = relations._replace(row_segment_BT=of_rows, key_segment_BK=of_keys)
    if case.rate:
        dropout = AttentionDropout(case.rate, attention_seed_BN(jax.random.key(1), jnp.arange(batch), case.heads))
    query, key, value = (normal(batch, case.heads, size, case.width, dtype=case.dtype) for size in (rows, keys, keys))
    return AttentionInputs(query, key, value, relations, biases_3NH, position_key_2NRH, segment_key_2NH, dropout)


def pulled_back(implementation, inputs: AttentionInputs):
    """Return a compiled function of a gradient of the output: (output, gradients of all numbers, by name)."""
    compiled = jax.jit(functools.partial(_pull_back, implementation, inputs))
    return lambda grad_BNTH: compiled(numbers_of(inputs), grad_BNTH)


def _pull_back(implementation, inputs: AttentionInputs, numbers, grad_BNTH):
    read_BNTH, pull = jax.vjp(lambda numbers: implementation(inputs._replace(**numbers)), numbers)
    return read_BNTH, pull(grad_BNTH)[0]


def error(ours, theirs) -> float:
    """Largest difference, relative to the largest value."""
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
    with interpret_kernels(device, interpret):
        assert why_not_fused(inputs) is None
        ours = pulled_back(fused_attention_BNTH, inputs)(grad_BNTH)
    assert_equal(ours, pulled_back(plain.attention_BNTH, inputs)(grad_BNTH), value_bound, gradient_bound)


def assert_rows_depend_on_what_they_see(case: Case, rows: list[int], device: str) -> None:
    """Assert that gradients reach the keys that a row sees and no others. The first row sees no key at all, and depends
    on all values alike. Without dropout, which would cut dependencies."""
    inputs = inputs_of(case)
    visible_TK = np.asarray(inputs.relations.visible_BTK())[0]
    assert not visible_TK[0].any()
    assert 0.1 < visible_TK.mean() < 0.9
    with interpret_kernels(device):
        pull = pulled_back(fused_attention_BNTH, inputs)
        for row in rows:
            _, grads = pull(jnp.zeros_like(inputs.query_BNTH).at[0, 0, row].set(jnp.arange(1.0, case.width + 1)))
            for name in ("key_BNKH", "value_BNKH"):
                np.testing.assert_array_equal((np.asarray(grads[name])[0, 0] != 0).any(-1), visible_TK[row])
        _, grads = pull(jnp.zeros_like(inputs.query_BNTH).at[0, 0, 0].set(1.0))
    np.testing.assert_allclose(grads["value_BNKH"][0, 0], 1.0 / visible_TK.shape[1], rtol=1e-6)


def assert_a_mesh_computes_what_one_device_does(case: Case, device: str) -> None:
    """Batch over data and fsdp, heads over tensor."""
    inputs = inputs_of(case)
    grad_BNTH = jax.random.normal(jax.random.key(2), inputs.query_BNTH.shape)
    mesh = sharding.make_mesh(dataclasses.replace(RunConfig(), mesh=MeshConfig(fsdp=2, tensor=2)))
    with interpret_kernels(device):
        alone = pulled_back(fused_attention_BNTH, inputs)(grad_BNTH)
        with sharding.axes_of(mesh):
            divided = jax.device_put(grad_BNTH, jax.NamedSharding(mesh, jax.P(("data", "fsdp"), "tensor")))
            together = pulled_back(fused_attention_BNTH, inputs)(divided)
    assert together[0].sharding.shard_shape(together[0].shape)[:2] == (1, 1)
    assert_equal(together, alone, 1e-5, 1e-5)

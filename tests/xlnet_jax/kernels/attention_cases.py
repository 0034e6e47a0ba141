"""Attention calls with random inputs, and comparisons of a kernel's values and gradients with kernels/plain.py."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import (
    AttentionInputs,
    Numbers,
    Positions,
    Ranks,
    Segments,
    Span,
    Visibility,
    numbers_of,
    with_numbers,
)
from xlnet_jax.kernels.dropout import AttentionDropout, attention_seed_BN
from xlnet_jax.models.masks import HIGHEST, LOWEST


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
    ranks = Ranks(jnp.asarray(row_rank_BT, jnp.int32), jnp.asarray(key_rank_BK, jnp.int32)) if case.ranks else None
    at = jnp.asarray(row_position_BT, jnp.int32), jnp.asarray(key_position_BK, jnp.int32)
    span = None if case.reach is None else Span(at[0] - case.reach, at[0].at[0, 0].set(-case.memory - 1), at[1])
    positions = segments = dropout = None
    if case.positions:
        is_reversed_B = jnp.arange(batch) % 2 == 0 if case.backwards else None
        key_2NRH = normal(2, case.heads, keys + case.length, case.width)
        positions = Positions(key_2NRH, is_reversed_B, at[0][:, case.length :], at[1])
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


def compare(kernel: Any, case: Case, value_bound: float, gradient_bound: float, **interpreted: Any) -> None:
    """Assert that a kernel, given by the module of its call, computes what plain attention does.

    Bounds are shares of the largest number; interpreted: arguments of the kernel's context of that name.
    """
    inputs = inputs_of(case)
    grad_BNTH = jax.random.normal(jax.random.key(2), inputs.query_BNTH.shape, case.dtype)
    with kernel.interpreted(**interpreted):
        assert kernel.supports(inputs) is None
        ours, our_grads = pulled_back(kernel.attention_BNTH, inputs)(grad_BNTH)
    theirs, their_grads = pulled_back(plain.attention_BNTH, inputs)(grad_BNTH)
    assert ours.dtype == theirs.dtype
    assert error(ours, theirs) < value_bound
    errors = {
        name: error(mine, reference)
        for name, mine, reference in zip(Numbers._fields, our_grads, their_grads, strict=True)
        if reference is not None
    }
    assert max(errors.values()) < gradient_bound, errors

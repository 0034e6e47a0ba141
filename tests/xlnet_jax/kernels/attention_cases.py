"""Attention calls with random inputs, and their gradients."""

import dataclasses

import jax
import numpy as np

from xlnet_jax.kernels.arguments import AttentionInputs, Relations, numbers_of
from xlnet_jax.kernels.dropout import AttentionDropout, attention_seed_BN
from xlnet_jax.models.masks import HIGHEST, LOWEST

_seed_BN = jax.jit(attention_seed_BN, static_argnums=2)


@dataclasses.dataclass(frozen=True)
class Case:
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


def inputs_of(case: Case, seed: int = 0) -> AttentionInputs:
    """Random inputs in which the first row of the first example sees no key."""
    rng = np.random.default_rng(seed)
    batch, keys, rows = case.batch, case.memory + case.length, case.length + case.targets

    def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
        return rng.normal(size=shape).astype(dtype)

    def integers(*shape: int, below: int) -> np.ndarray:
        return rng.integers(below, size=shape).astype(np.int32)

    order_BL = np.stack([rng.permutation(case.length) for _ in range(batch)])
    target_BP = np.stack([rng.permutation(case.length)[: case.targets] for _ in range(batch)])
    row_rank_BT = np.concatenate([2 * order_BL, np.take_along_axis(2 * order_BL, target_BP, 1) - 1], axis=1)
    row_rank_BT[0, 0] = LOWEST - 1
    unused_BM = np.arange(case.memory)[None] < np.arange(batch)[:, None] * 3
    key_rank_BK = np.concatenate([np.where(unused_BM, HIGHEST, LOWEST), 2 * order_BL], axis=1)
    row_position_BT = np.concatenate([np.tile(np.arange(case.length), (batch, 1)), target_BP], axis=1)
    key_position_BK = np.tile(np.arange(-case.memory, case.length), (batch, 1))
    relations = Relations(key_position_BK=key_position_BK.astype(np.int32))
    if case.ranks:
        row_rank_BT, key_rank_BK = (x.astype(np.int32) for x in (row_rank_BT, key_rank_BK))
        relations = relations._replace(row_rank_BT=row_rank_BT, key_rank_BK=key_rank_BK)
    at_BT = row_position_BT.astype(np.int32)
    if case.reach is not None:
        last_BT = at_BT.copy()
        last_BT[0, 0] = -case.memory - 1
        relations = relations.within(at_BT - case.reach, last_BT)
    biases_3NH = normal(3, case.heads, case.width) if case.biases else None
    position_key_2NRH = segment_key_2NH = dropout = None
    if case.positions:
        position_key_2NRH = normal(2, case.heads, keys + case.length, case.width)
        relations = relations._replace(
            query_position_BP=at_BT[:, case.length :] if case.targets else None,
            is_reversed_B=np.arange(batch) % 2 == 0 if case.backwards else None,
        )
    if case.segments:
        segment_key_2NH = normal(2, case.heads, case.width, dtype=case.dtype)
        of_rows, of_keys = integers(batch, rows, below=3), integers(batch, keys, below=3)
        relations = relations._replace(row_segment_BT=of_rows, key_segment_BK=of_keys)
    if case.rate:
        dropout = AttentionDropout(case.rate, _seed_BN(jax.random.key(1), np.arange(batch), case.heads))
    query, key, value = (normal(batch, case.heads, size, case.width, dtype=case.dtype) for size in (rows, keys, keys))
    return AttentionInputs(query, key, value, relations, biases_3NH, position_key_2NRH, segment_key_2NH, dropout)


def pulled_back(implementation, inputs: AttentionInputs):
    """Return a compiled function of a gradient of the output, and of other inputs with the same relations: (output,
    gradients of all numbers, by name)."""

    @jax.jit
    def pull_back(numbers, grad_BNTH):
        read_BNTH, pull = jax.vjp(lambda numbers: implementation(inputs._replace(**numbers)), numbers)
        return read_BNTH, pull(grad_BNTH)[0]

    return lambda grad_BNTH, inputs=inputs: pull_back(numbers_of(inputs), grad_BNTH)

"""Factorization orders as ranks, and the dense masks that follow from them (`_local_perm` of data_utils.py).

A row's rank is its place in the order: it sees every position of lower rank, and content rows also see themselves.
Non-targets of the reused part have rank -1. Non-targets of the new part share one rank above the whole reused part, so
the reused part never sees the new part, and the new part sees all of the reused part. Targets, <sep> and <cls> rank
above the non-targets of their part, in permuted order. In the tf2 profile, <sep> and <cls> rank with the non-targets.
All chunks of perm_size tokens use the same shuffle. Targets that are predicted together share a rank: no query row of
theirs sees one of them, and their content rows see each other.
"""

import numpy as np

from data_pipelines.stateless import smallest_first
from xlnet_jax.dims import Batch
from xlnet_jax.settings.config import DataConfig


def permuted_places(length: int, perm_size: int, uniform: np.ndarray) -> np.ndarray:
    """Return int64 [B, length]: places 0 ... length - 1, permuted inside each chunk of perm_size. All chunks of a row
    have the same shuffle.

    uniform: [B, perm_size].
    """
    offset = smallest_first(uniform)
    chunk_begin = np.arange(0, length, perm_size)
    return (chunk_begin[:, None] + offset[:, None, :]).reshape(len(uniform), length)


def group_places(places: np.ndarray, is_target: np.ndarray, size_B1: np.ndarray) -> np.ndarray:
    """Return places, int64 [B, length], in which every group of consecutive targets in the order has the place of its
    first. The last group may be smaller.

    places: from `permuted_places`. is_target: bool [B, length]. size: int [B, 1], targets in a group of each row.
    """
    target_at = np.empty_like(is_target)
    np.put_along_axis(target_at, places, is_target, axis=1)
    begins = target_at & ((target_at.cumsum(1) - 1) % size_B1 == 0)
    first = np.maximum.accumulate(np.where(begins, np.arange(places.shape[1]), 0), axis=1)
    return np.where(is_target, np.take_along_axis(first, places, axis=1), places)


def perm_rank(hidden: np.ndarray, reused_places: np.ndarray, new_places: np.ndarray, data: DataConfig) -> np.ndarray:
    """Return the ranks, int32 [B, L]. hidden: bool [B, L], tokens that only later tokens in the order may see: targets
    and, except in the tf2 profile, <sep> and <cls>."""
    reuse = data.reuse_len
    rank = np.empty(hidden.shape, np.int32)
    rank[:, :reuse] = np.where(hidden[:, :reuse], reused_places, -1)
    rank[:, reuse:] = np.where(hidden[:, reuse:], reuse + 1 + new_places, reuse)
    return rank


def target_slots(is_target: np.ndarray, input_ids: np.ndarray, num_predict: int | None) -> dict[str, np.ndarray]:
    """Return target_positions, target_ids and target_weights [B, P]: the targets in ascending order, then padding.

    num_predict None: every position has a slot (P = L), and the weights mark the targets.
    """
    length = is_target.shape[1]
    if num_predict is None:
        return {
            "target_positions": np.broadcast_to(np.arange(length, dtype=np.int32), is_target.shape),
            "target_ids": input_ids.astype(np.int32),
            "target_weights": is_target.astype(np.float32),
        }
    row, position = np.divmod(np.flatnonzero(is_target), length)  # several times faster than np.nonzero
    slot = np.arange(num_predict) < is_target.sum(1)[:, None]  # each row's targets fill its first slots, in order
    positions = np.full(slot.shape, length - 1, np.int32)
    target_ids = np.zeros(slot.shape, np.int32)
    positions[slot], target_ids[slot] = position, input_ids[row, position]
    return {"target_positions": positions, "target_ids": target_ids, "target_weights": slot.astype(np.float32)}


def to_dense(batch: Batch) -> Batch:
    """Replace ranks and positions by perm_mask [B, L, L] (True = may NOT attend) and target_mapping [B, P, L] (one-hot;
    zero if the weight is zero), as the original and Hugging Face define them. Return the new batch."""
    rank, positions = batch["perm_rank"], batch["target_positions"]
    rows, length = rank.shape
    row, slot = np.nonzero(batch["target_weights"])
    mapping = np.zeros((rows, positions.shape[1], length), np.float32)
    mapping[row, slot, positions[row, slot]] = 1.0
    # This is the query stream's mask: targets do not see their own rank, all other rows do.
    key_rank: np.ndarray = 2 * rank.astype(np.int16 if length < 2**13 else np.int32)  # int16 halves bytes and time
    own_rank: np.ndarray = key_rank.copy()
    own_rank[row, positions[row, slot]] -= 1
    dense = {k: v for k, v in batch.items() if k not in ("perm_rank", "target_positions")}
    dense["perm_mask"] = key_rank[:, None, :] > own_rank[:, :, None]
    dense["target_mapping"] = mapping
    return dense

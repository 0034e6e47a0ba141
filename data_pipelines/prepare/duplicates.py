"""Find near duplicates among documents by MinHash (Broder 1997): the share of equal hashes of two signatures estimates
the share of shingles that two documents have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from data_pipelines.prepare.quality import normalize_line

SHINGLE, PERMUTATIONS, BAND = 9, 128, 4  # bytes; hash functions; of these in a band
SIMILAR, ROUNDS = 0.5, 64
MIX = np.uint64(0x9E3779B97F4A7C15)


@cache
def _empty_signature() -> Any:
    from datasketch import MinHash

    return MinHash(PERMUTATIONS, scheme="affine32", hashfunc=int)


def signature_of(lines: Sequence[str]) -> np.ndarray:
    """Return the signature of a document: uint32 [PERMUTATIONS]. Its shingles are bytes, as they suit all scripts."""
    encoded = np.frombuffer(" ".join(map(normalize_line, lines)).encode().ljust(SHINGLE), np.uint8).astype(np.uint64)
    count = len(encoded) - SHINGLE + 1
    hashes = np.zeros(count, np.uint64)
    for k in range(SHINGLE):
        hashes = (hashes + encoded[k : k + count]) * MIX
    different = np.unique(hashes >> np.uint64(32))
    minimum = _empty_signature().copy()
    for begin in range(0, len(different), 2**14):
        minimum.update_batch(different[begin : begin + 2**14].tolist())
    return minimum.hashvalues


def find_first(signatures: np.ndarray) -> np.ndarray:
    """Return the first of the documents that each is a near duplicate of, int64 [documents]; itself if it is the first.

    Documents that agree in all hashes of a band are compared; those with a similarity of SIMILAR are linked, and linked
    ones are near duplicates of each other.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    count = len(signatures)
    found = [np.zeros((2, 0), np.int64)]
    for begin in range(0, PERMUTATIONS, BAND):
        keys = np.zeros(count, np.uint64)
        for column in signatures[:, begin : begin + BAND].T:
            keys = (keys + column) * MIX
        found += _similar_pairs(signatures, keys)
    one, other = np.concatenate(found, axis=1)
    _, group = connected_components(coo_matrix((np.ones(len(one), bool), (one, other)), (count, count)), directed=False)
    _, first = np.unique(group, return_index=True)
    return first[group] if count else np.zeros(0, np.int64)


def _similar_pairs(signatures: np.ndarray, keys: np.ndarray) -> Iterator[np.ndarray]:
    """Yield pairs of documents with equal keys that are similar, int64 [2, pairs]: each with the first of its key, and
    then those that are not similar to it among themselves."""
    order = np.argsort(keys, kind="stable")
    for _ in range(ROUNDS):
        is_first = np.append(True, keys[order][1:] != keys[order][:-1])[: len(order)]
        leader = order[is_first][np.cumsum(is_first) - 1]
        pairs = np.stack([leader, order])[:, ~is_first]
        if not pairs.shape[1]:
            return
        chunks = np.array_split(pairs, -(-pairs.shape[1] // 2**16), axis=1)
        similar = np.concatenate([(signatures[a] == signatures[b]).mean(1) >= SIMILAR for a, b in chunks])
        yield pairs[:, similar]
        order = pairs[1, ~similar]

"""Plan the shards: assign tokens to them from the sizes and hashes of documents alone, before any block is cut.

Each source of a split is cut into blocks by itself, and the tokens after its last full block are dropped. Shards take
the blocks in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_pipelines.corpus import SplitName
from data_pipelines.prepare.holdout import Place, Rule
from data_pipelines.prepare.shards import Stretch

MIN_SHARD_BYTES, MAX_SHARD_BYTES, SHARDS = 2**23, 2**27, 64  # before compression


@dataclass(frozen=True)
class EncodedSource:
    """Encoded parts of a source, in order."""

    places: tuple[Place, ...]

    @property
    def tokens(self) -> int:
        return sum(place.tokens for place in self.places)


@dataclass(frozen=True)
class Content:
    """Text that a source gives to a split."""

    source: EncodedSource
    rule: Rule
    tokens: int


Contents = dict[SplitName, list[Content]]


@dataclass(frozen=True)
class ShardPlan:
    """Contents of a shard; see `shards.ShardJob`."""

    stretches: tuple[Stretch, ...]
    rule: Rule
    blocks: int


def count(source: EncodedSource, rule: Rule, split: SplitName) -> int:
    """Count the tokens that a source gives to a split."""
    return sum(_given(place, rule, split) for place in source.places)


def shards_of(content: Content, split: SplitName, block_len: int, blocks_per_shard: int) -> list[ShardPlan]:
    """Plan the shards of a source's blocks in a split. The last one also reads the tokens that are dropped."""
    rule, blocks = content.rule, content.tokens // block_len
    begins = np.arange(0, blocks, blocks_per_shard)
    edges = [*(begins * block_len).tolist(), content.tokens]
    stretches: list[list[Stretch]] = [[] for _ in begins]
    place_begin = 0
    for place in content.source.places:
        place_end = place_begin + _given(place, rule, split)
        first = max(0, int(np.searchsorted(edges, place_begin, side="right")) - 1)
        for shard in range(first, len(begins)):
            begin, end = max(place_begin, edges[shard]), min(place_end, edges[shard + 1])
            if begin < end:
                ends = int(place.document_hashes[0]), int(place.document_hashes[-1])
                stretches[shard].append(
                    Stretch(place.file, place.first_token, *ends, begin - place_begin, end - place_begin)
                )
            if edges[shard + 1] >= place_end:
                break
        place_begin = place_end
    return [
        ShardPlan(tuple(s), rule, min(blocks_per_shard, blocks - int(first)))
        for s, first in zip(stretches, begins, strict=True)
    ]


def blocks_per_shard(contents: list[Content], block_len: int, record_bytes: int) -> int:
    """Return the number of blocks in a shard, so that a split has about SHARDS shards of a sensible size."""
    split_bytes = sum(content.tokens for content in contents) // block_len * record_bytes
    return max(1, int(np.clip(split_bytes // SHARDS, MIN_SHARD_BYTES, MAX_SHARD_BYTES)) // record_bytes)


def _given(place: Place, rule: Rule, split: SplitName) -> int:
    held_out = rule.count(place)
    return held_out if split == "validation" else place.tokens - held_out

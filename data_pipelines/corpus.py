"""The prepared corpus on disk: blocks of tokens that can be read in any order.

A corpus is a folder with the splits train and validation. TFDS can open it with
`tfds.builder_from_directory(folder).as_data_source()`:

    corpus-<split>.array_record-<i>-of-<n>   the shards
    features.json, dataset_info.json         metadata for TFDS
    unigram_counts.npy                       int64 [V], count of each piece in the whole training text
    tokenizer/                               the tokenizer that made the tokens
    manifest.json                            `Manifest`

A record is a tf.train.Example of one block. Its `tokens` are block_len consecutive tokens as uint16 or uint32, and its
`starts` hold one `Start` per token, both as little-endian bytes. The byte offsets are the same in all records of a
corpus, so records are read without parsing. A corpus does not depend on batch size, windows, masks, hosts or seed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource
from etils import epath

from data_pipelines.remote import is_remote
from data_pipelines.tokenizer import BOS, EOD, PAD, Tokenizer
from xlnet_jax.errors import InputError, first_line
from xlnet_jax.storage.reading import (
    Count,
    Positive,
    inside,
    naming_damage,
    read_array,
    read_versioned,
    require_regular,
    write_versioned,
)

MANIFEST_FILE, COUNTS_FILE, TOKENIZER_FOLDER = "manifest.json", "unigram_counts.npy", "tokenizer"
AGAIN = "delete the folder and prepare the corpus again"

SplitName = Literal["train", "validation"]


class Start(IntEnum):
    """What begins at a token."""

    NOTHING = 0
    SENTENCE = 1
    """a sentence or a line: the text may be cut before this token"""
    DOCUMENT = 2


@dataclass(frozen=True)
class RecordLayout:
    """Layout of a serialized record."""

    block_len: Positive  # tokens
    token_dtype: Literal["<u2", "<u4"]
    tokens_at: Count  # byte offset
    starts_at: Count  # byte offset
    num_bytes: Positive

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy type of a record, with the fields tokens and starts. Raises ValueError if they do not fit."""
        block = (self.block_len,)
        return np.dtype(
            {
                "names": ["tokens", "starts"],
                "formats": [(self.token_dtype, block), ("u1", block)],
                "offsets": [self.tokens_at, self.starts_at],
                "itemsize": self.num_bytes,
            }
        )


@dataclass(frozen=True)
class Shard:
    name: str
    blocks: Count
    num_bytes: Count
    sha256: str


@dataclass(frozen=True)
class Split:
    """Contents of a split. The blocks are ordered by source; no block has text of two sources."""

    documents: Count
    lines: Count
    tokens: Count  # of the whole text, including `dropped_tokens`
    dropped_tokens: Count  # after the last full block of each source
    source_blocks: tuple[Count, ...]  # number of blocks of each source
    shards: tuple[Shard, ...]

    @property
    def blocks(self) -> int:
        return sum(self.source_blocks)


@dataclass(frozen=True)
class Manifest:
    """Description of a corpus: the text and settings it was made from, and its files."""

    made_from: dict[str, Any]  # fingerprints of the text, and settings; equal values give equal corpora
    vocab_size: Positive
    record: RecordLayout
    unigram_entropy: float  # of unigram_counts, in nats
    sources: tuple[str, ...]  # names of the training sources
    weights: tuple[float, ...]  # share of the rows that read each source; empty = in proportion to blocks
    splits: dict[SplitName, Split]
    origins: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    """where text behind URLs came from (`prepare.origins`); empty for text on disk"""

    @property
    def sha256(self) -> str:
        """SHA-256 of `made_from`, in hex."""
        return hashlib.sha256(json.dumps(self.made_from, sort_keys=True).encode()).hexdigest()

    def save(self, folder: epath.Path) -> None:
        write_versioned(folder / MANIFEST_FILE, "corpus", dataclasses.asdict(self))

    @classmethod
    def load(cls, folder: epath.Path) -> Manifest:
        file = folder / MANIFEST_FILE
        if not file.exists():
            raise InputError(f"corpus {folder}: not a prepared corpus: it has no {MANIFEST_FILE}")
        manifest = read_versioned(file, "corpus", cls, AGAIN)
        with naming_damage(file, AGAIN):
            _ = manifest.record.dtype
            for name, split in manifest.splits.items():
                if split.blocks != sum(shard.blocks for shard in split.shards):
                    raise ValueError(
                        f"the {name} split has {split.blocks:,} blocks, but its shards hold a different number"
                    )
            of_sources = (
                manifest.sources,
                manifest.splits["train"].source_blocks,
                manifest.weights or manifest.sources,
            )
            if len(set(map(len, of_sources))) > 1 or "validation" not in manifest.splits:
                raise ValueError("its lists of sources differ, or it has no validation split")
        return manifest


def entropy(counts: np.ndarray) -> float:
    """Return the entropy of pieces with these counts, in nats."""
    share = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(share * np.log(share)).sum())


def is_corpus(folder: epath.PathLike) -> bool:
    """Return whether `folder` has a manifest, so it was made by `prepare`."""
    return not is_remote(os.fspath(folder)) and (epath.Path(folder).expanduser() / MANIFEST_FILE).exists()


class Corpus:
    """A prepared corpus, open for reading. Threads may share it."""

    def __init__(self, folder: epath.PathLike):
        """Open a folder written by `prepare`. Raises InputError for other folders and for missing or truncated
        shards."""
        self.folder = folder = epath.Path(folder).expanduser()
        self.manifest = Manifest.load(folder)
        for split in self.manifest.splits.values():
            for shard in split.shards:
                _check_shard(folder, shard)
        self._sources = {
            # With the length in brackets, the reader does not open every shard to count its records.
            name: ArrayRecordDataSource([f"{folder / shard.name}[0:{shard.blocks}]" for shard in split.shards])
            for name, split in self.manifest.splits.items()
        }

    @property
    def block_len(self) -> int:
        """Number of tokens in a block."""
        return self.manifest.record.block_len

    @cached_property
    def unigram_counts(self) -> np.ndarray:
        """Count of each piece in the training text, including dropped tokens: int64 [V]. Raises InputError if the file
        is missing or damaged."""
        counts = read_array(file := self.folder / COUNTS_FILE, np.int64, rank=1)
        if len(counts) != self.manifest.vocab_size or counts.min() < 0:
            raise InputError(f"{file} does not match the vocabulary; {AGAIN}")
        return counts

    @property
    def unknown_share(self) -> float:
        """Share of `<unk>` among the training tokens. Raises InputError as `unigram_counts` does."""
        return float(self.unigram_counts[self.tokenizer.unknown_ids].sum() / max(self.unigram_counts.sum(), 1))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the corpus. Raises InputError if its files have changed."""
        tokenizer = Tokenizer.load(self.folder / TOKENIZER_FOLDER)
        self.require(tokenizer, str(self.folder / TOKENIZER_FOLDER))
        return tokenizer

    def require(self, tokenizer: Tokenizer, name: str) -> None:
        """Raise InputError if the corpus was made with another tokenizer. name: the tokenizer's name for the
        message."""
        if tokenizer.sha256 != (made := self.manifest.made_from.get("tokenizer")):
            raise InputError(
                f"corpus {self.folder}: it was made with another tokenizer than {name} (sha256 "
                f"{tokenizer.sha256[:12]}, but the corpus needs {str(made)[:12]}); use that "
                "tokenizer, or prepare the text again"
            )

    def num_blocks(self, split: SplitName) -> int:
        return self.manifest.splits[split].blocks

    def check(self) -> None:
        """Read the whole corpus. Raises InputError for the first file that has changed since `prepare` wrote it."""
        self._check_shards()
        _ = self.tokenizer, self.unigram_counts

    def _check_shards(self) -> None:
        for split in self.manifest.splits.values():
            for shard in split.shards:
                self.check_shard(shard)

    def check_shard(self, shard: Shard) -> None:
        """Read a shard. Raises InputError if it has changed since `prepare` wrote it."""
        if (found := _sha256(self.folder / shard.name)) != shard.sha256:
            raise InputError(
                f"corpus {self.folder}: the shard {shard.name} was changed: its sha256 is {found} instead of "
                f"{shard.sha256}; {AGAIN}"
            )

    def read(self, split: SplitName, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read the blocks with these indices, int [n].

        Returns tokens, int32 [n, block_len], and starts, uint8 [n, block_len] (`Start`). Raises InputError for a
        damaged shard, by ArrayRecord's checksums, and for records or tokens that contradict the manifest.
        """
        try:
            records = self._sources[split].__getitems__(indices.tolist())
            blocks = np.frombuffer(b"".join(records), self.manifest.record.dtype)
            if (largest := blocks["tokens"].max(initial=0)) >= (pieces := self.manifest.vocab_size):
                raise ValueError(f"it has the token {largest:,}, but only {pieces:,} pieces")
        except (RuntimeError, ValueError, IndexError) as error:
            self._check_shards()
            raise InputError(
                f"corpus {self.folder}: the {split} split cannot be read ({first_line(error)}); {AGAIN}"
            ) from None
        return blocks["tokens"].astype(np.int32), np.ascontiguousarray(blocks["starts"])

    def documents(self, split: SplitName, whole: bool = False) -> Iterator[np.ndarray]:
        """Yield the token ids of each document, int32 [E], without <s> and <eod>. The last document of a source may
        have lost its end, with the `dropped_tokens`. whole: without records that are cut, or in several blocks."""
        first = 0
        for blocks in self.manifest.splits[split].source_blocks:
            tokens, starts = self.read(split, np.arange(first, first + blocks))
            for document in np.split(tokens.ravel(), np.flatnonzero(starts.ravel() == Start.DOCUMENT)):
                is_left_out = whole and [*document[:1], *document[-1:]] != [BOS, EOD]
                if len(ids := document[~np.isin(document, (BOS, EOD, PAD))]) and not is_left_out:
                    yield ids
            first += blocks


def _sha256(file: epath.Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:  # in a bucket this is a TensorFlow object, which has only read
        while chunk := opened.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _check_shard(folder: epath.Path, shard: Shard) -> None:
    file = inside(folder, shard.name, str(folder / MANIFEST_FILE))
    if not file.exists():
        raise InputError(f"corpus {folder}: the shard {shard.name} is missing; {AGAIN}")
    if (size := require_regular(file)) != shard.num_bytes:
        raise InputError(
            f"corpus {folder}: the shard {shard.name} is damaged: {size} bytes instead of {shard.num_bytes}; {AGAIN}"
        )

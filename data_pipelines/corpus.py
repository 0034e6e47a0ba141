"""The prepared corpus on disk: text as blocks of tokens that can be read in any order.

A corpus is a folder with the splits train and validation. `tfds.builder_from_directory(folder).as_data_source()` opens
it too:

    corpus-<split>.array_record-<i>-of-<n>   the shards
    features.json, dataset_info.json         metadata for TFDS
    unigram_counts.npy                       int64 [V], occurrences of each piece in the whole training text
    tokenizer/                               the tokenizer that made the tokens
    manifest.json                            `Manifest`

A record is a tf.train.Example of one block: `tokens`, block_len consecutive tokens as uint16 or uint32, and `starts`,
one `Start` a token, both as little-endian bytes. The bytes have the same offsets in every record of a corpus, so many
records are read without parsing. A corpus does not depend on batch size, windows, masks, hosts or seed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource
from etils import epath

from data_pipelines.remote import is_remote
from data_pipelines.tokenizer import UNK, Tokenizer
from xlnet_jax.errors import InputError, first_line
from xlnet_jax.storage.reading import (
    Count,
    Positive,
    demand_regular,
    inside,
    naming_damage,
    read_array,
    read_versioned,
    write_versioned,
)

MANIFEST_FILE, COUNTS_FILE, TOKENIZER_FOLDER = "manifest.json", "unigram_counts.npy", "tokenizer"
AGAIN = "delete the folder and prepare the corpus again"

SplitName = Literal["train", "validation"]


class Start(IntEnum):
    """Unit of text that begins at a token."""

    NOTHING = 0
    SENTENCE = 1
    """a sentence or a line: the text may be cut before this token"""
    DOCUMENT = 2


@dataclass(frozen=True)
class Record:
    """Layout of a serialized record."""

    block_len: Positive  # tokens
    token_dtype: Literal["<u2", "<u4"]
    tokens_at: Count  # byte offset
    starts_at: Count  # byte offset
    num_bytes: Positive

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy type of a record, with the fields tokens and starts. Raises ValueError if it has no room for them."""
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
    """Contents of a split. The blocks of the sources follow each other; no block holds text of two sources."""

    documents: Count
    lines: Count
    tokens: Count  # of the whole text, `dropped_tokens` included
    dropped_tokens: Count  # after the last full block of each source
    source_blocks: tuple[Count, ...]  # number of blocks of each source
    shards: tuple[Shard, ...]

    @property
    def blocks(self) -> int:
        return sum(self.source_blocks)


@dataclass(frozen=True)
class Manifest:
    """Description of a corpus: the text and settings it was made from, and the files it consists of."""

    made_from: dict[str, Any]  # fingerprints of the text, and settings: the same values make the same corpus
    vocab_size: Positive
    record: Record
    unigram_entropy: float  # of unigram_counts, in nats
    sources: tuple[str, ...]  # names of the training sources
    weights: tuple[float, ...]  # share of the rows that read each source; empty = by number of blocks
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
            raise InputError(f"corpus {folder}: not a prepared corpus, it has no {MANIFEST_FILE}")
        manifest = read_versioned(file, "corpus", cls, AGAIN)
        with naming_damage(file, AGAIN):
            _ = manifest.record.dtype
            for name, split in manifest.splits.items():
                if split.blocks != sum(shard.blocks for shard in split.shards):
                    raise ValueError(f"the {name} split has {split.blocks:,} blocks, and its shards have others")
            of_sources = (
                manifest.sources,
                manifest.splits["train"].source_blocks,
                manifest.weights or manifest.sources,
            )
            if len(set(map(len, of_sources))) > 1 or "validation" not in manifest.splits:
                raise ValueError("it does not describe the same sources everywhere, or has no validation split")
        return manifest


def is_corpus(folder: epath.PathLike) -> bool:
    """Return whether `folder` holds a manifest, so that `prepare` made it."""
    return not is_remote(os.fspath(folder)) and (epath.Path(folder).expanduser() / MANIFEST_FILE).exists()


class Corpus:
    """A prepared corpus, open for reading. Threads may share it."""

    def __init__(self, folder: epath.PathLike):
        """Open a folder that `prepare` wrote. Raises InputError for another folder, or a missing or cut shard."""
        self.folder = folder = epath.Path(folder).expanduser()
        self.manifest = Manifest.load(folder)
        for split in self.manifest.splits.values():
            for shard in split.shards:
                _check_shard(folder, shard)
        self._sources = {
            # With the length in brackets the reader need not open every shard to count its records.
            name: ArrayRecordDataSource([f"{folder / shard.name}[0:{shard.blocks}]" for shard in split.shards])
            for name, split in self.manifest.splits.items()
        }

    @property
    def block_len(self) -> int:
        """Number of tokens in a block."""
        return self.manifest.record.block_len

    @cached_property
    def unigram_counts(self) -> np.ndarray:
        """Occurrences of each piece in the training text, dropped tokens included: int64 [V]. Raises InputError if the
        file is missing or damaged."""
        counts = read_array(file := self.folder / COUNTS_FILE, np.int64, rank=1)
        if len(counts) != self.manifest.vocab_size or counts.min() < 0:
            raise InputError(f"{file} is not of this vocabulary; {AGAIN}")
        return counts

    @property
    def unknown_share(self) -> float:
        """Share of `<unk>` in the tokens of the training text. Raises InputError as `unigram_counts` does."""
        return float(self.unigram_counts[UNK] / max(self.unigram_counts.sum(), 1))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer that made the tokens. Raises InputError if its files were changed since."""
        tokenizer = Tokenizer.load(self.folder / TOKENIZER_FOLDER)
        self.demand(tokenizer, str(self.folder / TOKENIZER_FOLDER))
        return tokenizer

    def demand(self, tokenizer: Tokenizer, name: str) -> None:
        """Raise InputError, which calls the tokenizer `name`, if it is not the one that made the tokens."""
        if tokenizer.sha256 != (made := self.manifest.made_from.get("tokenizer")):
            raise InputError(
                f"corpus {self.folder}: it was made with another tokenizer than {name} (sha256 "
                f"{tokenizer.sha256[:12]}, and the corpus needs {str(made)[:12]}); bring that "
                "tokenizer back, or prepare the text again"
            )

    def num_blocks(self, split: SplitName) -> int:
        return self.manifest.splits[split].blocks

    def check(self) -> None:
        """Read the whole corpus, and raise InputError for the first file that is not as `prepare` wrote it."""
        self._check_shards()
        _ = self.tokenizer, self.unigram_counts

    def _check_shards(self) -> None:
        for split in self.manifest.splits.values():
            for shard in split.shards:
                if (found := _sha256(self.folder / shard.name)) != shard.sha256:
                    raise InputError(
                        f"corpus {self.folder}: the shard {shard.name} was altered, its sha256 is {found} and not "
                        f"{shard.sha256}; {AGAIN}"
                    )

    def read(self, split: SplitName, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read the blocks with these indices, int [n].

        Returns tokens, int32 [n, block_len], and starts, uint8 [n, block_len] (`Start`). Raises InputError for a shard
        that ArrayRecord's checksums show to be damaged, and for records or tokens that the manifest rules out.
        """
        try:
            records = self._sources[split].__getitems__(indices.tolist())
            blocks = np.frombuffer(b"".join(records), self.manifest.record.dtype)
            if (largest := blocks["tokens"].max(initial=0)) >= (pieces := self.manifest.vocab_size):
                raise ValueError(f"it holds the token {largest:,}, of {pieces:,} pieces")
        except (RuntimeError, ValueError, IndexError) as error:
            self._check_shards()
            raise InputError(
                f"corpus {self.folder}: the {split} split cannot be read ({first_line(error)}); {AGAIN}"
            ) from None
        return blocks["tokens"].astype(np.int32), np.ascontiguousarray(blocks["starts"])


def _sha256(file: epath.Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:  # in a bucket an object of TensorFlow's, which knows nothing but read
        while chunk := opened.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _check_shard(folder: epath.Path, shard: Shard) -> None:
    file = inside(folder, shard.name, str(folder / MANIFEST_FILE))
    if not file.exists():
        raise InputError(f"corpus {folder}: the shard {shard.name} is missing; {AGAIN}")
    if (size := demand_regular(file)) != shard.num_bytes:
        raise InputError(
            f"corpus {folder}: the shard {shard.name} is damaged, {size} bytes instead of {shard.num_bytes}; {AGAIN}"
        )

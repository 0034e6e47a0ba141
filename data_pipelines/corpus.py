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
from xlnet_jax.errors import InputError
from xlnet_jax.storage.reading import (
    Count,
    Positive,
    demand_regular,
    inside,
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
    def dtype_end(self) -> int:
        """Offset in bytes of the first byte behind the fields."""
        width = np.dtype(self.token_dtype).itemsize
        return max(self.tokens_at + width * self.block_len, self.starts_at + self.block_len)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy type of a record, with the fields tokens and starts."""
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
        if contradiction := manifest._contradiction():
            raise InputError(f"{file} is damaged: {contradiction}; {AGAIN}")
        return manifest

    def _contradiction(self) -> str | None:
        """Return what in this description cannot be, or None."""
        if self.record.dtype_end > self.record.num_bytes:
            return f"a record of {self.record.num_bytes:,} bytes does not hold {self.record.block_len:,} tokens"
        if set(self.splits) != {"train", "validation"}:
            return f"its splits are {', '.join(self.splits) or 'none'}"
        for name, split in self.splits.items():
            if split.blocks != sum(shard.blocks for shard in split.shards):
                return f"the {name} split has {split.blocks:,} blocks, and its shards have others"
            if len(split.source_blocks) != len(self.sources) and name == "train":
                return f"it has blocks of {len(split.source_blocks)} sources, and names {len(self.sources)}"
        if self.weights and len(self.weights) != len(self.sources):
            return f"{len(self.sources)} sources have {len(self.weights)} weights"
        return None


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
        try:
            counts = read_array(self.folder / COUNTS_FILE, np.int64, rank=1)
        except InputError as damage:
            raise InputError(f"corpus {self.folder}: {COUNTS_FILE} is missing or damaged; {AGAIN} ({damage})") from None
        if len(counts) != self.manifest.vocab_size or counts.min() < 0:
            raise InputError(f"corpus {self.folder}: {COUNTS_FILE} is not of this vocabulary; {AGAIN}")
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
        """Raise InputError, which calls the tokenizer `name`, if it is not the one that made the tokens, or the
        manifest says another size of its vocabulary."""
        if tokenizer.sha256 != (made := self.manifest.made_from.get("tokenizer")):
            raise InputError(
                f"corpus {self.folder}: it was made with another tokenizer than {name} (sha256 "
                f"{tokenizer.sha256[:12]}, and the corpus needs {str(made)[:12]}); bring that "
                "tokenizer back, or prepare the text again"
            )
        if tokenizer.vocab_size != self.manifest.vocab_size:
            raise InputError(
                f"{self.folder / MANIFEST_FILE} is damaged: it says {self.manifest.vocab_size:,} pieces, and the "
                f"tokenizer {name} has {tokenizer.vocab_size:,}; {AGAIN}"
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
        dtype = self.manifest.record.dtype
        try:
            records = self._sources[split].__getitems__(indices.tolist())
        except (RuntimeError, ValueError, IndexError, OSError) as error:
            self._check_shards()
            if isinstance(error, OSError):
                raise
            why = " ".join(str(error).split())[:200]
            raise InputError(f"corpus {self.folder}: the {split} split cannot be read ({why}); {AGAIN}") from None
        if any(len(record) != dtype.itemsize for record in records):
            self._check_shards()
            raise InputError(f"corpus {self.folder}: the {split} split holds records of another length; {AGAIN}")
        blocks = np.frombuffer(b"".join(records), dtype)
        if (largest := blocks["tokens"].max(initial=0)) >= self.manifest.vocab_size:
            self._check_shards()
            raise InputError(
                f"corpus {self.folder}: the {split} split holds the token {largest:,}, and its manifest says "
                f"{self.manifest.vocab_size:,} pieces; {AGAIN}"
            )
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

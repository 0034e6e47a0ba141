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
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError

FORMAT = 2
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

    block_len: int  # tokens
    token_dtype: str  # '<u2' or '<u4'
    tokens_at: int  # byte offset
    starts_at: int  # byte offset
    num_bytes: int

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
    blocks: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Split:
    """Contents of a split. The blocks of the sources follow each other; no block holds text of two sources."""

    documents: int
    lines: int
    tokens: int  # of the whole text, `dropped_tokens` included
    dropped_tokens: int  # after the last full block of each source
    source_blocks: tuple[int, ...]  # number of blocks of each source
    shards: tuple[Shard, ...]

    @property
    def blocks(self) -> int:
        return sum(self.source_blocks)


@dataclass(frozen=True)
class Manifest:
    """Description of a corpus: the text and settings it was made from, and the files it consists of."""

    made_from: dict[str, Any]  # fingerprints of the text, and settings: the same values make the same corpus
    vocab_size: int
    record: Record
    unigram_entropy: float  # of unigram_counts, in nats
    sources: tuple[str, ...]  # names of the training sources
    weights: tuple[float, ...]  # share of the rows that read each source; empty = by number of blocks
    splits: dict[SplitName, Split]
    format: int = FORMAT
    origins: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    """where text behind URLs came from (`prepare.origins`); empty for text on disk"""

    @property
    def sha256(self) -> str:
        """SHA-256 of `made_from`, in hex."""
        return hashlib.sha256(json.dumps(self.made_from, sort_keys=True).encode()).hexdigest()

    def save(self, folder: epath.Path) -> None:
        (folder / MANIFEST_FILE).write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, folder: epath.Path) -> Manifest:
        file = folder / MANIFEST_FILE
        if not file.exists():
            raise InputError(f"corpus {folder}: not a prepared corpus, it has no {MANIFEST_FILE}")
        try:
            values = json.loads(file.read_text())
            if (found := values["format"]) == FORMAT:
                read = {
                    "record": Record(**values["record"]),
                    "sources": tuple(values["sources"]),
                    "weights": tuple(values["weights"]),
                    "splits": _read_splits(values["splits"]),
                }
                return cls(**{**values, **read})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"corpus {folder}: {MANIFEST_FILE} is damaged; {AGAIN}") from None
        raise InputError(f"corpus {folder}: its format is {found}, and this version reads {FORMAT}; {AGAIN}")


def is_corpus(folder: epath.PathLike) -> bool:
    """Return whether `folder` holds a manifest, so that `prepare` made it."""
    return not is_remote(os.fspath(folder)) and (epath.Path(folder).expanduser() / MANIFEST_FILE).exists()


def _read_splits(values: dict[SplitName, dict[str, Any]]) -> dict[SplitName, Split]:
    return {
        name: Split(
            **{
                **split,
                "source_blocks": tuple(split["source_blocks"]),
                "shards": tuple(Shard(**shard) for shard in split["shards"]),
            }
        )
        for name, split in values.items()
    }


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
            return np.load(self.folder / COUNTS_FILE)
        except (OSError, ValueError, EOFError):
            raise InputError(f"corpus {self.folder}: {COUNTS_FILE} is missing or damaged; {AGAIN}") from None

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

    def read(self, split: SplitName, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read the blocks with these indices, int [n].

        Returns tokens, int32 [n, block_len], and starts, uint8 [n, block_len] (`Start`). Raises InputError, with the
        shard and its checksum, if a file was altered.
        """
        dtype = self.manifest.record.dtype
        try:
            records = self._sources[split].__getitems__(indices.tolist())
        except (RuntimeError, ValueError, IndexError, OSError) as error:
            raise self._damage(split) or error from None
        if any(len(record) != dtype.itemsize for record in records):
            raise self._damage(split) or InputError(
                f"corpus {self.folder}: the {split} split holds records of another length; {AGAIN}"
            )
        blocks = np.frombuffer(b"".join(records), dtype)
        return blocks["tokens"].astype(np.int32), np.ascontiguousarray(blocks["starts"])

    def _damage(self, split: SplitName) -> InputError | None:
        for shard in self.manifest.splits[split].shards:
            with (self.folder / shard.name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != shard.sha256:
                return InputError(
                    f"corpus {self.folder}: the shard {shard.name} was altered, its sha256 is {found} and not "
                    f"{shard.sha256}; {AGAIN}"
                )
        return None


def _check_shard(folder: epath.Path, shard: Shard) -> None:
    file = folder / shard.name
    if not file.exists():
        raise InputError(f"corpus {folder}: the shard {shard.name} is missing; {AGAIN}")
    if (size := file.stat().length) != shard.num_bytes:
        raise InputError(
            f"corpus {folder}: the shard {shard.name} is damaged, {size} bytes instead of {shard.num_bytes}; {AGAIN}"
        )

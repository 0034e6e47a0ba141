"""The prepared corpus on disk: text as blocks of tokens that can be read in any order.

A folder with the splits train and validation, which `tfds.builder_from_directory(folder).as_data_source()` opens too:

    corpus-<split>.array_record-<i>-of-<n>   the shards
    features.json, dataset_info.json         what TFDS reads of them
    unigram_counts.npy                       int64 [V], how often each piece occurs in the whole training text
    tokenizer/                               the tokenizer that made the tokens
    manifest.json                            `Manifest`

A record is a tf.train.Example of one block: `tokens`, block_len consecutive tokens as uint16 or uint32, and `starts`, a
`Start` for each of them, both as little-endian bytes. All records of a corpus have their bytes at the same places, so a
batch of them is read without parsing. Nothing here depends on batch size, windows, masks, hosts or a seed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource
from etils import epath

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError

FORMAT = 2
MANIFEST_FILE, COUNTS_FILE, TOKENIZER_FOLDER = "manifest.json", "unigram_counts.npy", "tokenizer"
AGAIN = "delete the folder and prepare the corpus again"

SplitName = Literal["train", "validation"]


class Start(IntEnum):
    """What begins at a token."""

    NOTHING = 0
    SENTENCE = 1
    """a sentence or a line: the text may be cut before it"""
    DOCUMENT = 2


@dataclass(frozen=True)
class Record:
    """Where the bytes of a block are in a record."""

    block_len: int
    token_dtype: str  # '<u2' or '<u4'
    tokens_at: int
    starts_at: int
    num_bytes: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """A record as a NumPy type with the fields tokens and starts."""
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
    """What a split holds; `tokens` counts all of its text, of which `dropped_tokens` are behind the last full blocks.
    The blocks of a source follow those of the source before it; none holds text of two."""

    documents: int
    lines: int
    tokens: int
    dropped_tokens: int
    source_blocks: tuple[int, ...]  # blocks of each source
    shards: tuple[Shard, ...]

    @property
    def blocks(self) -> int:
        return sum(self.source_blocks)


@dataclass(frozen=True)
class Manifest:
    """What a corpus is made of and from."""

    made_from: dict[str, Any]  # what it was asked to hold: two corpora that share it are the same
    vocab_size: int
    record: Record
    unigram_entropy: float  # of unigram_counts, in nats
    sources: tuple[str, ...]  # their names
    weights: tuple[float, ...]  # shares of the rows that read each source; empty = by their numbers of blocks
    splits: dict[SplitName, Split]
    format: int = FORMAT

    @property
    def sha256(self) -> str:
        """Of what the corpus was asked to hold."""
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
    """Did `prepare` make this?"""
    return (epath.Path(folder).expanduser() / MANIFEST_FILE).exists()


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
    """A prepared corpus, open for reading. Safe to share by threads."""

    def __init__(self, folder: epath.PathLike):
        """Opens what `prepare` wrote. Raises InputError where that is no corpus, or shards are missing or cut short."""
        self.folder = folder = epath.Path(folder).expanduser()
        self.manifest = Manifest.load(folder)
        for split in self.manifest.splits.values():
            for shard in split.shards:
                _check_shard(folder, shard)
        self._sources = {
            # The length in brackets spares the reader from opening all shards to count.
            name: ArrayRecordDataSource([f"{folder / shard.name}[0:{shard.blocks}]" for shard in split.shards])
            for name, split in self.manifest.splits.items()
        }

    @property
    def block_len(self) -> int:
        """Tokens in a block."""
        return self.manifest.record.block_len

    @cached_property
    def unigram_counts(self) -> np.ndarray:
        """int64 [V]: how often each piece occurs in the training text, dropped tokens included."""
        try:
            return np.load(self.folder / COUNTS_FILE)
        except (OSError, ValueError, EOFError):
            raise InputError(f"corpus {self.folder}: {COUNTS_FILE} is missing or damaged; {AGAIN}") from None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens. InputError where it was changed since."""
        tokenizer = Tokenizer.load(self.folder / TOKENIZER_FOLDER)
        self.demand(tokenizer, str(self.folder / TOKENIZER_FOLDER))
        return tokenizer

    def demand(self, tokenizer: Tokenizer, name: str) -> None:
        """InputError where this is not the tokenizer that made the tokens."""
        if tokenizer.sha256 != (made := self.manifest.made_from.get("tokenizer")):
            raise InputError(
                f"corpus {self.folder}: it was made with another tokenizer than {name} (sha256 "
                f"{tokenizer.sha256[:12]}, and the corpus needs {str(made)[:12]}); bring that one "
                "back, or prepare the text again"
            )

    def num_blocks(self, split: SplitName) -> int:
        return self.manifest.splits[split].blocks

    def read(self, split: SplitName, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Blocks by their indices, int [n]: tokens int32 [n, block_len] and starts uint8 [n, block_len] (`Start`).

        Raises InputError, with the shard and its checksum, where what is on disk was altered."""
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

"""A corpus of token ids in memory, for data that is not text: used instead of a `Corpus`."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from data_pipelines.corpus import Manifest, RecordLayout, Split, SplitName, Start, entropy
from data_pipelines.tokenizer import SPECIAL_PIECES
from xlnet_jax.errors import InputError

SPLITS: tuple[SplitName, ...] = ("train", "validation")


class IdCorpus:
    """Blocks of ids. Windows may be cut into A and B before any of them."""

    folder, unknown_share = "of the dataset", 0.0

    def __init__(self, dataset: Mapping[str, Any], block_len: int, vocab_size: int):
        """dataset: arrays of ids [N] by split, train and validation.

        Raises InputError if they are not that, or too short for two blocks and one.
        """
        self.block_len = block_len
        self._blocks: dict[SplitName, np.ndarray] = {}
        if sorted(dataset) != sorted(SPLITS):
            raise InputError("dataset", "", "must have two arrays of ids, train and validation")
        digest, splits = hashlib.sha256(), dict[SplitName, Split]()
        for split in SPLITS:
            ids = np.asarray(dataset[split])
            if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
                raise InputError(
                    "dataset", "", f"{split} must have one axis and whole numbers, not {ids.dtype} {list(ids.shape)}"
                )
            if len(ids) and not len(SPECIAL_PIECES) <= ids.min() <= ids.max() < vocab_size:
                raise InputError(
                    "dataset",
                    "",
                    f"{split} has ids from {ids.min()} to {ids.max()}: {len(SPECIAL_PIECES)} is the first after the "
                    f"special ones, and `model.vocab_size` is {vocab_size}",
                )
            if len(ids) < (count := 2 if split == "train" else 1) * block_len:
                raise InputError(
                    "dataset",
                    "",
                    f"{split} has {len(ids)} ids, but needs {count * block_len} for {count} blocks: give more or lower "
                    "`data.windows_per_block` or `data.seq_len`",
                )
            self._blocks[split] = ids[: len(ids) // block_len * block_len].reshape(-1, block_len).astype(np.int32)
            digest.update(self._blocks[split].tobytes())
            splits[split] = Split(1, 0, len(ids), len(ids) % block_len, (len(self._blocks[split]),), shards=())
        self.unigram_counts = np.bincount(self._blocks["train"].ravel(), minlength=vocab_size)
        self.manifest = Manifest(
            made_from={"ids": digest.hexdigest()},
            vocab_size=vocab_size,
            record=RecordLayout(block_len, "<u4", tokens_at=0, starts_at=4 * block_len, num_bytes=5 * block_len),
            unigram_entropy=entropy(self.unigram_counts),
            sources=("ids",),
            weights=(),
            splits=splits,
        )

    def num_blocks(self, split: SplitName) -> int:
        """Return the number of blocks in a split."""
        return len(self._blocks[split])

    def read(self, split: SplitName, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens and the starts of blocks, as `Corpus.read` does."""
        tokens = self._blocks[split][indices]
        return tokens, np.full(tokens.shape, Start.SENTENCE, np.uint8)

"""Text files into a prepared corpus (`corpus` describes it): encode, hold out, cut into blocks, write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from data_pipelines import sources
from data_pipelines.atomic import complete_folder
from data_pipelines.corpus import Corpus, SplitName
from data_pipelines.corpus_writer import CorpusWriter
from data_pipelines.holdout import LowestDocuments, by_document, last_blocks
from data_pipelines.token_stream import TokenBatch, encode_files
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.config import InputError

# What a corpus is made from, and how an error says that it differs.
MADE_FROM = {
    "train": "its training text is another",
    "validation": "its validation text is another",
    "validation_fraction": "its share of held-out text is another",
    "tokenizer": "its tokenizer is another",
    "block_len": "its blocks have another length",
}
REMEDY = "give more text, or lower --data.windows-per-block or --data.seq-len"


def prepare(
    train: Sequence[Path],
    validation: Sequence[Path] | None,
    tokenizer: Tokenizer,
    out: Path,
    *,
    block_len: int,
    validation_fraction: float,
    errors: Literal["strict", "replace"],
) -> Corpus:
    """Writes the corpus folder `out`, complete or not at all, or opens it where it is already there.

    block_len: tokens in a block. validation: files of the validation split; None = about `validation_fraction` of the
    documents of `train`, or, where no documents can be spared, its last blocks. errors: as in `sources.read_lines`.

    Raises InputError where the text is too small or not UTF-8, or `out` was made from something else, and OSError where
    it cannot be written.
    """
    made_from: dict[str, Any] = {
        "train": sources.fingerprint(train),
        "validation": sources.fingerprint(validation) if validation else None,
        "validation_fraction": None if validation else validation_fraction,
        "tokenizer": tokenizer.sha256,
        "block_len": block_len,
    }
    if out.exists():
        return _open(out, made_from)

    with complete_folder(out) as folder:
        job = _Job(folder, tokenizer, block_len, errors)
        writer = job.given(train, validation) if validation else job.held_out(train, validation_fraction)
        writer.finish(made_from)
    return Corpus(out)


def _open(folder: Path, made_from: dict[str, Any]) -> Corpus:
    corpus = Corpus(folder)
    found = corpus.manifest.made_from
    if differences := [text for key, text in MADE_FROM.items() if found.get(key) != made_from[key]]:
        raise InputError(f"corpus {folder}: {', and '.join(differences)}; give another --workdir")
    return corpus


@dataclass(frozen=True)
class _Job:
    """One corpus to be written into `folder`."""

    folder: Path
    tokenizer: Tokenizer
    block_len: int
    errors: Literal["strict", "replace"]

    def given(self, train: Sequence[Path], validation: Sequence[Path]) -> CorpusWriter:
        """Each split from its own files."""
        writer = self._new_writer()
        # Validation first: a mistake in the shorter text is found sooner.
        for batch in self._encode(validation):
            writer.append(batch, np.ones(len(batch.tokens), bool))
        for batch in self._encode(train):
            writer.append(batch, np.zeros(len(batch.tokens), bool))
        texts: tuple[tuple[SplitName, Sequence[Path]], ...] = (("train", train), ("validation", validation))
        for split, paths in texts:
            if (tokens := writer.tokens(split)) < self.block_len:
                raise InputError(
                    f"{split} text {sources.name_of(paths)} has {tokens} tokens, but a block needs "
                    f"{self.block_len}: {REMEDY}"
                )
        return writer

    def held_out(self, paths: Sequence[Path], fraction: float) -> CorpusWriter:
        """Both splits from the same files; they are read twice where the fraction of the documents is no split."""
        lowest = LowestDocuments(self.block_len)
        writer, rule = self._new_writer(), by_document(fraction)
        for batch in self._encode(paths):
            lowest.add(batch)
            writer.append(batch, rule(batch))
        total = writer.tokens("train") + writer.tokens("validation")
        if total < 2 * self.block_len:
            raise InputError(
                f"text {sources.name_of(paths)} has {total} tokens, but one block needs {self.block_len} for training "
                f"and {self.block_len} for validation: {REMEDY}"
            )
        fair = range(self.block_len, total // 2 + 1)  # tokens that can be held out
        if writer.tokens("validation") in fair:
            return writer

        if lowest.tokens in fair:
            rule = by_document(lowest.threshold)
        else:
            rule = last_blocks(total // self.block_len, fraction, self.block_len)
        writer.discard()
        writer = self._new_writer()
        for batch in self._encode(paths):
            writer.append(batch, rule(batch))
        return writer

    def _encode(self, paths: Sequence[Path]) -> Iterator[TokenBatch]:
        return encode_files(paths, self.tokenizer, self.errors)

    def _new_writer(self) -> CorpusWriter:
        return CorpusWriter(self.folder, self.block_len, self.tokenizer.vocab_size)

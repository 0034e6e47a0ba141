"""Writes what `corpus` reads: the shards of both splits, and the files beside them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from data_pipelines.corpus import COUNTS_FILE, Manifest, Record, Shard, Split, SplitName, Start
from data_pipelines.quiet_tensorflow import tensorflow
from data_pipelines.token_stream import TokenBatch

SHARD_BYTES = 2**27  # of records, before compression
WRITER_OPTIONS = "group_size:1,zstd:1"  # one block a group: random access reads nothing else


class CorpusWriter:
    """Writes a corpus into an empty folder: `append` text, then `finish`."""

    def __init__(self, folder: Path, block_len: int, vocab_size: int, shard_bytes: int = SHARD_BYTES):
        self._folder = folder
        template, self._record = _make_record(block_len, vocab_size)
        self._splits: dict[SplitName, _SplitWriter] = {
            "train": _SplitWriter(folder, "train", template, self._record, shard_bytes),
            "validation": _SplitWriter(folder, "validation", template, self._record, shard_bytes),
        }
        self._counts = np.zeros(vocab_size, np.int64)

    def append(self, batch: TokenBatch, held_out: np.ndarray) -> None:
        """The next stretch of text; held_out bool [T]: which of its tokens go to the validation split."""
        self._splits["train"].append(batch, ~held_out)
        self._splits["validation"].append(batch, held_out)
        self._counts += np.bincount(batch.tokens[~held_out], minlength=len(self._counts))

    def tokens(self, split: SplitName) -> int:
        """Tokens that the split was given, those behind its last full block included."""
        return self._splits[split].tokens

    def finish(self, made_from: Mapping[str, Any]) -> None:
        """Closes the shards and writes manifest, counts, and what TFDS needs to open the folder."""
        splits = {name: writer.close() for name, writer in self._splits.items()}
        share = self._counts[self._counts > 0] / self._counts.sum()
        entropy = float(-(share * np.log(share)).sum())
        np.save(self._folder / COUNTS_FILE, self._counts)
        Manifest(dict(made_from), len(self._counts), self._record, entropy, ("text",), (), splits).save(self._folder)
        _write_tfds_metadata(self._folder, self._record, splits)

    def discard(self) -> None:
        """Empties the folder again."""
        for writer in self._splits.values():
            writer.close()
        for file in self._folder.iterdir():
            file.unlink()


def _make_record(block_len: int, vocab_size: int) -> tuple[bytes, Record]:
    """A record as protobuf serializes it, and where its bytes are."""
    tf = tensorflow()
    token_dtype = "<u2" if vocab_size <= 2**16 else "<u4"
    fill = {"tokens": b"\x01" * (block_len * np.dtype(token_dtype).itemsize), "starts": b"\x02" * block_len}
    features = {name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[v])) for name, v in fill.items()}
    example = tf.train.Example(features=tf.train.Features(feature=features))
    serialized = example.SerializeToString(deterministic=True)
    # The last match: a length in front of the bytes can look like one of them, nothing behind them does.
    tokens_at, starts_at = serialized.rfind(fill["tokens"]), serialized.rfind(fill["starts"])
    return serialized, Record(block_len, token_dtype, tokens_at, starts_at, len(serialized))


class _SplitWriter:
    """Cuts a stream of tokens into blocks, and the blocks into shards of at most `shard_bytes`."""

    def __init__(self, folder: Path, split: SplitName, template: bytes, record: Record, shard_bytes: int):
        self._folder, self._split, self._record = folder, split, record
        self._template = np.frombuffer(template, np.uint8)
        self._blocks_per_shard = max(1, shard_bytes // record.num_bytes)
        self._tokens, self._starts = np.zeros(0, np.int32), np.zeros(0, np.uint8)  # less than a block
        self._documents = self._lines = self.tokens = 0
        self._blocks: list[int] = []  # of each shard
        self._writer: Any = None

    def append(self, batch: TokenBatch, where: np.ndarray) -> None:
        tokens, starts = batch.tokens[where], batch.starts[where]
        self.tokens += len(tokens)
        self._documents += int(np.count_nonzero(starts == Start.DOCUMENT))
        self._lines += int(np.count_nonzero(batch.is_line[where]))
        tokens, starts = np.concatenate([self._tokens, tokens]), np.concatenate([self._starts, starts])
        block_len = self._record.block_len
        blocks = len(tokens) // block_len
        full = blocks * block_len
        self._tokens, self._starts = tokens[full:], starts[full:]

        raw = np.tile(self._template, (blocks, 1))
        records = raw.view(self._record.dtype)[:, 0]
        records["tokens"] = tokens[:full].reshape(blocks, block_len)
        records["starts"] = starts[:full].reshape(blocks, block_len)
        for record in raw:
            self._write(record.tobytes())

    def close(self) -> Split:
        self._close_shard()
        shards = tuple(self._name_shard(i, blocks) for i, blocks in enumerate(self._blocks))
        return Split(self._documents, self._lines, self.tokens, len(self._tokens), (sum(self._blocks),), shards)

    def _write(self, record: bytes) -> None:
        with _as_os_error(self._folder):
            if self._writer is None or self._blocks[-1] == self._blocks_per_shard:
                self._close_shard()
                self._writer = ArrayRecordWriter(str(self._unnamed(len(self._blocks))), WRITER_OPTIONS)
                self._blocks.append(0)
            self._writer.write(record)
        self._blocks[-1] += 1

    def _close_shard(self) -> None:
        if self._writer is not None:
            with _as_os_error(self._folder):
                self._writer.close()
            self._writer = None

    def _name_shard(self, i: int, blocks: int) -> Shard:
        name = f"corpus-{self._split}.array_record-{i:05d}-of-{len(self._blocks):05d}"
        file = self._unnamed(i).rename(self._folder / name)
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        return Shard(name, blocks, file.stat().st_size, digest)

    def _unnamed(self, i: int) -> Path:
        return self._folder / f"{self._split}-{i:05d}.unnamed"  # the name holds the number of shards


@contextlib.contextmanager
def _as_os_error(folder: Path) -> Iterator[None]:
    """ArrayRecord reports a full disk as a RuntimeError that holds the system's words."""
    try:
        yield
    except RuntimeError as error:
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            if os.strerror(code) in str(error):
                raise OSError(code, os.strerror(code), str(folder)) from None
        raise


def _write_tfds_metadata(folder: Path, record: Record, splits: Mapping[SplitName, Split]) -> None:
    tensorflow()  # before TFDS imports it in its own, louder way
    import tensorflow_datasets as tfds

    template = tfds.core.ShardedFileTemplate(data_dir=folder, dataset_name="corpus", filetype_suffix="array_record")
    dtypes = {"tokens": np.dtype(record.token_dtype).type, "starts": np.uint8}
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=tfds.features.FeaturesDict(
            {
                name: tfds.features.Tensor(
                    shape=(record.block_len,), dtype=dtype, encoding=tfds.features.Encoding.BYTES
                )
                for name, dtype in dtypes.items()
            }
        ),
        split_infos=[
            tfds.core.SplitInfo(
                name=name,
                shard_lengths=[shard.blocks for shard in split.shards],
                num_bytes=sum(shard.num_bytes for shard in split.shards),
                filename_template=template,
            )
            for name, split in splits.items()
        ],
        filename_template=template,
        check_data=False,  # by reading it with tf.data, which cannot read this format
        description="Blocks of consecutive tokens for pretraining; manifest.json says of what.",
    )

"""Write a corpus folder, the second pass of preparation: plan the shards from the sizes of documents, write each from
the encoded parts, and write the other files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from etils import epath

from data_pipelines.corpus import (
    COUNTS_FILE,
    TOKENIZER_FOLDER,
    Manifest,
    RecordLayout,
    Shard,
    Split,
    SplitName,
    Start,
    entropy,
)
from data_pipelines.prepare.encoding import EncodedSource, load
from data_pipelines.prepare.packing import STRETCH, count_blocks, lay_out
from data_pipelines.prepare.runners import Runner, itself
from data_pipelines.tokenizer import BOS, PAD, Tokenizer
from xlnet_jax.storage.files import complete_file, disk_errors_as_os_error
from xlnet_jax.storage.reading import read_json

MIN_SHARD_BYTES, MAX_SHARD_BYTES, SHARDS = 2**23, 2**27, 64  # before compression
WRITER_OPTIONS = "group_size:1,zstd:1"  # one block per group, so that random access reads one block

Content = tuple[EncodedSource, np.ndarray]
"""Text of a source in a split: its stretches of tokens, from `stretches_of`, or of records, from `RecordWindows`"""


def stretches_of(source: EncodedSource, kept: np.ndarray | bool = True) -> np.ndarray:
    """Return the stretches of tokens in the kept pieces of a source, int64 [stretches, 3]: part, first token, and end
    (after the last token). kept: bool [pieces]; True = all."""
    pieces = source.pieces[kept & (source.piece_tokens > 0)]
    goes_on = (pieces[1:, 0] == pieces[:-1, 0]) & (pieces[1:, 1] == pieces[:-1, 2])
    begins, ends = pieces[np.append(True, ~goes_on)], pieces[np.append(~goes_on, True)]
    return np.column_stack([begins[:, :2], ends[:, 2]])


def cut(stretches: np.ndarray, sizes: Iterable[int]) -> list[np.ndarray]:
    """Cut stretches of tokens into consecutive groups of these sizes, in tokens."""
    ends = np.cumsum(count_tokens(stretches))
    begins = ends - count_tokens(stretches)
    found = []
    for low, high in itertools.pairwise(itertools.accumulate(sizes, initial=0)):
        here = slice(np.searchsorted(ends, low, "right"), np.searchsorted(begins, high, "left"))
        group = stretches[here].copy()
        group[:, 1] += np.maximum(low - begins[here], 0)
        group[:, 2] -= np.maximum(ends[here] - high, 0)
        found.append(group)
    return found


def count_tokens(stretches: np.ndarray) -> np.ndarray:
    """Return the number of tokens in each stretch: int64 [stretches]."""
    return stretches[:, 2] - stretches[:, 1]


@dataclass(frozen=True)
class ShardJob:
    """Contents of one shard: the first `blocks` blocks of its stretches. Later tokens are counted but not written. Of
    records, all blocks of its parts."""

    file: epath.Path
    parts: Mapping[int, str]  # files of the parts in `stretches`, by number
    stretches: np.ndarray
    blocks: int

    @property
    def report(self) -> epath.Path:
        """File that the worker writes for `write_corpus`: the shard, and the counts over all its tokens."""
        return self.file.with_name(f"{self.file.name}.json")


def plan_shards(
    folder: epath.Path, split: SplitName, contents: Sequence[Content], record: RecordLayout
) -> list[ShardJob]:
    """Plan the shards of a split. The last shard of a source also counts the dropped tokens."""
    per_shard = blocks_per_shard(sum(blocks_of(content, record) for content in contents) * record.num_bytes, record)
    plans: list[tuple[EncodedSource, int, np.ndarray]] = []
    for source, stretches in contents:
        if stretches.dtype == STRETCH:
            plans += [(source, *shard) for shard in _cut_between_parts(stretches, per_shard, record)]
            continue
        blocks, rest = divmod(int(count_tokens(stretches).sum()), record.block_len)
        in_shards = [min(per_shard, blocks - begin) for begin in range(0, blocks, per_shard)]
        sizes = [number * record.block_len for number in in_shards]
        sizes[-1] += rest
        plans += [(source, *shard) for shard in zip(in_shards, cut(stretches, sizes), strict=True)]
    jobs = []
    for number, (source, blocks, stretches) in enumerate(plans):
        name = f"corpus-{split}.array_record-{number:05d}-of-{len(plans):05d}"
        parts = {part: source.files[part] for part in np.unique(_parts_of(stretches)).tolist()}
        jobs.append(ShardJob(folder / name, parts, stretches, blocks))
    return jobs


def _parts_of(stretches: np.ndarray) -> np.ndarray:
    return stretches["part"] if stretches.dtype == STRETCH else stretches[:, 0]


def blocks_of(content: Content, record: RecordLayout) -> int:
    """Return the number of blocks of a source in a split."""
    stretches = content[1]
    if stretches.dtype == STRETCH:
        return int(count_blocks(stretches, record.block_len)[:, 1].sum())
    return int(count_tokens(stretches).sum()) // record.block_len


def _cut_between_parts(stretches: np.ndarray, per_shard: int, record: RecordLayout) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (number of blocks, stretches) of each shard of records: whole parts, about `per_shard` blocks."""
    parts, blocks = count_blocks(stretches, record.block_len).T
    shard = (np.cumsum(blocks) - blocks) // per_shard
    for number in np.unique(shard):
        yield int(blocks[shard == number].sum()), stretches[np.isin(stretches["part"], parts[shard == number])]


def blocks_per_shard(split_bytes: int, record: RecordLayout) -> int:
    """Return the number of blocks per shard, for about SHARDS shards of a sensible size in a split."""
    return max(1, int(np.clip(split_bytes // SHARDS, MIN_SHARD_BYTES, MAX_SHARD_BYTES)) // record.num_bytes)


def write_shard(record: RecordLayout, template: bytes, vocab_size: int, job: ShardJob) -> None:
    """Write the shard and its report, with one part at a time in memory. template: a serialized record."""
    block_len, left = record.block_len, job.blocks
    counts = np.zeros(vocab_size, np.int64)
    documents = lines = 0
    tokens, starts = np.zeros(0, np.int32), np.zeros(0, np.uint8)  # not yet a full block
    with complete_file(job.file) as here:
        with disk_errors_as_os_error(here):
            writer = ArrayRecordWriter(str(here), WRITER_OPTIONS)
            try:
                for part, file in job.parts.items():
                    more_tokens, more_starts, line_starts = load(file, "tokens", "starts", "line_starts")
                    stretches = job.stretches[_parts_of(job.stretches) == part]
                    if stretches.dtype == STRETCH:
                        more_tokens, more_starts = lay_out(more_tokens, stretches, block_len)
                        counts += np.bincount(more_tokens[~np.isin(more_tokens, (BOS, PAD))], minlength=vocab_size)
                        documents += int(stretches["begins"].sum())
                        lines += int(stretches["begins"].sum())
                    else:
                        taken = np.concatenate([np.arange(begin, end) for _, begin, end in stretches])
                        more_tokens, more_starts = more_tokens[taken], more_starts[taken]
                        counts += np.bincount(more_tokens, minlength=vocab_size)
                        documents += int(np.count_nonzero(more_starts == Start.DOCUMENT))
                        lines += int(np.isin(line_starts, taken).sum())
                    tokens, starts = np.concatenate([tokens, more_tokens]), np.concatenate([starts, more_starts])
                    blocks = min(len(tokens) // block_len, left)
                    full = blocks * block_len
                    raw = np.tile(np.frombuffer(template, np.uint8), (blocks, 1))
                    records = raw.view(record.dtype)[:, 0]
                    records["tokens"] = tokens[:full].reshape(blocks, block_len)
                    records["starts"] = starts[:full].reshape(blocks, block_len)
                    for one in raw:
                        writer.write(one.tobytes())
                    tokens, starts, left = tokens[full:], starts[full:], left - blocks
            finally:
                writer.close()
        with here.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        shard = Shard(job.file.name, job.blocks, here.stat().st_size, digest)
    report = {"shard": dataclasses.asdict(shard), "documents": documents, "lines": lines, "counts": counts.tolist()}
    job.report.write_text(json.dumps(report))


def write_corpus(
    folder: epath.Path,
    contents: Mapping[SplitName, Sequence[Content]],
    tokenizer: Tokenizer,
    block_len: int,
    weights: Sequence[float],
    made_from: Mapping[str, Any],
    origins: Mapping[str, Any],
    runner: Runner,
) -> None:
    """Write a corpus with these contents into `folder`.

    weights: share of the rows that read each source; empty = in proportion to size. made_from, origins: as in
    `Manifest`.
    """
    for path in folder.iterdir():  # left by an interrupted run
        path.rmtree() if path.is_dir() else path.unlink()
    template, record = serialized_record(block_len, tokenizer.vocab_size)
    jobs = {split: plan_shards(folder, split, given, record) for split, given in contents.items()}
    work = partial(write_shard, record, template, tokenizer.vocab_size)
    runner([job for of_split in jobs.values() for job in of_split], work, itself)

    counts = np.zeros(tokenizer.vocab_size, np.int64)
    splits: dict[SplitName, Split] = {}
    for split, of_split in jobs.items():
        reports = [read_json(job.report) for job in of_split]
        tokens = sum(sum(report["counts"]) for report in reports)
        source_blocks = tuple(blocks_of(content, record) for content in contents[split])
        are_records = any(stretches.dtype == STRETCH for _, stretches in contents[split])
        splits[split] = Split(
            documents=sum(report["documents"] for report in reports),
            lines=sum(report["lines"] for report in reports),
            tokens=tokens,
            dropped_tokens=0 if are_records else tokens - sum(source_blocks) * block_len,
            source_blocks=source_blocks,
            shards=tuple(Shard(**report["shard"]) for report in reports),
        )
        if split == "train":
            counts += sum(np.array(report["counts"], np.int64) for report in reports)
        for job in of_split:
            job.report.unlink()
    tokenizer.save(folder / TOKENIZER_FOLDER)
    # NumPy writes to an open file through a copy of its descriptor, and ignores errors of its close.
    array = io.BytesIO()
    np.save(array, counts)
    (folder / COUNTS_FILE).write_bytes(array.getvalue())
    write_tfds_metadata(folder, record, splits)
    Manifest(
        made_from=dict(made_from),
        vocab_size=len(counts),
        record=record,
        unigram_entropy=entropy(counts),
        sources=tuple(source.text.name for source, _ in contents["train"]),
        weights=tuple(weights),
        splits=splits,
        origins=dict(origins),
    ).save(folder)


def serialized_record(block_len: int, vocab_size: int) -> tuple[bytes, RecordLayout]:
    """Return a template record in the form that TFDS reads, and the layout of its bytes."""
    from tensorflow_datasets.proto import tf_example_pb2

    token_dtype: Literal["<u2", "<u4"] = "<u2" if vocab_size <= 2**16 else "<u4"
    tokens = np.full(block_len, 0x01010101 & np.iinfo(token_dtype).max, token_dtype)
    starts = np.full(block_len, 2, np.uint8)
    in_any_order = _features(block_len, token_dtype).serialize_example({"tokens": tokens, "starts": starts})
    serialized = tf_example_pb2.Example.FromString(in_any_order).SerializeToString(deterministic=True)
    # Search from the end: a length field before the bytes can look like them, but nothing after them does.
    tokens_at, starts_at = serialized.rfind(tokens.tobytes()), serialized.rfind(starts.tobytes())
    return serialized, RecordLayout(block_len, token_dtype, tokens_at, starts_at, len(serialized))


def write_tfds_metadata(folder: epath.Path, record: RecordLayout, splits: Mapping[SplitName, Split]) -> None:
    """Write features.json and dataset_info.json."""
    import tensorflow_datasets as tfds

    template = tfds.core.ShardedFileTemplate(data_dir=folder, dataset_name="corpus", filetype_suffix="array_record")
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=_features(record.block_len, record.token_dtype),
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
        check_data=False,  # the check uses tf.data, which cannot read this format
        description="Blocks of consecutive tokens for pretraining; manifest.json describes the text.",
    )


def _features(block_len: int, token_dtype: str) -> Any:
    import tensorflow_datasets as tfds

    dtypes = {"tokens": np.dtype(token_dtype).type, "starts": np.uint8}
    return tfds.features.FeaturesDict(
        {
            name: tfds.features.Tensor(shape=(block_len,), dtype=dtype, encoding=tfds.features.Encoding.BYTES)
            for name, dtype in dtypes.items()
        }
    )

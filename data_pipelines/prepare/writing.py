"""Write a corpus folder: the shards of both splits, and the files beside them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from etils import epath

from data_pipelines.corpus import COUNTS_FILE, TOKENIZER_FOLDER, Manifest, Record, Split, SplitName
from data_pipelines.prepare.runners import Runner
from data_pipelines.prepare.shards import Content, Written, plan_shards, write_shard
from data_pipelines.tokenizer import Tokenizer


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
    """Write the corpus of these contents into `folder`, reusing shards that an interrupted run finished.

    weights: share of the rows that read each source; empty = by size. made_from, origins: as in `Manifest`.
    """
    template, record = serialized_record(block_len, tokenizer.vocab_size)
    jobs = {
        split: plan_shards(folder, split, given, record, template, tokenizer.vocab_size)
        for split, given in contents.items()
    }
    every_job = [job for of_split in jobs.values() for of_source in of_split for job in of_source]
    ours = {name for job in every_job for name in (job.name, job.report.name)}
    for path in folder.iterdir():  # of an earlier run with other settings
        if path.name not in ours:
            path.rmtree() if path.is_dir() else path.unlink()
    runner.run(every_job, write_shard)

    counts = np.zeros(tokenizer.vocab_size, np.int64)
    splits: dict[SplitName, Split] = {}
    for split, of_split in jobs.items():
        written = [Written.load(job) for of_source in of_split for job in of_source]
        source_blocks = tuple(sum(job.blocks for job in of_source) for of_source in of_split)
        tokens = sum(shard.tokens for shard in written)
        splits[split] = Split(
            documents=sum(shard.documents for shard in written),
            lines=sum(shard.lines for shard in written),
            tokens=tokens,
            dropped_tokens=tokens - sum(source_blocks) * block_len,
            source_blocks=source_blocks,
            shards=tuple(shard.shard for shard in written),
        )
        if split == "train":
            counts += sum(np.array(shard.counts, np.int64) for shard in written)
    tokenizer.save(folder / TOKENIZER_FOLDER)
    array = io.BytesIO()  # into an open file NumPy writes by a copy of its descriptor, and ignores errors of its close
    np.save(array, counts)
    (folder / COUNTS_FILE).write_bytes(array.getvalue())
    write_tfds_metadata(folder, record, splits)
    share = counts[counts > 0] / counts.sum()
    Manifest(
        made_from=dict(made_from),
        vocab_size=len(counts),
        record=record,
        unigram_entropy=float(-(share * np.log(share)).sum()),
        sources=tuple(content.source.given.name for content in contents["train"]),
        weights=tuple(weights),
        splits=splits,
        origins=dict(origins),
    ).save(folder)
    for job in every_job:
        job.report.unlink()


def serialized_record(block_len: int, vocab_size: int) -> tuple[bytes, Record]:
    """Return a record in the form that TFDS reads, as a template, and the layout of its bytes."""
    from tensorflow_datasets.proto import tf_example_pb2

    token_dtype: Literal["<u2", "<u4"] = "<u2" if vocab_size <= 2**16 else "<u4"
    tokens = np.full(block_len, 0x01010101 & np.iinfo(token_dtype).max, token_dtype)
    starts = np.full(block_len, 2, np.uint8)
    in_any_order = _features(block_len, token_dtype).serialize_example({"tokens": tokens, "starts": starts})
    serialized = tf_example_pb2.Example.FromString(in_any_order).SerializeToString(deterministic=True)
    # Search from the end: a length before the bytes can look like one of them, nothing after them does.
    tokens_at, starts_at = serialized.rfind(tokens.tobytes()), serialized.rfind(starts.tobytes())
    return serialized, Record(block_len, token_dtype, tokens_at, starts_at, len(serialized))


def write_tfds_metadata(folder: epath.Path, record: Record, splits: Mapping[SplitName, Split]) -> None:
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
        check_data=False,  # the check reads the data with tf.data, which cannot read this format
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

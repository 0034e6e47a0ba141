"""Serialize a block, and write the files that TFDS needs to open a corpus folder, without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from etils import epath

from data_pipelines.corpus import Record, Split, SplitName


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

"""Small TFDS datasets, as `tfds build` leaves them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xlnet_jax.storage.quiet import tensorflow


def write_dataset(
    folder: Path, name: str, splits: Mapping[str, Sequence[Mapping[str, Any]]], **features: Callable[[Any], Any]
) -> None:
    """Write the rows of each split into a new folder.

    features: what makes each feature from the module of TFDS's features, which takes seconds to import.
    """
    tf = tensorflow()
    import tensorflow_datasets as tfds

    folder.mkdir(parents=True)
    all_features = tfds.features.FeaturesDict({key: make(tfds.features) for key, make in features.items()})
    template = tfds.core.ShardedFileTemplate(data_dir=folder, dataset_name=name, filetype_suffix="tfrecord")
    infos = []
    for split, rows in splits.items():
        with tf.io.TFRecordWriter(str(folder / f"{name}-{split}.tfrecord-00000-of-00001")) as writer:
            for row in rows:
                writer.write(all_features.serialize_example(row))
        info = tfds.core.SplitInfo(name=split, shard_lengths=[len(rows)], num_bytes=1, filename_template=template)
        infos.append(info)
    tfds.folder_dataset.write_metadata(
        data_dir=folder, features=all_features, split_infos=infos, filename_template=template, check_data=False
    )

"""Read text from prepared TensorFlow Datasets, on disk or in the cloud, without running any code that they name."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from etils import epath

from data_pipelines.faults import Faults, TextRow
from data_pipelines.readers import Errors, chunk_documents, decode_document
from xlnet_jax.errors import InputError, first_line
from xlnet_jax.storage.files import in_bucket
from xlnet_jax.storage.quiet import tensorflow
from xlnet_jax.storage.reading import inside, naming_damage, require_fitting, require_regular_files

DATASET_INFO = "dataset_info.json"
AGAIN = "prepare the dataset again"
SLICE_DOCUMENTS = 10_000
BATCH = 256


@dataclass(frozen=True)
class DatasetSlice:
    """A slice of a prepared dataset, with one document per example."""

    folder: str
    split: str  # in TFDS's notation, 'train[0:10000]'
    text_field: str
    errors: Errors

    @property
    def path(self) -> str:
        """Folder and split, for messages."""
        return f"{self.folder} {self.split}"

    def chunks(self, faults: Faults) -> Iterator[str]:
        """Yield chunks of lines, as `readers` do. Raises InputError if a shard cannot be read."""
        return chunk_documents(faults.texts(self.rows()))

    def rows(self, id_field: str | None = None) -> Iterator[TextRow]:
        """Yield every example. Raises InputError as `chunks`, and for an `id_field`."""
        if id_field is not None:
            raise InputError("id_field", id_field, ": works only with JSON Lines and Parquet")
        examples = _examples(_open_folder(epath.Path(self.folder)), self.split, [self.text_field])
        for number, (text,) in enumerate(examples, 1):
            where = f"text {self.path}: example {number}"
            yield TextRow(where, decode_document(text, where, self.errors))


def open_dataset(name: str, split: str, text_field: str, errors: Errors) -> tuple[DatasetSlice, ...]:
    """Return the slices of a dataset.

    name: TFDS name (c4/en, c4/en:3.0.1) or folder; a split in brackets at the end replaces `split`. Raises InputError
    if the dataset is not prepared, or lacks the split or the field.
    """
    dataset, bracket, wanted = name.partition("[")
    split = wanted.removesuffix("]") if bracket else split
    builder = _builder(dataset)
    info = builder.info
    examples = _count_examples(builder, dataset, split)
    if text_field not in info.features or not isinstance(info.features[text_field], _tfds().features.Text):
        raise InputError(
            f"tfds:{dataset} has no text field {text_field!r}, only {', '.join(info.features)}: name the text field "
            "with `text_field`"
        )
    folder = str(builder.data_path)
    if split not in info.splits:  # 'train[:10%]': TFDS cannot slice a slice
        return (DatasetSlice(folder, split, text_field, errors),)
    begins = range(0, examples, SLICE_DOCUMENTS)
    return tuple(
        DatasetSlice(folder, f"{split}[{b}:{min(b + SLICE_DOCUMENTS, examples)}]", text_field, errors) for b in begins
    )


def dataset_rows(name: str, class_names: bool) -> Iterator[dict[str, Any]]:
    """Yield the examples of a split, NAME[SPLIT], as {field: text, number or class}, without other fields.

    class_names: yield class names instead of numbers; an unknown class (-1) is None. Raises InputError if the dataset
    is not prepared, lacks the split, or cannot be read.
    """
    tfds = _tfds()
    dataset, _, split = name.removesuffix("]").partition("[")
    builder = _builder(dataset)
    _count_examples(builder, dataset, split)
    features = {k: f for k, f in builder.info.features.items() if f.shape == ()}

    def plain(value: Any, feature: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(feature, tfds.features.ClassLabel):
            return None if value < 0 else feature.int2str(int(value)) if class_names else int(value)
        return value.item()

    for values in _examples(builder, split, list(features)):
        yield {k: plain(v, features[k]) for k, v in zip(features, values, strict=True)}


def _count_examples(builder: Any, dataset: str, split: str) -> int:
    """Return the number of examples of a split. Raises InputError if its files are outside the dataset's folder, or
    have fewer bytes than examples."""
    folder, splits = builder.data_path, builder.info.splits
    with naming_damage(f"text {folder}", AGAIN):
        try:
            found = splits[split]
        except (KeyError, ValueError):
            there = ", ".join(splits) or "nothing"
            raise InputError(
                f"tfds:{dataset} has no split {split}, only {there}: choose one with tfds:{dataset}[SPLIT]"
            ) from None
        if not found.num_examples:
            raise InputError(f"tfds:{dataset}: its split {split} is empty; name another split")
        for file in found.file_instructions:
            inside(folder, os.path.relpath(file.filename, folder), str(folder / DATASET_INFO))
        if not in_bucket(folder):
            require_fitting(found.num_examples, require_regular_files(folder), folder)
        return found.num_examples


def _examples(builder: Any, split: str, fields: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of these fields for each example."""
    tf, tfds = tensorflow(), _tfds()
    decoders = tfds.decode.PartialDecoding(dict.fromkeys(fields, True))
    try:
        if builder.info.file_format.value == "array_record":  # tf.data cannot read this format
            for example in builder.as_data_source(split, decoders=decoders):
                yield tuple(example[field] for field in fields)
        else:
            in_order = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
            dataset = builder.as_dataset(split, decoders=decoders, read_config=in_order)
            for batch in dataset.batch(BATCH).as_numpy_iterator():
                yield from zip(*(batch[field] for field in fields), strict=True)
    except (tf.errors.OpError, RuntimeError, OSError, ValueError, TypeError, KeyError) as error:
        # Drop the name of the TensorFlow operation at the start of the message.
        why = first_line(error).rpartition("}} ")[2]
        raise InputError(f"text {builder.data_path}: its split {split} cannot be read ({why}); {AGAIN}") from None


def _builder(dataset: str) -> Any:
    tfds = _tfds()
    place = epath.Path(tfds.core.constants.DATA_DIR).expanduser()
    for folder in (epath.Path(dataset).expanduser(), place / dataset.replace(":", "/")):
        # A name without a version means the newest prepared version.
        versions = sorted(folder.glob(f"*/{DATASET_INFO}"), key=lambda p: _version(p.parent.name))
        for info in (folder / DATASET_INFO, *reversed(versions)):
            if info.exists():
                return _open_folder(info.parent)
    hint = "TFDS has no such dataset; tfds.list_builders() lists all"
    if dataset.partition("/")[0].partition(":")[0] in tfds.list_builders(with_community_datasets=False):
        command = shlex.join(["tfds", "build", dataset, "--data_dir", str(place)])
        hint = f"prepare it with `{command}`, or name its folder with TFDS_DATA_DIR in the environment"
    raise InputError(f"tfds:{dataset} is not prepared in {place}: {hint}")


def _open_folder(folder: epath.Path) -> Any:
    if not in_bucket(folder):
        require_regular_files(folder)
    with naming_damage(f"text {folder}", AGAIN):
        return _tfds().builder_from_directory(folder)


def _version(name: str) -> list[int]:
    return [int(part) if part.isdigit() else -1 for part in name.split(".")]


@cache
def _tfds() -> Any:
    tensorflow()  # first: if TFDS imported TensorFlow, all its messages would be printed
    import tensorflow_datasets as tfds

    connector = tfds.features.FeatureConnector
    import_class = connector.cls_from_name

    def import_own_class(name: str) -> Any:
        if not str(name).startswith("tensorflow_datasets.core.features."):
            raise ValueError(f"it names the class {str(name)[:100]!r}, but code in datasets is never run")
        return import_class(name)

    connector.cls_from_name = staticmethod(import_own_class)
    # Hide a deprecation warning about TFDS's own code.
    logging.getLogger("absl").addFilter(lambda record: "FeatureConnector.dtype" not in str(record.msg))
    return tfds

"""Read text of TensorFlow Datasets that were prepared on disk or in the cloud, after a check of their metadata."""

from __future__ import annotations

import difflib
import logging
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from etils import epath

from data_pipelines.readers import Errors, chunk_documents, decode_document
from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import in_bucket
from xlnet_jax.storage.quiet import tensorflow
from xlnet_jax.storage.reading import decode_json, demand_regular_files, inside, read_json

DATASET_INFO, FEATURES = "dataset_info.json", "features.json"
_OWN_CLASSES = re.compile(r"tensorflow_datasets\.core\.features\.\w+(\.\w+)*")
_CLASS_KEYS = ("pythonClassName", "python_class_name", "type")
_PLACEHOLDERS = re.compile(r"\$?\{(DATASET|SPLIT|FILEFORMAT|SHARD_INDEX|NUM_SHARDS|SHARD_X_OF_Y)\}")
_AGAIN = "prepare the dataset again"


@dataclass(frozen=True)
class _Split:
    """A split in dataset_info.json, where numbers of 64 bits are texts and both spellings of a name may stand."""

    name: str
    filepathTemplate: str = ""
    filepath_template: str = ""
    shardLengths: tuple[int | str, ...] = ()
    shard_lengths: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class _Info:
    name: str = ""
    splits: tuple[_Split, ...] = field(default=())


def check_metadata(folder: epath.Path) -> None:
    """Raise InputError where the metadata name a class that is not TFDS's own, a file outside the folder, or more
    examples than the files can hold, and where a pipe or a device is among the files."""
    there = None if in_bucket(folder) else demand_regular_files(folder)
    info_file, features_file = folder / DATASET_INFO, folder / FEATURES
    info, features = read_json(info_file, _Info, _AGAIN), read_json(features_file, dict[str, Any], _AGAIN)
    for found in _objects(features):
        for key in _CLASS_KEYS:
            name = str(found.get(key, ""))
            if key in found and (key != "type" or "content" in found) and not _OWN_CLASSES.fullmatch(name):
                raise InputError(
                    f"text {features_file}: it names the class {name[:100]!r}, and only classes of tensorflow_datasets "
                    "are read: code in a dataset does not run here"
                )
        names = found.get("features")
        for name in names if isinstance(names, dict) else ():  # TFDS makes file names of them
            inside(folder, name, str(features_file))
    examples = 0
    for split in info.splits:
        templates = [_PLACEHOLDERS.sub("x", t) for t in (split.filepathTemplate, split.filepath_template) if t]
        if wrong := [t for t in templates if "{" in t or "%" in t]:
            raise InputError(f"text {info_file}: its template of file names is none of TFDS's ({wrong[0][:100]!r})")
        for name in (*templates, info.name or "x", split.name):
            inside(folder, name, str(info_file))
        for length in (*split.shardLengths, *split.shard_lengths):
            if not re.fullmatch(r"\d{1,18}", str(length)):
                raise InputError(f"text {info_file}: a shard of {str(length)[:40]} examples; {_AGAIN}")
            examples += int(length)
    if there is not None and examples > there:
        raise InputError(f"text {info_file}: it announces {examples:,} examples, and its files have {there:,} bytes")


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every JSON object anywhere in features.json, in JSON that is in a text too."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            value = decode_json(value, FEATURES)
        except InputError:
            return
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _objects(each)


SLICE_DOCUMENTS = 10_000
BATCH = 256


@dataclass(frozen=True)
class DatasetSlice:
    """A slice of a prepared dataset, with one document an example."""

    folder: str
    split: str  # in TFDS's notation, 'train[0:10000]'
    text_field: str

    def chunks(self, errors: Errors) -> Iterator[str]:
        """Yield chunks of lines, as `readers` do. Raises InputError if a shard cannot be read."""
        where = f"text {self.folder} {self.split}"
        examples = _examples(_opened(epath.Path(self.folder)), self.split, [self.text_field])
        return chunk_documents(decode_document(text, where, errors) for (text,) in examples)


def open_dataset(name: str, data_dir: str | None, split: str, text_field: str) -> tuple[DatasetSlice, ...]:
    """Return the slices of a dataset.

    name: TFDS's name (c4/en, c4/en:3.0.1) or a folder; a split in brackets at its end replaces `split`. data_dir: as
    tfds_data_dir of `sources.find`. Raises InputError if the dataset is not prepared, or lacks the split or the field.
    """
    dataset, bracket, wanted = name.partition("[")
    split = wanted.removesuffix("]") if bracket else split
    builder = _builder(dataset, data_dir)
    info = builder.info
    examples = _size(builder, dataset, split)
    if text_field not in info.features or not isinstance(info.features[text_field], _tfds().features.Text):
        raise InputError(
            f"tfds:{dataset} has no text in a field {text_field!r}, its fields are {', '.join(info.features)}: name "
            "the one with the text by `text_field`"
        )
    folder = str(builder.data_path)
    if split not in info.splits:  # 'train[:10%]': TFDS cannot slice a slice
        return (DatasetSlice(folder, split, text_field),)
    begins = range(0, examples, SLICE_DOCUMENTS)
    return tuple(DatasetSlice(folder, f"{split}[{b}:{min(b + SLICE_DOCUMENTS, examples)}]", text_field) for b in begins)


def dataset_rows(name: str, data_dir: str | None, class_names: bool) -> Iterator[dict[str, Any]]:
    """Yield the examples of a split, NAME[SPLIT], as {field: text, number or class}; other fields are left out.

    class_names: give classes by name instead of by number; an unknown class (-1) is None. Raises InputError if the
    dataset is not prepared, lacks the split, or cannot be read.
    """
    tfds = _tfds()
    dataset, _, split = name.removesuffix("]").partition("[")
    builder = _builder(dataset, data_dir)
    _size(builder, dataset, split)
    features = {k: f for k, f in builder.info.features.items() if f.shape == ()}

    def plain(value: Any, feature: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(feature, tfds.features.ClassLabel):
            return None if value < 0 else feature.int2str(int(value)) if class_names else int(value)
        return value.item()

    for values in _examples(builder, split, list(features)):
        yield {k: plain(v, features[k]) for k, v in zip(features, values, strict=True)}


def _size(builder: Any, dataset: str, split: str) -> int:
    """Return the number of examples of a split."""
    splits = builder.info.splits
    try:
        examples = splits[split].num_examples
    except (KeyError, ValueError):
        raise InputError(
            f"tfds:{dataset} has no split {split}, only {', '.join(splits) or 'none at all'}: name one as "
            f"tfds:{dataset}[SPLIT]"
        ) from None
    if not examples:
        raise InputError(f"tfds:{dataset}: its {split} holds no documents; name another split")
    return examples


def _examples(builder: Any, split: str, fields: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of these fields, example by example."""
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
        # Leave out the name of the TensorFlow operation that begins the message.
        why = str(error).partition("}} ")[2] or str(error)
        raise InputError(
            f"text {builder.data_path}: its {split} cannot be read ({why.splitlines()[0].partition(' [Op:')[0]}); "
            "prepare the dataset again"
        ) from None


def _builder(dataset: str, data_dir: str | None) -> Any:
    tfds = _tfds()
    place = epath.Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
    folder = epath.Path(dataset).expanduser()
    for candidate in (folder, place / dataset.replace(":", "/")):
        # A name without a version stands for the newest version that is prepared.
        versions = sorted(candidate.glob(f"*/{DATASET_INFO}"), key=lambda p: _version(p.parent.name))
        for info in (candidate / DATASET_INFO, *reversed(versions)):
            if info.exists():
                return _opened(info.parent)
    known = tfds.list_builders(with_community_datasets=False)
    if (name := dataset.partition("/")[0].partition(":")[0]) in known:
        command = shlex.join(["tfds", "build", dataset, "--data_dir", str(place)])
        raise InputError(
            f"tfds:{dataset} is not prepared in {place}: prepare it with `{command}`, or name the folder where it "
            "is by `tfds_data_dir`"
        )
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean tfds:{near[0]}?" if near else "tfds.list_builders() names those it knows"
    raise InputError(f"tfds:{dataset}: nothing of that name is prepared in {place}, and TFDS does not know it; {hint}")


def _opened(folder: epath.Path) -> Any:
    check_metadata(folder)
    try:
        return _tfds().builder_from_directory(folder)
    except Exception as error:  # TFDS and Protobuf raise exceptions of many types
        why = str(error).strip().partition("\n")[0]
        raise InputError(f"text {folder}: a damaged TFDS dataset ({why}); prepare the dataset again") from None


def _version(name: str) -> list[int]:
    return [int(part) if part.isdigit() else -1 for part in name.split(".")]


@cache
def _tfds() -> Any:
    tensorflow()  # first, or TFDS imports TensorFlow with all its messages
    import tensorflow_datasets as tfds

    # Hide a deprecation warning about TFDS's own code.
    logging.getLogger("absl").addFilter(lambda record: "FeatureConnector.dtype" not in str(record.msg))
    return tfds

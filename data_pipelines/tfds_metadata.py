"""Check the metadata of a TFDS dataset before TFDS imports the classes that features.json names, and reads the files
that dataset_info.json names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import in_bucket
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

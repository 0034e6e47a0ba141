"""Divide the Parquet files of a dataset of the Hub into configurations and splits, by its card or by their names.

The rules are the Hub's (https://huggingface.co/docs/hub/datasets-file-names-and-splits).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

DEFAULT = "default"
ALL = "train"  # the split of files that name none
WORDS = {
    "train": "train|training",
    "validation": "validation|valid|dev|val",
    "test": "test|testing|eval|evaluation",
}
PUSHED = re.compile(r"data/(\w[\w.]*)-\d{5}-of-\d{5}.*\.parquet")  # as `Dataset.push_to_hub` names files
CONVERTED = re.compile(r"([^/]+)/([^/]+)/\d{4,}\.parquet")  # as the Hub names those that it makes

Splits = Mapping[str, Sequence[str]]


def configurations(paths: Sequence[str], card: Sequence[Mapping[str, Any]]) -> dict[str, Splits]:
    """Return {configuration: {split: paths}} for the files of a repository.

    card: the field `configs` of the dataset's card, empty if it has none. A configuration with a file that is not
    Parquet is left out.
    """
    if card:
        found = {str(entry.get("config_name", DEFAULT)): _by_card(paths, entry) for entry in card}
    else:
        tables = [path for path in paths if path.endswith(".parquet")]
        found = _converted(tables) or {DEFAULT: _by_names(tables)}
    return {config: splits for config, splits in found.items() if _is_parquet(splits)}


def choose(configs: Mapping[str, Splits], card: Sequence[Mapping[str, Any]], wanted: str | None) -> str | None:
    """Return the configuration that a name means, None if it is not there.

    wanted: None = the one that the card marks, that is called default, or that is alone.
    """
    marked = [str(entry.get("config_name")) for entry in card if entry.get("default")]
    meant = [wanted] if wanted else [*marked, DEFAULT, *(configs if len(configs) == 1 else ())]
    return next((config for config in meant if config in configs), None)


def _is_parquet(splits: Splits) -> bool:
    every = [path for paths in splits.values() for path in paths]
    return bool(every) and all(path.endswith(".parquet") for path in every)


def _by_card(paths: Iterable[str], entry: Mapping[str, Any]) -> Splits:
    folder = str(entry.get("data_dir") or "").strip("/")
    inside = {path.removeprefix(f"{folder}/"): path for path in paths if not folder or path.startswith(f"{folder}/")}
    from fsspec.utils import glob_translate

    if not (patterns := entry.get("data_files")):
        named = _by_names([path for path in inside if path.endswith(".parquet")])
        return {split: [inside[path] for path in found] for split, found in named.items()}
    found: dict[str, list[str]] = defaultdict(list)
    for item in patterns if isinstance(patterns, list) else [patterns]:
        split, given = (item.get("split", ALL), item["path"]) if isinstance(item, Mapping) else (ALL, item)
        for pattern in given if isinstance(given, list) else [given]:
            matches = re.compile(glob_translate(str(pattern).removeprefix("./"))).match
            found[str(split)] += [inside[path] for path in sorted(inside) if matches(path)]
    return {split: list(dict.fromkeys(files)) for split, files in found.items()}


def _by_names(paths: Iterable[str]) -> Splits:
    paths = sorted(paths)
    pushed: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        if match := PUSHED.fullmatch(path):
            pushed[match[1]].append(path)
    worded = {split: [path for path in paths if _names(path, words)] for split, words in WORDS.items()}
    return pushed or {split: files for split, files in worded.items() if files} or {ALL: paths}


def _names(path: str, words: str) -> bool:
    return re.search(rf"(?:^|[-._ 0-9/])(?:{words})(?:[-._ 0-9/]|$)", path) is not None


def _converted(paths: Iterable[str]) -> dict[str, Splits]:
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(paths):
        if not (match := CONVERTED.fullmatch(path)):
            return {}
        found[match[1]][match[2]].append(path)
    return {config: dict(splits) for config, splits in found.items()}

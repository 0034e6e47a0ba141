"""Find datasets of the Hugging Face Hub, hf:NAME/CONFIG:SPLIT, as the Parquet files that hold them, at one commit.

The card of a dataset, or the names of its files, say which of them are a split. A dataset in another format is read
from the Parquet files that the Hub made of it, on its branch refs/convert/parquet. No code of a dataset is ever run.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from data_pipelines.remote import RemoteFile, in_one_line
from xlnet_jax.errors import InputError

HUB, FILES = "hf:", "hf://"
CONVERTED = "refs/convert/parquet"
DEFAULT, ALL = "default", "train"  # the configuration and the split of files that name none
WORDS = {"train": "train|training", "validation": "validation|valid|dev|val", "test": "test|testing|eval|evaluation"}
SHOWN_NAMES = 20
Splits = dict[str, list[str]]


def find(name: str, split: str) -> list[RemoteFile]:
    """Return the files of a split, all at one commit, which their URLs hold.

    name: hf:NAME, hf:NAME/CONFIG or hf:NAME@COMMIT/CONFIG, with :SPLIT or without. split: of a name that has none.

    Raises InputError where the Hub does not know the dataset, or the dataset lacks the configuration or the split, with
    the names of those that it has; Unreachable where the network fails.
    """
    path, _, wanted = name.removeprefix(HUB).partition(":")
    with in_one_line(name):
        import huggingface_hub

        info, revision, config = _look_up(path)
        configs, chosen = _choose(info, config)
        if revision is None and chosen is None:
            with contextlib.suppress(huggingface_hub.errors.RevisionNotFoundError):
                info = huggingface_hub.HfApi().dataset_info(info.id, revision=CONVERTED, files_metadata=True)
                configs, chosen = _choose(info, config)
    if not configs:
        raise InputError(
            f"text {name}: no Parquet files are in this dataset, and the Hub made none of it; give its files of text, "
            f"as {FILES}datasets/{info.id}/FILE"
        )
    if chosen is None:
        lack = f"there is no configuration {config}" if config else "there are several configurations"
        raise InputError(f"text {name}: {lack}; name one of {_some(configs)}, as {HUB}{info.id}/CONFIG")
    if (wanted := wanted or split) not in configs[chosen]:
        raise InputError(
            f"text {name}: its configuration {chosen} has no split {wanted}; name one of {_some(configs[chosen])}, as "
            f"{HUB}NAME/CONFIG:SPLIT (partial- means the first gigabytes, which the Hub converted)"
        )
    files = {file.rfilename: file for file in info.siblings}
    root = f"{FILES}datasets/{info.id}@{info.sha}"
    return [RemoteFile(f"{root}/{path}", files[path].size, files[path].blob_id) for path in configs[chosen][wanted]]


def pin(url: str) -> str:
    """Return the URL of a file, folder or glob of a repository, hf://datasets/…, at the commit of this moment."""
    with in_one_line(url):
        import huggingface_hub

        where: Any = huggingface_hub.HfFileSystem().resolve_path(url)
        if not hasattr(where, "repo_id"):  # a bucket, which has no commits
            return url
        api = huggingface_hub.HfApi()
        commit = api.repo_info(where.repo_id, repo_type=where.repo_type, revision=where.revision).sha
    return f"{FILES}{where.root.partition('@')[0]}@{commit}/{where.path_in_repo}".rstrip("/")


def _look_up(path: str) -> tuple[Any, str | None, str]:
    """Return the Hub's description of a dataset, and the revision and the configuration in its name, if any."""
    import huggingface_hub

    look_up = huggingface_hub.HfApi().dataset_info
    repository, at, rest = path.partition("@")
    if at:
        revision, _, config = rest.partition("/")
        return look_up(repository, revision=revision, files_metadata=True), revision, config
    owner, _, rest = path.partition("/")
    dataset, _, config = rest.partition("/")
    try:
        return look_up(f"{owner}/{dataset}".rstrip("/"), files_metadata=True), None, config
    except huggingface_hub.errors.RepositoryNotFoundError:
        if config or not dataset:
            raise
    return look_up(owner, files_metadata=True), None, dataset  # a dataset without an owner, and its configuration


def _choose(info: Any, wanted: str) -> tuple[dict[str, Splits], str | None]:
    """Return the configurations of a repository, and which of them is wanted.

    wanted: empty = the one that the card marks, that is called default, or that is alone.
    """
    card = (info.card_data.get("configs") if info.card_data else None) or []
    configs = divide([file.rfilename for file in info.siblings or ()], card)
    marked = [str(entry.get("config_name")) for entry in card if entry.get("default")]
    meant = [wanted] if wanted else [*marked, DEFAULT, *(configs if len(configs) == 1 else ())]
    return configs, next((config for config in meant if config in configs), None)


def divide(paths: Sequence[str], card: Sequence[Mapping[str, Any]]) -> dict[str, Splits]:
    """Return {configuration: {split: paths}} for the files of a repository.

    card: the field `configs` of its card, empty if it has none. A configuration with other than Parquet is left out.
    """
    from fsspec.utils import glob_translate

    found: dict[str, Splits] = defaultdict(lambda: defaultdict(list))
    for entry in card or [{}]:
        folder = f"{entry['data_dir'].strip('/')}/" if entry.get("data_dir") else ""
        inside = sorted(path.removeprefix(folder) for path in paths if path.startswith(folder))
        for item in _list_of(entry.get("data_files")):
            split, patterns = (item.get("split", ALL), item["path"]) if isinstance(item, Mapping) else (ALL, item)
            for pattern in _list_of(patterns):
                matches = re.compile(glob_translate(pattern.removeprefix("./"))).match
                found[entry.get("config_name", DEFAULT)][split] += [folder + path for path in inside if matches(path)]
        for path in inside:
            if not entry.get("data_files") and path.endswith(".parquet"):
                config, split = _name_of(path)
                found[entry.get("config_name", config)][split].append(folder + path)
    return {
        config: {split: list(dict.fromkeys(files)) for split, files in splits.items() if files}
        for config, splits in found.items()
        if all(path.endswith(".parquet") for files in splits.values() for path in files) and any(splits.values())
    }


def _list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def _name_of(path: str) -> tuple[str, str]:
    """Return the configuration and the split of a file that only its name describes."""
    if converted := re.fullmatch(r"([^/]+)/([^/]+)/\d{4,}\.parquet", path):  # as the Hub names those that it makes
        return converted[1], converted[2]
    if pushed := re.fullmatch(r"data/(\w[\w.]*)-\d{5}-of-\d{5}.*\.parquet", path):  # as `Dataset.push_to_hub` does
        return DEFAULT, pushed[1]
    named = (s for s, words in WORDS.items() if re.search(rf"(^|[-._ 0-9/])({words})([-._ 0-9/]|$)", path))
    return DEFAULT, next(named, ALL)


def _some(names: Mapping[str, Any]) -> str:
    shown = ", ".join(list(names)[:SHOWN_NAMES])
    return f"{shown} and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else shown

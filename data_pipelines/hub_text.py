"""Find datasets of the Hugging Face Hub, hf:NAME/CONFIG:SPLIT, as the Parquet files that hold them, at one commit.

A dataset is read from the Parquet files of its repository. A dataset in another form is read from those that the Hub
made of it, on its branch refs/convert/parquet. No code of a dataset is ever run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from data_pipelines.hub_layout import Splits, choose, configurations
from data_pipelines.network_failures import failure
from data_pipelines.remote import RemoteFile, missing_package
from xlnet_jax.errors import InputError

HUB, FILES = "hf:", "hf://"
CONVERTED = "refs/convert/parquet"
PARTIAL = "partial-"  # the Hub converts the first gigabytes of a large split
SHOWN_NAMES = 20


def is_dataset(name: str) -> bool:
    """Return True for hf:NAME, and False for the URL of a file or folder, hf://datasets/…"""
    return name.startswith(HUB) and not name.startswith(FILES)


def describe(name: str) -> str:
    """Return a short name: wikitext-wikitext-2-raw-v1 for hf:wikitext/wikitext-2-raw-v1:train."""
    return re.sub(r"@[^/]*", "", name.removeprefix(HUB).partition(":")[0]).strip("/").replace("/", "-")


def find(name: str, split: str) -> list[RemoteFile]:
    """Return the files of a split, all at one commit, which their URLs hold.

    name: hf:NAME, hf:NAME/CONFIG or hf:NAME@COMMIT/CONFIG, with :SPLIT or without. split: of a name that has none.

    Raises InputError where the Hub does not know the dataset, or the dataset lacks the configuration or the split, with
    the names of those that it has; Unreachable where the network fails.
    """
    path, _, wanted = name.removeprefix(HUB).partition(":")
    try:
        info, revision, config = _dataset(name, path)
        offered: dict[str, Splits] = {}
        for repository in _with_converted(info, revision):
            card = (repository.card_data.get("configs") if repository.card_data else None) or []
            files = {sibling.rfilename: sibling for sibling in repository.siblings or ()}
            offered |= (configs := configurations(sorted(files), card))
            if chosen := choose(configs, card, config):
                root = f"{FILES}datasets/{repository.id}@{repository.sha}"
                paths = _split(configs[chosen], wanted or split, f"text {name}: its configuration {chosen}")
                return [RemoteFile(f"{root}/{path}", files[path].size, files[path].blob_id) for path in paths]
    except InputError:
        raise
    except Exception as error:
        raise failure(name, error) from None
    if not offered:
        raise InputError(
            f"text {name}: no Parquet files are in this dataset, and the Hub made none of it; give its files of text, "
            f"as {FILES}datasets/{info.id}/FILE"
        )
    lack = f"there is no configuration {config}" if config else "there are several configurations"
    raise InputError(f"text {name}: {lack}; name one of {_some(offered)}, as {HUB}{info.id}/CONFIG")


def pinned(url: str) -> str:
    """Return the URL of a file, folder or glob of a repository, hf://datasets/…, at the commit of this moment."""
    hub = _hub(url)
    try:
        where = hub.HfFileSystem().resolve_path(url)
        if not hasattr(where, "repo_id"):  # a bucket, which has no commits
            return url
        commit = hub.HfApi().repo_info(where.repo_id, repo_type=where.repo_type, revision=where.revision).sha
    except Exception as error:
        raise failure(url, error) from None
    kind = "" if where.repo_type == "model" else f"{where.repo_type}s/"
    return f"{FILES}{kind}{where.repo_id}@{commit}/{where.path_in_repo}".rstrip("/")


def commit_of(file: RemoteFile) -> str | None:
    """Return the commit in the URL of a file of the Hub; None for another file."""
    found = re.match(rf"{FILES}[^@]+@([^/]+)/", file.url)
    return found and found[1]


def _dataset(name: str, path: str) -> tuple[Any, str | None, str | None]:
    """Return the Hub's description of a dataset, and the revision and the configuration in its name, or None."""
    hub = _hub(name)
    readings = list(_readings(path))
    for repository, revision, config in readings:
        try:
            return hub.HfApi().dataset_info(repository, revision=revision, files_metadata=True), revision, config
        except hub.errors.GatedRepoError:
            raise
        except hub.errors.RepositoryNotFoundError:
            continue
        except hub.errors.RevisionNotFoundError:
            raise InputError(f"text {name}: this dataset has no commit, branch or tag {revision}") from None
        except hub.errors.HFValidationError:
            raise InputError(
                f"text {name}: {repository or 'an empty name'} cannot be a dataset; give {HUB}NAME, {HUB}NAME/CONFIG "
                f"or {HUB}NAME/CONFIG:SPLIT"
            ) from None
    names = " and no dataset ".join(repository for repository, *_ in readings)
    raise InputError(
        f"text {name}: the Hub shows you no dataset {names}; check the name, and for a private one log in with `hf "
        "auth login`, or set HF_TOKEN"
    )


def _readings(path: str) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield what a name can mean, as (repository, revision, configuration): a/b is a dataset, or b is a part of a."""
    repository, at, rest = path.partition("@")
    if at:
        revision, _, config = rest.partition("/")
        yield repository, revision, config or None
        return
    parts = path.split("/", 2)
    yield "/".join(parts[:2]), None, parts[2] if len(parts) > 2 else None
    if len(parts) == 2:
        yield parts[0], None, parts[1]


def _with_converted(info: Any, revision: str | None) -> Iterator[Any]:
    """Yield the description of a dataset and then, if it is read at its newest commit, that of the Hub's conversion."""
    yield info
    if revision is None:
        hub = _hub(info.id)
        try:
            yield hub.HfApi().dataset_info(info.id, revision=CONVERTED, files_metadata=True)
        except hub.errors.RevisionNotFoundError:
            return


def _split(splits: Splits, wanted: str, where: str) -> list[str]:
    if splits.get(wanted):
        return list(splits[wanted])
    if f"{PARTIAL}{wanted}" in splits:
        raise InputError(
            f"{where} is in Parquet in part only, the first gigabytes that the Hub converted: to read those, name the "
            f"split {PARTIAL}{wanted}"
        )
    raise InputError(f"{where} has no split {wanted}; name one of {_some(splits)}, as {HUB}NAME/CONFIG:SPLIT")


def _some(names: Mapping[str, Any]) -> str:
    shown = ", ".join(list(names)[:SHOWN_NAMES])
    return f"{shown} and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else shown


def _hub(name: str) -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        raise missing_package(name, "hf") from None
    return huggingface_hub

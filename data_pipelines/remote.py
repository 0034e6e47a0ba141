"""Find and open text behind URLs (https://, s3://, hf:// and other schemes of fsspec), and find the Parquet files of
Hugging Face Hub datasets (hf:NAME/CONFIG:SPLIT). Code of a dataset is never run. gs:// is read by TensorFlow, through
epath.
"""

from __future__ import annotations

import contextlib
import glob
import posixpath
import re
import socket
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from xlnet_jax.errors import RESTART, InputError, first_line

HUB, HUB_FILES = "hf:", "hf://"
SILENCE = 60  # seconds without a byte until a connection to a web server counts as broken
BLOCK_BYTES = 2**23  # per request, except from web servers
VERSIONS = ("ETag", "etag", "blob_id", "md5", "Content-MD5", "Last-Modified", "LastModified", "mtime")
EXTRAS = {"http": "https", "https": "https", "s3": "s3", "s3a": "s3", "hf": "hub"}
LOGIN = {
    "s3": ": set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for a public bucket FSSPEC_S3_ANON=true",
    "hf": ": log in with `hf auth login`, or set HF_TOKEN; accept the terms of a gated dataset on its page",
}
# Names of exception classes, whose libraries may not be installed, and HTTP statuses.
REFUSED = {"PermissionError", "RepositoryNotFoundError", "NoCredentialsError", "ProfileNotFound", 401, 403}
BUSY = {
    "ConnectionError", "TimeoutError", "gaierror", "IncompleteRead", "ClientConnectionError", "ClientPayloadError",
    "HTTPClientError", "TransportError", "UnavailableError", "DeadlineExceededError", 408, 425, 429, 500, 502, 503, 504,
}  # fmt: skip
CONVERTED = "refs/convert/parquet"  # branch with the Parquet files that the Hub creates for datasets in other formats
DEFAULT, ALL = "default", "train"  # configuration and split of files whose names give none
WORDS = {"train": "train|training", "validation": "validation|valid|dev|val", "test": "test|testing|eval|evaluation"}


class Unreachable(InputError):
    """Temporary failure of a network or server. After its exit code, launchers run the command again."""

    exit_code = RESTART


Listed = tuple[str, int | None, str | None]
"""URL, bytes and version of a file when it was listed. The version is an ETag, a hash or a modification time: the same
value means the same bytes. None = unknown"""


def is_remote(name: str) -> bool:
    """Return True for a URL that is read through fsspec."""
    return "://" in name and not name.lower().startswith("gs://")


def on_web(url: str) -> bool:
    """Return True for https://… and http://…, which name files, never folders."""
    return url.lower().startswith(("https://", "http://"))


def file_name(path: str) -> str:
    """Return the last part of a path or URL, without the query of a web address. Its extension gives the format."""
    if on_web(path):
        path = unquote(urlsplit(path).path)
    return path.rstrip("/").rpartition("/")[2]


@contextlib.contextmanager
def explaining_read_errors(name: str) -> Iterator[None]:
    """Turn any exception of a library that finds or reads text into an InputError of one line, or into Unreachable if
    the failure may be temporary."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        causes: list[Any] = [error]
        while cause := causes[-1].__cause__ or (None if causes[-1].__suppress_context__ else causes[-1].__context__):
            causes.append(cause)
        statuses = {status for cause in causes if (status := _http_status(cause))}
        found = {kind.__name__ for cause in causes for kind in type(cause).__mro__} | statuses
        why = f"HTTP {min(statuses)}" if statuses else first_line(causes[-1])
        is_unknown_host = isinstance(causes[-1], socket.gaierror) and causes[-1].errno != socket.EAI_AGAIN
        scheme = name.partition(":")[0].lower()
        if "ImportError" in found and scheme in EXTRAS:
            message = f"reading it needs another package: pip install -e '.[{EXTRAS[scheme]}]' in the clone"
        elif found & REFUSED:
            message = f"it does not exist, or you have no permission to read it ({why}){LOGIN.get(scheme, '')}"
        elif found & BUSY and not is_unknown_host:
            message = f"the network or the server failed ({why}); run the same command again to continue"
            raise Unreachable(f"text {name}: {message}") from None
        elif found & {"FileNotFoundError", 404, 410}:
            message = f"no such file, commit or host ({why})"
        else:
            message = f"it cannot be read or is damaged ({why})"
        raise InputError(f"text {name}: {message}") from None


def _http_status(error: Any) -> int | None:
    """Return the HTTP status in an exception of aiohttp, botocore or huggingface_hub."""
    response = getattr(error, "response", None)
    of_s3 = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    status = of_s3 or getattr(error, "status", None) or getattr(response, "status_code", None)
    return status if isinstance(status, int) and status >= 400 else None


def find(name: str) -> list[Listed]:
    """Return the files of a URL, sorted: one file, the files in a folder at any depth, or the files that match a glob
    (`**` matches any depth). A web address is one file. Files on the Hub are pinned to the current commit.

    Raises InputError if there are none or if the URL is a web page, and Unreachable if the network fails.
    """
    with explaining_read_errors(name):
        system, url = _filesystem(name), name
        where: Any = system.resolve_path(name) if name.startswith(HUB_FILES) else None
        if hasattr(where, "repo_id"):  # a repository: buckets have no commits
            commit = system._api.repo_info(where.repo_id, repo_type=where.repo_type, revision=where.revision).sha
            url = f"{HUB_FILES}{where.root.partition('@')[0]}@{commit}/{where.path_in_repo}".rstrip("/")
        try:
            info = system.info(url)
            found = system.find(url, detail=True) if info["type"] == "directory" else {info["name"]: info}
        except FileNotFoundError:
            if on_web(name) or not glob.has_magic(name):
                raise
            found = system.glob(url, detail=True)
        if any(info.get("mimetype") == "text/html" for info in found.values()) and ".htm" not in file_name(name):
            raise InputError(f"text {name}: this is a web page; give the address of the file itself, often called raw")
        files = []
        for path, info in sorted(found.items()):
            if info["type"] == "file" and not path.endswith("/"):  # S3 represents a folder by an empty object
                version = next((str(info[key]) for key in VERSIONS if info.get(key)), None)
                files.append((system.unstrip_protocol(path), info.get("size"), version))
        return files


def open_file(url: str) -> Any:
    """Open a file for reading. Files on the web have no `seek`, as they are read from one response."""
    return _filesystem(url).open(url, "rb", block_size=0 if on_web(url) else BLOCK_BYTES)


def _filesystem(url: str) -> Any:
    import fsspec

    options: dict[str, Any] = {}
    if on_web(url):
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
        options["client_kwargs"] = {"timeout": timeout, "trust_env": True}
        options["headers"] = {"Accept-Encoding": "identity"}  # compression is given by the file name
    return fsspec.filesystem(url.partition("://")[0].lower(), **options)


def find_dataset(name: str, split: str) -> list[Listed]:
    """Return the files of a dataset's split. Their URLs contain the commit, the same for all.

    name: hf:NAME, hf:NAME/CONFIG or hf:NAME@COMMIT/CONFIG, with or without :SPLIT. split: used if the name has none.
    Raises InputError if there is no such dataset, configuration or split, and Unreachable if the network fails.
    """
    path, _, wanted = name.removeprefix(HUB).partition(":")
    repository, _, rest = path.partition("@")
    revision, _, config = rest.partition("/")
    parts = repository.split("/")
    with explaining_read_errors(name):
        from huggingface_hub import HfApi, errors

        info: Any
        try:
            info = HfApi().dataset_info("/".join(parts[:2]), revision=revision or None, files_metadata=True)
            config = config or "/".join(parts[2:])
        except errors.RepositoryNotFoundError:  # the name is a dataset without an owner, and a configuration
            info = HfApi().dataset_info(parts[0], revision=revision or None, files_metadata=True)
            config = config or "/".join(parts[1:])
        configs = divide(info)
        if not (configs.get(config) if config else configs) and not revision:
            with contextlib.suppress(errors.RevisionNotFoundError):
                info = HfApi().dataset_info(info.id, revision=CONVERTED, files_metadata=True)
                configs = divide(info)
    config = config or (next(iter(configs)) if len(configs) == 1 else DEFAULT)
    splits = configs.get(config, {})
    if (wanted := wanted or split) not in splits:
        lack = f"split {wanted} in its configuration {config}" if splits else f"configuration {config}"
        there = ", ".join(list(splits or configs)[:20]) or "nothing in Parquet"
        raise InputError(f"text {name}: it has no {lack}, only {there}; use the form {HUB}{info.id}/CONFIG:SPLIT")
    files = {file.rfilename: file for file in info.siblings}
    root = f"{HUB_FILES}datasets/{info.id}@{info.sha}"
    return [(f"{root}/{path}", files[path].size, files[path].blob_id) for path in splits[wanted]]


def divide(info: Any) -> dict[str, dict[str, list[str]]]:
    """Return {configuration: {split: paths}} of a dataset, from the `configs` field of its card or from its file names.
    Configurations with other formats than Parquet are skipped. info: the dataset's DatasetInfo."""
    from fsspec.utils import glob_translate

    paths = sorted(file.rfilename for file in info.siblings)
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for entry in (info.card_data or {}).get("configs") or [{}]:
        files = entry.get("data_files") or [{"path": "**/*.parquet", "split": None}]
        for item in [files] if isinstance(files, str) else files:
            patterns, split = (item, ALL) if isinstance(item, str) else (item["path"], item.get("split", ALL))
            for pattern in [patterns] if isinstance(patterns, str) else patterns:
                whole = posixpath.normpath(posixpath.join(entry.get("data_dir", ""), pattern))
                for path in filter(re.compile(glob_translate(whole)).match, paths):
                    config, split_of_path = (DEFAULT, split) if split else _name_of(path)
                    found[entry.get("config_name", config)][split_of_path].append(path)
    return {
        config: splits
        for config, splits in found.items()
        if all(path.endswith(".parquet") for files in splits.values() for path in files)
    }


def _name_of(path: str) -> tuple[str, str]:
    """Return the configuration and the split of a file, from its name alone."""
    if converted := re.fullmatch(r"([^/]+)/([^/]+)/\d{4,}\.parquet", path):  # the names of files that the Hub creates
        return converted[1], converted[2]
    named = (split for split, words in WORDS.items() if re.search(rf"(^|[-._ 0-9/])({words})([-._ 0-9/]|$)", path))
    return DEFAULT, next(named, ALL)

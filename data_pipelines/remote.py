"""Find text behind URLs: https://, http://, s3://, hf:// and every other scheme that fsspec knows.

`gs://` is not one of them: TensorFlow reads it, through epath, as it does for workdirs and corpora.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from data_pipelines.network_failures import failure
from xlnet_jax.errors import InputError

HTTP = ("http", "https")
SILENCE = 60  # seconds without a byte after which a connection counts as broken
HTML = (".html", ".htm")
VERSIONS = ("ETag", "etag", "blob_id", "md5", "Content-MD5", "Last-Modified", "LastModified", "mtime")
EXTRAS = {"http": "https", "https": "https", "s3": "s3", "s3a": "s3", "hf": "hub"}


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL, as it was when it was listed."""

    url: str
    size: int | None  # bytes; None = the server does not say
    version: str | None  # ETag, hash or time of change: the same value means the same bytes; None = unknown


def is_remote(name: str) -> bool:
    """Return True for a URL that is read through fsspec."""
    return "://" in name and scheme_of(name) != "gs"


def scheme_of(url: str) -> str:
    """Return s3 for s3://bucket/file, in lower case."""
    return url.partition("://")[0].lower()


def on_web(url: str) -> bool:
    """Return True for https://… and http://…, behind which there are files and no folders."""
    return scheme_of(url) in HTTP


def file_name(path: str) -> str:
    """Return the last part of a path or URL, without the query of a web address: it says how the file is read."""
    if on_web(path):
        path = unquote(urlsplit(path).path)
    return path.rstrip("/").rpartition("/")[2]


def find(name: str) -> list[RemoteFile]:
    """Return the files that a URL stands for, sorted: a file, those below a folder at any depth, or those that match a
    glob (`**` descends). A web address stands for one file.

    Raises InputError where there are none or a web page is there, and Unreachable where a network fails.
    """
    try:
        return [_web_file(name)] if on_web(name) else _stored_files(name)
    except InputError:
        raise
    except Exception as error:
        raise failure(name, error) from None


def _web_file(url: str) -> RemoteFile:
    if "*" in urlsplit(url).path:
        raise InputError(f"text {url}: a web server does not list its files, so globs match nothing; name each file")
    info = filesystem(url).info(url)
    if info.get("mimetype") == "text/html" and not file_name(url).lower().endswith(HTML):
        raise InputError(
            f"text {url}: a web page (text/html) and not a file of text; give the address of the file itself, often "
            "called raw or download"
        )
    return RemoteFile(url, info.get("size"), version_of(info))


def _stored_files(name: str) -> list[RemoteFile]:
    system = filesystem(name)
    try:
        info = system.info(name)
        found = system.find(name, detail=True) if info["type"] == "directory" else {info["name"]: info}
    except FileNotFoundError:
        if not glob.has_magic(name):
            raise
        found = system.glob(name, detail=True)
    # S3 keeps an empty object in place of a folder.
    files = {path: info for path, info in found.items() if info["type"] == "file" and not path.endswith("/")}
    return [
        RemoteFile(system.unstrip_protocol(path), files[path]["size"], version_of(files[path]))
        for path in sorted(files)
    ]


def version_of(info: Any) -> str | None:
    """Return what identifies the bytes of a file among the fields of `fsspec.info` or the headers of a response."""
    return next((str(info[key]) for key in VERSIONS if info.get(key)), None)


def filesystem(url: str) -> Any:
    """Return fsspec's file system for a URL. Raises InputError, with what to install, where a package is missing."""
    import fsspec

    scheme = scheme_of(url)
    options: dict[str, Any] = {}
    try:
        if scheme in HTTP:
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
            options = {"client_kwargs": {"timeout": timeout, "trust_env": True}}
        return fsspec.filesystem(scheme, **options)
    except ImportError as error:
        raise missing_package(url, scheme, str(error)) from None
    except ValueError as error:  # fsspec does not know the scheme
        raise InputError(f"text {url}: {error}; text is read from a disk, https://, s3://, gs:// or hf://") from None


def missing_package(name: str, scheme: str, remedy: str = "") -> InputError:
    """Return the error for a text that needs a package of an extra. remedy: where there is no extra for it."""
    extra = EXTRAS.get(scheme)
    remedy = f"pip install 'xlnet_jax[{extra}]'" if extra else remedy
    return InputError(f"text {name}: reading it needs a package that is not installed: {remedy}")

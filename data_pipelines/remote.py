"""Find and open text behind URLs: https://, http://, s3://, hf:// and every other scheme that fsspec knows.

`gs://` is not one of them: TensorFlow reads it, through epath, as it does for workdirs and corpora.
"""

from __future__ import annotations

import contextlib
import glob
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from xlnet_jax.errors import RESTART, InputError

SILENCE = 60  # seconds without a byte after which a connection counts as broken
BLOCK_BYTES = 2**23  # fetched in one request, except in order from a web server
VERSIONS = ("ETag", "etag", "blob_id", "md5", "Content-MD5", "Last-Modified", "LastModified", "mtime")
EXTRAS = {"http": "https", "https": "https", "s3": "s3", "s3a": "s3", "hf": "hub"}
LOGIN = {
    "s3": "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for a public bucket FSSPEC_S3_ANON=true",
    "hf": "log in with `hf auth login`, or set HF_TOKEN; accept the terms of a gated dataset on its page",
}
_PASSING = "; the same command goes on later"
_FAILURES: tuple[tuple[set[str], tuple[int, ...], str], ...] = (
    ({"ImportError"}, (), "reading it needs a package that is not installed: {install}"),
    ({"OfflineModeIsEnabled"}, (), "HF_HUB_OFFLINE is set, and text of the Hub is read over the network; unset it"),
    ({"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"}, (), "no credentials ({why}): {login}"),
    ({"PermissionError", "RepositoryNotFoundError"}, (401, 403), "not there, or you may not read it ({why}): {login}"),
    (set(), (408, 425, 429, 500, 502, 503, 504), "the server cannot answer now ({why})" + _PASSING),
    (set(), (404, 410), "no such file, commit or branch ({why}); check the address"),
    ({"SSLCertVerificationError"}, (), "the certificate of its server is not valid ({why}); check the address"),
    ({"UnknownHost"}, (), "no such host, or no network ({why}); check the address and the network"),
    ({"ConnectionError", "TimeoutError", "gaierror", "IncompleteRead", "ClientConnectionError", "ClientPayloadError",
      "HTTPClientError", "EndpointConnectionError", "ConnectTimeoutError", "TransportError"}, (),
     "the connection failed ({why}): check the network" + _PASSING),
    ({"FileNotFoundError"}, (), "no such file or folder; check the address"),
)  # fmt: skip
"""Exception classes by name, as libraries may not be installed; HTTP statuses; message. The first that fits holds"""


class Unreachable(InputError):
    """Failure of a network or a server that may pass: one line, and the exit code after which launchers continue."""

    exit_code = RESTART


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL, as it was when it was listed."""

    url: str
    size: int | None  # bytes; None = the server does not say
    version: str | None  # ETag, hash or time of change: the same value means the same bytes; None = unknown


def is_remote(name: str) -> bool:
    """Return True for a URL that is read through fsspec."""
    return "://" in name and not name.lower().startswith("gs://")


def on_web(url: str) -> bool:
    """Return True for https://… and http://…, behind which there are files and no folders."""
    return url.lower().startswith(("https://", "http://"))


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
    with in_one_line(name):
        system = _filesystem(name)
        try:
            info = system.info(name)
            found = system.find(name, detail=True) if info["type"] == "directory" else {info["name"]: info}
        except FileNotFoundError:
            if on_web(name) or not glob.has_magic(name):
                raise
            found = system.glob(name, detail=True)
    files = []
    for path, info in sorted(found.items()):
        if info.get("mimetype") == "text/html" and not file_name(name).lower().endswith((".html", ".htm")):
            raise InputError(
                f"text {name}: a web page (text/html) and not a file of text; give the address of the file itself, "
                "often called raw or download"
            )
        if info["type"] == "file" and not path.endswith("/"):  # S3 keeps an empty object in place of a folder
            version = next((str(info[key]) for key in VERSIONS if info.get(key)), None)
            files.append(RemoteFile(system.unstrip_protocol(path), info.get("size"), version))
    return files


def open_file(url: str, in_order: bool) -> Any:
    """Open a file for reading; every failure is an InputError, and Unreachable if it may pass by itself.

    in_order: without `seek`; a web server then sends the file in one response.
    """
    with in_one_line(url):
        file = _filesystem(url).open(url, "rb", block_size=0 if in_order and on_web(url) else BLOCK_BYTES)
    read = file.read

    def read_in_one_line(size: int = -1) -> bytes:
        with in_one_line(url):
            return read(size)

    file.read = read_in_one_line
    return file


@contextlib.contextmanager
def in_one_line(name: str) -> Iterator[None]:
    """Turn whatever fsspec and the libraries below it raise into an InputError of one line; into Unreachable where it
    may pass by itself."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        causes: list[Any] = [error]
        while cause := causes[-1].__cause__ or (None if causes[-1].__suppress_context__ else causes[-1].__context__):
            causes.append(cause)
        kinds = {kind.__name__ for cause in causes for kind in type(cause).__mro__}
        statuses = {status for cause in causes if (status := _http_status(cause))}
        if on_web(name) and isinstance(cause := causes[-1], socket.gaierror) and cause.errno != socket.EAI_AGAIN:
            kinds.add("UnknownHost")  # which the user has typed
        messages = (message for names, passing, message in _FAILURES if names & kinds or statuses.intersection(passing))
        message = next(messages, "it cannot be read ({why}); check the address, or copy it to a disk")
        said = str(causes[-1]).strip().partition("\n")[0] or type(causes[-1]).__name__
        why = f"HTTP {min(statuses)}" if statuses else said
        scheme = name.partition(":")[0].lower()
        install = f"pip install 'xlnet_jax[{EXTRAS[scheme]}]'" if scheme in EXTRAS else said
        login = LOGIN.get(scheme, "check the address, and that you may read it")
        kind = Unreachable if message.endswith(_PASSING) else InputError
        raise kind(f"text {name}: {message.format(why=why, install=install, login=login)}") from None


def _http_status(error: Any) -> int | None:
    """Return the HTTP status in an exception of aiohttp, botocore or huggingface_hub."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    status = getattr(error, "status", None) or getattr(response, "status_code", None)
    return status if isinstance(status, int) and status >= 400 else None


def _filesystem(url: str) -> Any:
    """Return fsspec's file system for a URL."""
    import fsspec

    options: dict[str, Any] = {}
    if on_web(url):
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
        options["client_kwargs"] = {"timeout": timeout, "trust_env": True}
        options["headers"] = {"Accept-Encoding": "identity"}  # the name of a file says how it is compressed
    try:
        return fsspec.filesystem(url.partition("://")[0].lower(), **options)
    except ValueError as error:  # fsspec does not know the scheme
        raise InputError(f"text {url}: {error}; text is read from a disk, https://, s3://, gs:// or hf://") from None

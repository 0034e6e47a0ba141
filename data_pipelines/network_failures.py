"""Say in one line why text behind a URL cannot be read, whichever library said so in its own way."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

from xlnet_jax.errors import RESTART, InputError

PASSING = (408, 425, 429, 500, 502, 503, 504)  # HTTP status
CREDENTIALS = {
    "s3": "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for a public bucket FSSPEC_S3_ANON=true",
    "hf": "log in with `hf auth login`, or set HF_TOKEN; accept the terms of a gated dataset on its page",
}
# Names of exception classes: the libraries need not be installed.
NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "CredentialRetrievalError"}
BROKEN = {
    "ConnectionError", "TimeoutError", "gaierror", "IncompleteRead",
    "ClientConnectionError", "ClientPayloadError",  # aiohttp
    "HTTPClientError", "EndpointConnectionError", "ConnectTimeoutError",  # botocore
    "TransportError",  # httpx
}  # fmt: skip


class Unreachable(InputError):
    """Failure of a network or a server that may pass: one line, and the exit code after which launchers continue."""

    exit_code = RESTART


def failure(url: str, error: BaseException, was_reached: bool = False) -> InputError:
    """Return the error for an exception of fsspec or of a library below it: Unreachable if it may pass by itself.

    was_reached: the server has answered before, so that its name is right.
    """
    causes = list(_causes(error))
    status = next((code for cause in causes if (code := _status(cause))), None)
    kinds = {kind.__name__ for cause in causes for kind in type(cause).__mro__}
    why = str(causes[-1]).strip().partition("\n")[0] or type(causes[-1]).__name__
    scheme = url.partition(":")[0]
    credentials = CREDENTIALS.get(scheme, "check the address, and that you may read it")

    if "OfflineModeIsEnabled" in kinds:
        return InputError(f"text {url}: HF_HUB_OFFLINE is set, and text of the Hub is read over the network; unset it")
    if kinds & NO_CREDENTIALS:
        return InputError(f"text {url}: no credentials ({why}): {credentials}")
    if status in (401, 403) or kinds & {"PermissionError", "RepositoryNotFoundError"}:
        hidden = " or does not exist" if scheme in CREDENTIALS else ""
        return InputError(
            f"text {url}: you may not read it{hidden} ({f'HTTP {status}' if status else why}): {credentials}"
        )
    if status in PASSING:
        return Unreachable(f"text {url}: the server cannot answer now (HTTP {status}); the same command goes on later")
    if status in (404, 410):
        return InputError(f"text {url}: no such file (HTTP {status}); check the address")
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return InputError(f"text {url}: the certificate of its server is not valid ({why}); check the address")
    unknown = any(isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN for cause in causes)
    if unknown and scheme in ("http", "https") and not was_reached:  # the user has typed the host
        return InputError(f"text {url}: no such host, or no network ({why}); check the address and the network")
    if kinds & BROKEN:
        return Unreachable(f"text {url}: the connection failed ({why}): check the network; the same command goes on")
    if "FileNotFoundError" in kinds:
        return InputError(f"text {url}: no such file or folder; check the address")
    return InputError(f"text {url}: it cannot be read ({why}); check the address, or copy it to a disk")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from, the first cause last."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status in an exception of aiohttp, botocore or huggingface_hub."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    status = getattr(error, "status", None) or getattr(response, "status_code", None)
    return status if isinstance(status, int) and status >= 400 else None

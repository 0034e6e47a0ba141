"""The address on which process 0 of a run listens: the one that was given, and no other where that is possible."""

import contextlib
import errno
import ipaddress
import os
import re
import socket
import time
from collections.abc import Iterator
from typing import NamedTuple

from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import DistributedConfig
from xlnet_jax.training.run.runtime import address_of

VARIABLE = "JAX_COORDINATOR_BIND_ADDRESS"
"""HOST:PORT in the environment that jax itself obeys"""
_SECONDS_TO_FREE = 10.0
"""time for a process that was killed just now to leave the port"""


_TAKEN = (errno.EADDRINUSE, errno.EACCES)


class Listening(NamedTuple):
    """Where the coordinator listens."""

    address: str | None
    """HOST:PORT; None where the environment says it to jax (JAX_COORDINATOR_BIND_ADDRESS)"""
    why: str = ""
    """why it listens on all addresses of this host; "" where it does not"""


def listening_of(place: DistributedConfig) -> Listening:
    """Return where the coordinator listens, in process 0. Raises InputError where the port is taken."""
    if bind := os.environ.get(VARIABLE):
        if not re.fullmatch(r"\S+:\d{1,5}", bind):
            raise InputError(f"{VARIABLE} {bind} in the environment must be HOST:PORT, as 0.0.0.0:8476")
        return Listening(None)
    host, port = address_of(place)
    found = sorted(_addresses(host), key=lambda ip: ip.version)
    loopback = [ip for ip in found if ip.is_loopback]
    for ip in loopback if _means_loopback(host) else [ip for ip in found if not ip.is_loopback]:
        if _is_free(place, str(ip), port):
            return Listening(_joined(str(ip), port))
    if not found:
        why = f"{host} is no name that this host knows"
    elif loopback:
        why = f"{host} is {loopback[0]} on this host itself, where no other host reaches it"
    else:
        why = f"{host} ({', '.join(map(str, found))}) is no address of this host itself"
    for every in ("::", "0.0.0.0"):
        if _is_free(place, every, port):
            break
    return Listening(_joined("::", port), f"{why}; {VARIABLE}=HOST:PORT names an address to listen on")


def _addresses(host: str) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    with contextlib.suppress(OSError, UnicodeError):
        for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            yield ipaddress.ip_address(str(address[0]).partition("%")[0])


def _means_loopback(host: str) -> bool:
    """Return True for localhost and 127.0.0.1: not for a host's own name, which Debian keeps as 127.0.1.1."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host in ("localhost", "ip6-localhost", "localhost.localdomain") or host.endswith(".localhost")


def _is_free(place: DistributedConfig, ip: str, port: int) -> bool:
    """Return False where this host does not have the address. Raises InputError where another program has the port."""
    until = time.monotonic() + _SECONDS_TO_FREE
    while True:
        try:
            with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
                # Binds, and never listens: a port that an earlier process has left may still be known to the kernel.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((ip, port))
            return True
        except OSError as error:
            if error.errno not in _TAKEN:
                return False
            if time.monotonic() > until or error.errno == errno.EACCES:
                raise InputError(
                    f"distributed.coordinator-address {place.coordinator_address}: process 0 cannot listen there "
                    f"({error.strerror}): give a port that is free on its host"
                ) from None
        time.sleep(0.2)


def _joined(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"

"""Process 0 listens on the address that it was given, or says why not."""

import errno
import socket

import pytest

from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import DistributedConfig
from xlnet_jax.training.run import listening
from xlnet_jax.training.run.listening import listening_of


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def names(monkeypatch):
    """Resolve these names to these addresses, in place of the network's."""
    monkeypatch.delenv(listening.VARIABLE, raising=False)
    known = {}
    real = socket.getaddrinfo

    def resolved(host, *rest, **more):
        if host not in known:
            return real(host, *rest, **more)
        if not known[host]:
            raise socket.gaierror(errno.ENOENT, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    return known


def of(address, port):
    return listening_of(DistributedConfig(f"{address}:{port}", 2, 0))


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_loopback_address_that_was_given_is_kept(names, port, name):
    assert of(name, port) == (f"127.0.0.1:{port}", "")


def test_a_name_of_this_host_means_its_address_in_the_network(names, port, monkeypatch):
    names["host-a"] = ["127.0.1.1", "10.0.0.1"]
    monkeypatch.setattr(listening, "_is_free", lambda place, ip, port: ip == "10.0.0.1")
    assert of("host-a", port) == (f"10.0.0.1:{port}", "")


@pytest.mark.parametrize(
    ("addresses", "why"),
    [
        (["127.0.1.1"], "host-a is 127.0.1.1 on this host itself, where no other host reaches it"),
        (["192.0.2.9"], "host-a (192.0.2.9) is no address of this host itself"),
        ([], "host-a is no name that this host knows"),
    ],
)
def test_where_it_cannot_be_that_address_it_is_all_and_the_reason_is_said(names, port, addresses, why):
    names["host-a"] = addresses
    address, said = of("host-a", port)
    assert address == f"[::]:{port}"
    assert said == f"{why}; JAX_COORDINATOR_BIND_ADDRESS=HOST:PORT names an address to listen on"


def test_jax_obeys_its_own_variable(port, monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", f"10.0.0.1:{port}")
    assert of("host-a", port) == (None, "")


def test_a_port_that_is_taken_is_refused(monkeypatch):
    monkeypatch.setattr(listening, "_SECONDS_TO_FREE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError) as refusal:
            of("localhost", port)
    assert str(refusal.value) == (
        f"distributed.coordinator-address localhost:{port}: process 0 cannot listen there (Address already in use): "
        "give a port that is free on its host"
    )


def test_a_port_that_an_earlier_process_leaves_is_waited_for(monkeypatch):
    other = socket.create_server(("127.0.0.1", 0))
    port = other.getsockname()[1]
    monkeypatch.setattr(listening.time, "sleep", lambda seconds: other.close())
    assert of("127.0.0.1", port).address == f"127.0.0.1:{port}"

"""A process learns its place among the hosts of a run from the environment or the platform."""

import os
import socket

import pytest

from xlnet_jax.errors import InputError
from xlnet_jax.training import machine

PLATFORMS = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "TPU_WORKER", "MEGASCALE_", "SLURM_")
PLACE = {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:8476", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "2"}
SLURM = {"JOB_ID": "7", "STEP_NODELIST": "node[3-4]", "NTASKS": "2", "PROCID": "1", "LOCALID": "0"}
SLURM = {f"SLURM_{name}": value for name, value in SLURM.items()}


@pytest.fixture
def environment(monkeypatch):
    """Set the variables of a platform, and remove those of all others."""

    def of(**values):
        for name in [name for name in os.environ if name.startswith(PLATFORMS)]:
            monkeypatch.delenv(name)
        for name, value in ({"GCE_METADATA_HOST": "127.0.0.1:9"} | values).items():  # nobody answers there
            monkeypatch.setenv(name, value)

    of()
    return of


def test_a_process_that_nothing_is_said_of_is_the_only_one(environment):
    assert machine.place_of(tpu=False) is None
    environment(SLURM_NTASKS="1", SLURM_STEP_NODELIST="node3")
    assert machine.place_of(tpu=False) is None
    environment(**PLACE | {"JAX_NUM_PROCESSES": "1"})
    assert machine.place_of(tpu=False) is None


def test_the_environment_names_a_place(environment):
    environment(**PLACE)
    assert machine.place_of(tpu=False) == machine.HostPlace("10.0.0.1:8476", 4, 2)


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        (
            {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:8476"},
            "the environment has JAX_COORDINATOR_ADDRESS, but not JAX_NUM_PROCESSES and JAX_PROCESS_ID",
        ),
        (PLACE | {"JAX_COORDINATOR_ADDRESS": "10.0.0.1"}, "ADDRESS 10.0.0.1 in the environment must be HOST:PORT, as"),
        (PLACE | {"JAX_NUM_PROCESSES": "two"}, "does not say which processes make this run: invalid literal"),
        (
            SLURM | {"SLURM_PROCID": "abc"},
            "the environment does not say which processes make this run: invalid literal",
        ),
    ],
)
def test_an_environment_that_is_incomplete_or_cannot_be_read_is_refused(environment, variables, line):
    environment(**variables)
    with pytest.raises(InputError, match=line):
        machine.place_of(tpu=False)


@pytest.mark.parametrize(
    ("host", "ip", "listens"),
    [
        ("localhost", "127.0.0.1", True),
        ("host-a", "127.0.1.1", False),  # as Debian keeps a host's own name: nobody else would reach it
        ("host-b", "192.0.2.1", False),  # of another machine: a router translates it
    ],
)
def test_process_0_listens_on_the_given_address_where_it_is_one_of_its_own(monkeypatch, host, ip, listens):
    monkeypatch.delenv("JAX_COORDINATOR_BIND_ADDRESS", raising=False)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: ip)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"{host}:{free.getsockname()[1]}"
    assert machine.bind_address(address) == (address if listens else None)
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", "0.0.0.0:8476")  # jax reads it
    assert machine.bind_address(address) is None


def test_a_port_that_another_program_has_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(InputError, match=f"{address}: process 0 cannot listen there .Address already in use"):
            machine.bind_address(address)


@pytest.mark.parametrize("nodes", ["node[3-4]", "node[3,7-9],other", "node3,other", "node3"])
def test_slurm_names_a_place(environment, nodes):
    environment(**SLURM | {"SLURM_STEP_NODELIST": nodes})
    assert machine.place_of(tpu=False) == machine.HostPlace("node3:61447", 2, 1)


@pytest.mark.parametrize(("slices", "count", "process"), [(("", "", ""), 2, 1), (("3", "2", "localhost:8080"), 6, 5)])
def test_a_tpu_names_a_place(environment, slices, count, process):
    names = ("MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_COORDINATOR_ADDRESS")
    values = dict(zip(names, slices, strict=True))
    environment(TPU_WORKER_HOSTNAMES="localhost,worker-1", **values)
    with pytest.raises(InputError, match=r"`tpu`: \d workers are named here, and nothing says which of them this is"):
        machine.place_of(tpu=True)
    environment(TPU_WORKER_HOSTNAMES="localhost,worker-1", TPU_WORKER_ID="1", **values)
    place = machine.place_of(tpu=True)
    assert place == ("localhost:8482", count, process)
    # In a run that asks for no TPU, as on its host's CPU, the platform's hosts are none of its own.
    assert machine.place_of(tpu=False) is None

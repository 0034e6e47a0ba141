"""Memory that devices have: a driver's number, a data sheet's, or the machine's with its containers and limits."""

from types import SimpleNamespace

import jax
import pytest

from xlnet_jax.training.fit import available

GIB = 2**30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that sets the memory of the machine, in GiB, and the files of its control groups."""

    def of(physical, swap=0, own="", allowed=None, **limits):
        meminfo, own_file = tmp_path / "meminfo", tmp_path / "cgroup"
        meminfo.write_text(f"MemTotal: 1 kB\nSwapTotal:       {swap * 2**20} kB\n")
        own_file.write_text(own)
        for file, limit in limits.items():
            path = tmp_path.joinpath("groups", *file.split("__")[:-1], file.split("__")[-1].replace("_dot_", "."))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{limit}\n")
        for name, value in {
            "_MEMINFO": meminfo, "_OWN_CGROUP": own_file, "_CGROUPS": tmp_path / "groups",
            "_physical": lambda: physical * GIB, "_allowed": lambda: allowed,
        }.items():  # fmt: skip
            monkeypatch.setattr(available, name, value)
        return available.of_machine() / GIB

    return of


def test_a_machine_without_limits_has_its_memory_and_swap_space(machine):
    assert machine(8, swap=2) == 10


def test_a_container_of_either_version_has_its_limit(machine):
    assert machine(8, own="0::/\n", memory_dot_max=3 * GIB) == 3
    assert machine(8, own="5:memory:/docker/x\n", memory__memory_dot_limit_in_bytes=2 * GIB) == 2


def test_the_tightest_of_nested_groups_counts(machine):
    groups = {"job__step__memory_dot_max": "max", "job__memory_dot_max": 4 * GIB}
    assert machine(8, own="0::/job/step\n", **groups) == 4


def test_a_process_has_no_more_than_ulimit_says(machine):
    assert machine(8, swap=2, allowed=GIB) == 1


def test_this_machine_divides_its_memory_among_its_devices():
    left = available.of_machine() - available.OF_PROCESS
    assert available.available_on(jax.devices()[0]) == left // jax.local_device_count()
    assert available.of_machine() > GIB


def test_the_process_itself_has_a_part_of_a_containers_memory(machine):
    def left(gib):
        machine(8, own="0::/\n", memory_dot_max=int(gib * GIB))
        return available.available_on(jax.devices()[0]) * jax.local_device_count() / GIB

    assert left(4) == 2.75
    assert left(1) == 0.125  # a tiny network still runs


def test_an_accelerator_has_what_its_driver_says_or_its_data_sheet():
    def on(platform, kind, limit=None):
        stats = {"bytes_limit": limit * GIB} if limit else None
        found = available.available_on(SimpleNamespace(platform=platform, device_kind=kind, memory_stats=lambda: stats))
        return found and found / GIB

    assert on("gpu", "NVIDIA H100 80GB HBM3", 60) == 60
    assert on("gpu", "NVIDIA H100 80GB HBM3") == 80
    assert on("gpu", "another") is None
    assert on("tpu", "TPU v5 lite", 15) == 16
    assert on("tpu", "TPU v3", 15) == 16
    assert on("tpu", "another", 15) == 15

"""The mesh: the sizes that it fits, and the part of each array that a device holds."""

import math

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.xlnet_jax.training.tiny import CONFIG, changed, program_of
from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import MeshConfig
from xlnet_jax.training import sharding


def on(mesh, **data):
    return changed(CONFIG, data=data, mesh=mesh)


def test_parameters_optimizer_memory_and_batch_are_divided_by_the_table():
    program = program_of(on(MeshConfig(fsdp=4, tensor=2)))
    state = program.init_state({})

    def parts(array):
        return math.prod(array.shape) // array.addressable_shards[0].data.size

    layers = state.params["backbone"]["layers"]
    adam = state.opt_state[1][0]
    for kernel in (layers["attention"]["q"], adam.mu["backbone"]["layers"]["attention"]["q"]):
        assert kernel.sharding.spec == PartitionSpec(None, "fsdp", "tensor", None)
        assert parts(kernel) == 8
    assert parts(layers["feed_forward"]["inner"]["kernel"]) == 8
    assert parts(state.params["backbone"]["word_embedding"]) == 8
    assert parts(state.mems_ZBMD) == 4
    rows = program.put({"input_ids": np.arange(16).reshape(8, 2)})["input_ids"]
    assert rows.addressable_shards[0].data.shape == (2, 2)
    np.testing.assert_array_equal(rows, np.arange(16).reshape(8, 2))


def test_a_vocabulary_that_the_mesh_does_not_divide_stays_whole():
    plan = program_of(changed(on(MeshConfig(fsdp=4, tensor=2)), {"vocab_size": 61})).plan
    assert plan.params["backbone"]["word_embedding"].sharding.spec == PartitionSpec(None, "fsdp")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (on(MeshConfig(fsdp=3)), r"mesh\.fsdp 3 x .* = 3 does not divide the 8 devices: 1, 2, 4 or 8 would"),
        (on(MeshConfig(context=3)), r"x mesh\.context 3 x .* = 3 does not divide the 8 devices: 1, 2, 4 or 8 would"),
        (on(MeshConfig(context=4)), r"mesh\.context 4 does not divide data\.num-predict 6: 1, 2, 3 or 6 would"),
        (on(MeshConfig(context=2), seq_len=17), r"mesh\.context 2 does not divide data\.seq-len 17: 1 or 17 would"),
        (on(MeshConfig(tensor=4)), r"mesh\.tensor 4 does not divide model\.num-heads 2: 1 or 2 would"),
        (
            changed(on(MeshConfig(context=2)), {"mem_len": 7}),
            r"mesh\.context 2 does not divide model\.mem-len 7: 1 or 7 would",
        ),
        (on(MeshConfig(), batch_size=12), r"size 12 cannot be divided over the 8 devices along the batch: 8 or 16"),
        (
            changed(CONFIG, optimizer={"accumulate": 3}),
            r"the 8 devices along the batch x optimizer.accumulate 3: 24 could",
        ),
    ],
)
def test_a_mesh_that_does_not_fit_says_which_would(config, said):
    with pytest.raises(InputError, match=said):
        sharding.make_mesh(config)


class OfSlice:
    """Device of a platform with several slices."""

    def __init__(self, number, platform):
        self.id, self.slice_index, self.platform = number, number // 4, platform


def test_slices_that_the_mesh_does_not_name_are_refused():
    with pytest.raises(InputError, match=r"mesh\.dcn-data 1: 2 slices are here, give their number"):
        sharding.make_mesh(CONFIG, [OfSlice(i, "tpu") for i in range(8)])


@pytest.mark.parametrize("dcn_data", [1, 2])
def test_hosts_with_gpus_need_not_be_named_and_share_no_parameters(dcn_data):
    """To jax, each host is a slice."""
    mesh = sharding.make_mesh(on(MeshConfig(dcn_data=dcn_data, fsdp=4)), [OfSlice(i, "gpu") for i in range(8)])
    assert [[device.id for device in row.flat] for row in mesh.devices] == [[0, 1, 2, 3], [4, 5, 6, 7]]


class OfHost:
    """The batch sharding of a mesh, seen by a host whose devices lie in a square of a torus."""

    def addressable_devices_indices_map(self, shape):
        return {i: (slice(i, i + 1),) for i in (6, 0, 7, 1)}


def test_a_process_builds_the_rows_of_its_devices(monkeypatch):
    assert list(sharding.process_rows(sharding.make_mesh(CONFIG), 8)) == list(range(8))
    monkeypatch.setattr(sharding, "over_batch", lambda mesh: OfHost())
    assert list(sharding.process_rows(None, 8)) == [0, 1, 6, 7]


def test_arrays_of_the_host_are_divided_as_asked_without_word_from_other_processes(monkeypatch):
    monkeypatch.setattr(jax, "device_put", None)  # it sends them around
    mesh = sharding.make_mesh(on(MeshConfig(fsdp=4, tensor=2)))
    whole = {"a": np.arange(16.0).reshape(8, 2), "b": np.array(7, np.int32)}
    asked = {"a": NamedSharding(mesh, PartitionSpec("fsdp", "tensor")), "b": sharding.replicated(mesh)}
    found = sharding.from_host(whole, asked)
    assert found["a"].addressable_shards[0].data.shape == (2, 1)
    jax.tree.map(np.testing.assert_array_equal, found, whole)

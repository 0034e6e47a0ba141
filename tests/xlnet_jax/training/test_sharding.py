"""The mesh: the sizes that it fits, and the part of each array that a device holds."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from jax.sharding import PartitionSpec

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
    # A vocabulary that the mesh does not divide stays whole.
    plan = program_of(changed(on(MeshConfig(fsdp=4, tensor=2)), {"vocab_size": 61})).plan
    assert plan.params["backbone"]["word_embedding"].sharding.spec == PartitionSpec(None, "fsdp")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (on(MeshConfig(context=3)), r"x `mesh\.context` 3 x .* = 3 does not divide the 8 devices: 1, 2, 4 or 8 would"),
        (on(MeshConfig(context=4)), r"`mesh\.context` 4 does not divide `data\.num_predict` 6: 1, 2, 3 or 6 would"),
        (on(MeshConfig(tensor=4)), r"`mesh\.tensor` 4 does not divide `model\.num_heads` 2: 1 or 2 would"),
        (on(MeshConfig(), batch_size=12), r"size` 12 cannot be divided over the 8 devices along the batch: 8 or 16"),
        (changed(CONFIG, optimizer={"accumulate": 3}), r"along the batch x `optimizer.accumulate` 3: 24 could"),
    ],
)
def test_a_mesh_that_does_not_fit_says_which_would(config, said):
    with pytest.raises(InputError, match=said):
        sharding.make_mesh(config)


@dataclass(frozen=True)
class Device:
    id: int
    slice_index: int
    platform: str


def of_two_slices(platform):
    return [Device(i, i // 4, platform) for i in range(8)]


def test_slices_that_the_mesh_does_not_name_are_refused():
    with pytest.raises(InputError, match=r"`mesh\.dcn_data` 1: there are 2 slices: give that number"):
        sharding.make_mesh(CONFIG, of_two_slices("tpu"))


@pytest.mark.parametrize("dcn_data", [1, 2])
def test_hosts_with_gpus_need_not_be_named_and_share_no_parameters(dcn_data):
    """To jax, each host is a slice."""
    mesh = sharding.make_mesh(on(MeshConfig(dcn_data=dcn_data, fsdp=4)), of_two_slices("gpu"))
    assert [[device.id for device in row.flat] for row in mesh.devices] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_process_builds_the_rows_of_its_devices_which_may_lie_in_a_square_of_a_torus(monkeypatch):
    assert list(sharding.process_rows(sharding.make_mesh(CONFIG), 8)) == list(range(8))
    of_host = {i: (slice(i, i + 1),) for i in (6, 0, 7, 1)}
    over_batch = SimpleNamespace(addressable_devices_indices_map=lambda _: of_host)
    monkeypatch.setattr(sharding, "over_batch", lambda _: over_batch)
    assert list(sharding.process_rows(None, 8)) == [0, 1, 6, 7]

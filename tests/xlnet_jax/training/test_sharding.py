"""The mesh: the sizes that it fits, the bytes of each device, and equal numbers for every shape."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.xlnet_jax.training.test_step import train, trained
from tests.xlnet_jax.training.tiny import CONFIG
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.language_model import LanguageModel
from xlnet_jax.settings.config import MeshConfig
from xlnet_jax.training import sharding
from xlnet_jax.training.optimizer import make_optimizer
from xlnet_jax.training.state import init_state, plan_state

MESHES = [MeshConfig(fsdp=4, tensor=2), MeshConfig(dcn_data=2, fsdp=2, tensor=2)]


def on(mesh, config=CONFIG, **data):
    return dataclasses.replace(config, mesh=mesh, data=dataclasses.replace(config.data, **data))


@pytest.fixture(scope="module")
def on_one_device():
    return train(CONFIG, devices=1, steps=20)[0]


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: f"{m.dcn_data}x{m.fsdp}x{m.tensor}")
def test_eight_devices_in_any_shape_give_the_losses_of_one(on_one_device, mesh):
    """Dropout included: its masks do not depend on how the batch is laid out."""
    np.testing.assert_allclose(train(on(mesh), steps=20)[0], on_one_device, rtol=0, atol=1e-5)


def test_micro_batches_give_the_numbers_of_the_whole_batch():
    """On one device; whole batches, on eight."""
    in_parts = dataclasses.replace(CONFIG, optimizer=dataclasses.replace(CONFIG.optimizer, accumulate=2))
    whole, parts = trained(CONFIG), train(in_parts, devices=1)
    np.testing.assert_allclose(parts[0], whole[0], rtol=0, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-4), parts[1], whole[1])


def test_parameters_optimizer_memory_and_batch_are_divided_by_the_table():
    config = on(MeshConfig(fsdp=4, tensor=2))
    mesh = sharding.make_mesh(config)
    objective, tx = LanguageModel(config), make_optimizer(config.optimizer, config.steps)
    state = init_state(config.seed, objective, tx, plan_state(objective, tx, mesh))

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
    rows = sharding.batch_to_mesh(mesh, 8)({"input_ids": np.arange(16).reshape(8, 2)})["input_ids"]
    assert rows.addressable_shards[0].data.shape == (2, 2)
    np.testing.assert_array_equal(rows, np.arange(16).reshape(8, 2))


def test_a_vocabulary_that_the_mesh_does_not_divide_stays_whole():
    config = on(MeshConfig(fsdp=4, tensor=2))
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=61))
    objective, tx = LanguageModel(config), make_optimizer(config.optimizer, config.steps)
    plan = plan_state(objective, tx, sharding.make_mesh(config))
    assert plan.params["backbone"]["word_embedding"].sharding.spec == PartitionSpec(None, "fsdp")


@pytest.mark.parametrize(
    ("mesh", "data", "said"),
    [
        (MeshConfig(fsdp=3), {}, r"mesh\.fsdp 3 x .* = 3 does not divide the 8 devices: 1, 2, 4 or 8 would"),
        (MeshConfig(context=3), {}, r"x mesh\.context 3 x .* = 3 does not divide the 8 devices: 1, 2, 4 or 8 would"),
        (MeshConfig(context=4), {}, r"mesh\.context 4 does not divide data\.num-predict 6: 1, 2, 3 or 6 would"),
        (MeshConfig(context=2), {"seq_len": 17}, r"mesh\.context 2 does not divide data\.seq-len 17: 1 or 17 would"),
        (MeshConfig(tensor=4), {}, r"mesh\.tensor 4 does not divide model\.num-heads 2: 1 or 2 would"),
        (
            MeshConfig(),
            {"batch_size": 12},
            r"data\.batch-size 12 cannot be divided over the 8 devices along the batch: 8 or 16 could",
        ),
    ],
)
def test_a_mesh_that_does_not_fit_says_which_would(mesh, data, said):
    with pytest.raises(InputError, match=said):
        sharding.make_mesh(on(mesh, **data))


def test_a_memory_that_the_mesh_does_not_divide_is_refused():
    config = on(MeshConfig(context=2), dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, mem_len=7)))
    with pytest.raises(InputError, match=r"mesh\.context 2 does not divide model\.mem-len 7: 1 or 7 would"):
        sharding.make_mesh(config)


def test_micro_batches_that_do_not_divide_the_batch_say_which_would():
    config = dataclasses.replace(CONFIG, optimizer=dataclasses.replace(CONFIG.optimizer, accumulate=3))
    with pytest.raises(InputError, match=r"the 8 devices along the batch x optimizer.accumulate 3: 24 could"):
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

"""Windows divided over devices (mesh.context): the numbers of one device, and no exchange of hidden states."""

import dataclasses
import functools
import re

import jax
import numpy as np
import optax
import pytest

from tests.xlnet_jax.kernels.running import running_kernels
from tests.xlnet_jax.tiny_text import batches_of
from tests.xlnet_jax.training.test_dropout import COLLECTIVE, Setting
from tests.xlnet_jax.training.test_golden import RUNS
from tests.xlnet_jax.training.tiny import CONFIG, changed, program_of, steps_of
from xlnet_jax.objectives.language_model import objective_of
from xlnet_jax.planning.estimate import abstract_step
from xlnet_jax.settings.config import MeshConfig, ReplacedConfig
from xlnet_jax.training import sharding
from xlnet_jax.training.fit import compile_step
from xlnet_jax.training.step import Program

STEPS = 3


def with_dropout(config):
    return changed(config, {"dropout": 0.1, "attention_dropout": 0.1})


PLM = changed(CONFIG, data={"num_predict": 8, "windows_per_block": 4})
CASES = {
    "plm": PLM,
    "uni": changed(PLM, {"attn_type": "uni", "same_length": True, "mem_len": 4, "untie_r": False, "remat": "full"}),
    "dense": changed(PLM, {"num_segments": 0, "norm": "pre"}, {"emit": "dense", "num_predict": None}),
    **{name: with_dropout(RUNS[name]) for name in ("plm, packed", "dae + transformer-xl")},
    # With a weight of 50, the step below would be too large to compare what follows it.
    "electra": dataclasses.replace(with_dropout(RUNS["electra"]), rtd=ReplacedConfig(detection_weight=1.0)),
}


@functools.cache
def first_state(config):
    """Return the state that one device draws, as arrays of the host. The golden runs draw theirs on a mesh."""
    return jax.device_get(program_of(config, 1, tx=optax.sgd(0.5)).init_state({}))


def trained(config, setting):
    """Return the losses of some steps of gradient descent, and the parameters and the memory after them."""
    program = program_of(setting.of(config), setting.devices, tx=optax.sgd(0.5))
    state = sharding.from_host(first_state(config), sharding.shardings_of(program.plan))
    *_, (state, _) = found = list(steps_of(program, map(batches_of(config).batch_at, range(STEPS)), state))
    return [metrics["loss"] for _, metrics in found], jax.device_get(state.params), jax.device_get(state.mems_ZBMD)


@functools.cache
def on_one_device(name):
    return trained(CASES[name], Setting())


def assert_equal(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), found, expected)


OVER_TWO, OVER_FOUR = MeshConfig(context=2, fsdp=2, tensor=2), MeshConfig(context=4, tensor=2)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("plm", Setting(8, OVER_TWO)),
        ("uni", Setting(8, OVER_FOUR)),
        ("dense", Setting(8, OVER_FOUR)),
        ("plm, packed", Setting(4, MeshConfig(context=2))),
        ("dae + transformer-xl", Setting(8, OVER_TWO, accumulate=2)),
        ("electra", Setting(8, OVER_TWO)),
    ],
    ids=str,
)
def test_devices_that_divide_a_window_train_as_one_device(name, setting):
    """Dropout on. Gradients are compared by the parameters that plain descent makes of them."""
    losses, _, mems_ZBMD = expected = on_one_device(name)
    assert mems_ZBMD.any() == bool(CASES[name].model.mem_len)
    assert len(set(losses)) == STEPS
    assert_equal(trained(CASES[name], setting), expected)


def test_the_fused_kernel_computes_the_rows_of_each_device():
    fused = changed(PLM, {"attention": "fused"})
    with running_kernels():
        assert_equal(trained(fused, Setting(8, OVER_FOUR)), on_one_device("plm"))


def test_parameters_and_memory_are_divided_too():
    config = Setting(8, MeshConfig(fsdp=2, context=4)).of(PLM)
    plan = Program.of(config, objective_of(config)).plan
    query, mems = plan.params["backbone"]["layers"]["attention"]["q"], plan.mems_ZBMD
    assert query.sharding.shard_shape(query.shape) == (2, 16 // 8, 2, 8)
    assert mems.sharding.shard_shape(mems.shape) == (2, 8 // 2, 8 // 4, 16)
    narrow = changed(config, {"d_model": 20})  # which both together do not divide
    plan = Program.of(narrow, objective_of(narrow)).plan
    assert plan.params["backbone"]["word_embedding"].sharding.spec == jax.P(None, "fsdp")


def test_hidden_states_stay_where_they_are():
    """Layers gather keys and values, and add up the gradients of these and of the position keys; new memory moves to
    the device that holds it. Nothing else that grows with a window moves. No parameter is longer than 60."""
    lengths = {"seq_len": 800, "reuse_len": 400, "perm_size": 400, "num_predict": 280}
    config = changed(PLM, {"mem_len": 400, "remat": "full"}, {**lengths, "batch_size": 2})
    config = Setting(8, MeshConfig(fsdp=2, context=4)).of(config)
    moved = set()
    for line in compile_step(*abstract_step(config, jax.devices()))[1].as_text().splitlines():
        if found := COLLECTIVE.search(line):
            arrays = re.findall(r"f32\[([\d,]+)\]", line[: found.start()])
            sizes = [tuple(int(size) for size in array.split(",")) for array in arrays]
            moved |= {(found[1], shape) for shape in sizes if max(shape) > 60}
    assert moved == {
        ("all-gather", (1, 2, 1200, 8)),
        ("reduce-scatter", (1, 2, 300, 8)),
        ("all-reduce", (2, 2, 2000, 8)),
        ("collective-permute", (1, 100, 16)),
        ("collective-permute", (1, 200, 16)),
    }

"""Dropout masks depend on the place of an example in the global batch: not on devices, nor on micro-batches."""

import dataclasses
import re
from collections import Counter
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.xlnet_jax.kernels.dropout_sites import RATE, Sites
from tests.xlnet_jax.tiny_text import batches_of
from tests.xlnet_jax.training.test_golden import RUNS
from tests.xlnet_jax.training.tiny import CONFIG, NO_DROPOUT, changed, program_of, steps_of
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.objectives.language_model import Scored, apply, objective_of
from xlnet_jax.planning.estimate import abstract_step
from xlnet_jax.settings.config import MeshConfig
from xlnet_jax.training.fit import compile_step
from xlnet_jax.training.optimizer import make_optimizer

STEPS = 6
TWO_WAYS = MeshConfig(fsdp=4, tensor=2)
COLLECTIVE = re.compile(r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)\(")


class Setting(NamedTuple):
    """Devices, mesh and number of micro-batches of a run."""

    devices: int = 1
    mesh: MeshConfig = MeshConfig()
    accumulate: int = 1

    def of(self, config):
        """Return the settings of a run so divided."""
        return changed(config, optimizer={"accumulate": self.accumulate}, mesh=self.mesh)


def train(config, objective, tx, batches, setting):
    """Return the loss of each step of a run, one for each batch, and the parameters after it."""
    program = program_of(setting.of(config), setting.devices, objective, tx)
    return [(metrics["loss"], jax.device_get(state.params)) for state, metrics in steps_of(program, batches)]


# ---- bits ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class MasksAsGradients:
    """Objective whose parameters have an element for every element of the masks of a batch, and whose gradient is 1
    where that element is kept. Rows know their place by what the batch says, not by what dropout is told."""

    batch_size: int
    texts: int

    sites = Sites(rows=6, width=8)

    @property
    def mems(self):
        return jax.ShapeDtypeStruct((0, self.batch_size, 0, 0), jnp.float32)

    def init(self, key):
        inputs = text_inputs(jnp.zeros((self.batch_size * self.texts, 2), jnp.int32))
        masks = self.sites.apply({}, inputs, train=True, rngs={"dropout": key})
        last = {"embedded": (None, "mlp"), "hidden": (None, None, "mlp"), "attention": (None, "heads", None, None)}
        return {
            site: nn.LogicallyPartitioned(jnp.zeros(mask.shape), (None, *last[site.split()[0]]))
            for site, mask in masks.items()
        }

    def cap_memory(self, batch, steps):
        return batch

    def score(self, params: Any, batch, mems_ZBMD, dropout):
        rows_B = (batch["row"][:, None] * self.texts + jnp.arange(self.texts)[None]).reshape(-1)
        masks = apply(self.sites, {}, dropout, text_inputs(jnp.zeros((len(rows_B), 2), jnp.int32)))
        kept = sum((params[site][rows_B] * mask).sum() for site, mask in masks.items())
        return Scored(kept, batch["target_weights"].sum(), mems_ZBMD, {}, {})


def masks_of(setting, texts=1):
    """Return the masks of the second step, by site: bool [examples x texts, …]."""
    batch_size = 32
    config = changed(CONFIG, data={"batch_size": batch_size})
    batch = {"row": np.arange(batch_size, dtype=np.int32), "target_weights": np.ones((batch_size, 1), np.float32)}
    objective = MasksAsGradients(batch_size, texts)
    (_, first), (_, second) = train(config, objective, optax.sgd(1.0), [batch] * 2, setting)
    return {site: second[site] != first[site] for site in first}


@pytest.fixture(scope="module")
def on_one_device():
    return {texts: masks_of(Setting(), texts) for texts in (1, 3)}


@pytest.mark.parametrize(
    "setting",
    [
        Setting(8, TWO_WAYS),
        Setting(1, accumulate=4),
        Setting(8, MeshConfig(dcn_data=2, fsdp=2), 4),
    ],
    ids=str,
)
def test_masks_have_the_same_bits_on_every_mesh_and_in_micro_batches(on_one_device, setting):
    found = masks_of(setting)
    for site, mask in on_one_device[1].items():
        np.testing.assert_array_equal(found[site], mask)
        assert abs(1 - mask.mean() - RATE) < 5 * np.sqrt(RATE * (1 - RATE) / mask.size)


def test_texts_of_an_example_have_masks_of_their_own_in_micro_batches_too(on_one_device):
    found = masks_of(Setting(8, TWO_WAYS, 2), texts=3)
    for site, mask in on_one_device[3].items():
        np.testing.assert_array_equal(found[site], mask)
        assert len(np.unique(mask.reshape(len(mask), -1), axis=0)) == len(mask)


# ---- training --------------------------------------------------------------------------------------------------------


def pretraining(name):
    """Return the settings, objective and batches of a run of the golden tables, with dropout."""
    config = changed(RUNS[name], {"dropout": 0.1, "attention_dropout": 0.1})
    source = batches_of(config)
    return config, objective_of(config), [source.batch_at(t) for t in range(STEPS)]


@pytest.mark.parametrize("name", ["plm, ablated", "electra"])
def test_devices_and_micro_batches_train_as_one_device_with_whole_batches(name):
    """One for each objective class that hands dropout on; the golden runs train all objectives so, without dropout."""
    config, objective, batches = pretraining(name)
    tx = make_optimizer(config.optimizer, config.steps)
    settings = Setting(), Setting(4, MeshConfig(fsdp=2, tensor=2), accumulate=4)
    whole, parts = (train(config, objective, tx, batches, setting) for setting in settings)
    np.testing.assert_allclose([loss for loss, _ in parts], [loss for loss, _ in whole], rtol=0, atol=1e-5)


# ---- cost ------------------------------------------------------------------------------------------------------------


def test_dropout_moves_nothing_between_devices():
    """The feed-forward width and the heads are divided over tensor, the rows over fsdp and into micro-batches. The two
    heads, which share words, are on different devices."""

    def collectives(config):
        config = Setting(8, TWO_WAYS, accumulate=2).of(config)
        return Counter(COLLECTIVE.findall(compile_step(*abstract_step(config, jax.devices()))[0].as_text()))

    without = collectives(NO_DROPOUT)
    assert without["all-reduce"] > 0
    assert collectives(CONFIG) == without

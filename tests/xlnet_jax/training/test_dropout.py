"""Dropout masks depend on the place of an example in the global batch: not on devices, nor on micro-batches."""

import dataclasses
import functools
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
from tests.xlnet_jax.training.tiny import CONFIG, NO_DROPOUT, changed, program_of, steps_of
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.objectives.language_model import Scored, apply
from xlnet_jax.planning.estimate import abstract_step
from xlnet_jax.settings.config import MeshConfig
from xlnet_jax.training.fit import compile_step

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

    frozen = ()

    def cap_memory(self, batch, steps):
        return batch

    def score(self, params: Any, batch, mems_ZBMD, dropout):
        rows_B = (batch["row"][:, None] * self.texts + jnp.arange(self.texts)[None]).reshape(-1)
        masks = apply(self.sites, {}, dropout, text_inputs(jnp.zeros((len(rows_B), 2), jnp.int32)))
        kept = sum((params[site][rows_B] * mask).sum() for site, mask in masks.items())
        return Scored(kept, batch["target_weights"].sum(), mems_ZBMD, {}, {})


@functools.cache
def masks_of(setting, texts):
    """Return the masks of the second step, by site: bool [examples x texts, …]."""
    batch_size = 32
    config = changed(CONFIG, data={"batch_size": batch_size})
    batch = {"row": np.arange(batch_size, dtype=np.int32), "target_weights": np.ones((batch_size, 1), np.float32)}
    program = program_of(setting.of(config), setting.devices, MasksAsGradients(batch_size, texts), optax.sgd(1.0))
    first, second = (jax.device_get(state.params) for state, _ in steps_of(program, [batch] * 2))
    return {site: second[site] != first[site] for site in first}


@pytest.mark.parametrize(
    ("setting", "texts"),
    [(Setting(8, TWO_WAYS), 1), (Setting(8, MeshConfig(dcn_data=2, fsdp=2), 4), 1), (Setting(8, TWO_WAYS, 2), 3)],
    ids=str,
)
def test_each_text_has_a_mask_of_its_own_with_the_same_bits_on_every_mesh_and_in_micro_batches(setting, texts):
    alone = masks_of(Setting(), texts)
    jax.tree.map(np.testing.assert_array_equal, masks_of(setting, texts), alone)
    for mask in alone.values():
        assert abs(1 - mask.mean() - RATE) < 5 * np.sqrt(RATE * (1 - RATE) / mask.size)
        assert len(np.unique(mask.reshape(len(mask), -1), axis=0)) == len(mask)


def test_dropout_moves_nothing_between_devices():
    """The feed-forward width and the heads are divided over tensor, the rows over fsdp and into micro-batches. The two
    heads, which share words, are on different devices."""

    def collectives(config):
        config = Setting(8, TWO_WAYS, accumulate=2).of(config)
        return Counter(COLLECTIVE.findall(compile_step(*abstract_step(config, jax.devices()))[1].as_text()))

    without = collectives(NO_DROPOUT)
    assert without["all-reduce"] > 0
    assert collectives(CONFIG) == without

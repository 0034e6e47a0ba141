"""The losses of a few updates of each objective: a table that only a change which is meant to alter what is learned may
update, and says so."""

from collections import defaultdict
from dataclasses import replace

import jax
import numpy as np
import pytest

from tests.xlnet_jax.tiny_text import batches_of
from tests.xlnet_jax.training.tiny import NO_DROPOUT
from xlnet_jax.config import MeshConfig
from xlnet_jax.objectives.language_model import LanguageModel
from xlnet_jax.presets import with_objective
from xlnet_jax.rules import validate
from xlnet_jax.training import sharding
from xlnet_jax.training.optimizer import make_optimizer
from xlnet_jax.training.state import init_state, plan_state
from xlnet_jax.training.step import make_train_step

STEPS = 4


def with_settings(objective, **data):
    """The tiny run by this objective; mem_len: of the network."""
    config = with_objective(replace(NO_DROPOUT, data=replace(NO_DROPOUT.data, windows_per_block=4)), objective)
    mem_len = data.pop("mem_len", config.model.mem_len)
    config = replace(config, model=replace(config.model, mem_len=mem_len), data=replace(config.data, **data))
    validate(config)
    return config


RUNS = {
    # All of the paper's ablations at once (Table 6): no memory, no spans, one direction, next sentences, K = 7.
    "plm, ablated": with_settings(
        "plm", mem_len=0, targets="pieces", bidirectional=False, pair_loss="next", num_predict=16 // 7
    ),
    "clm": with_settings("clm"),
}
GOLDEN = {
    "plm, ablated": {"loss": [], "pair_loss": []},
    "clm": {"loss": []},
}


def losses_of(config, devices):
    """What the first updates measure, by its name."""
    mesh = sharding.make_mesh(config, jax.devices()[:devices])
    objective, tx = LanguageModel(config), make_optimizer(config.optimizer, config.steps)
    plan = plan_state(objective, tx, mesh)
    state = init_state(config.seed, objective, tx, plan)
    step = make_train_step(config, objective, tx, plan, mesh)
    put = sharding.batch_to_mesh(mesh, config.data.batch_size)
    source, found = batches_of(config), defaultdict(list)
    for t in range(STEPS):
        batch = put(source.batch_at(t))
        with jax.transfer_guard("disallow"):
            state, metrics = step(state, batch)
        for name in metrics.keys() & {"loss", "pair_loss", "pair_accuracy"}:
            found[name].append(float(metrics[name]))
    return found


@pytest.mark.parametrize("name", RUNS)
def test_losses_of_a_tiny_run(name):
    """The table is of one device; a mesh of several has the same losses."""
    config = replace(RUNS[name], mesh=MeshConfig(fsdp=2, tensor=2))
    found = losses_of(config, devices=8)
    assert found.keys() - {"pair_accuracy"} == GOLDEN[name].keys()
    for of, losses in GOLDEN[name].items():
        np.testing.assert_allclose(found[of], losses, rtol=0, atol=1e-4)

"""Losses of a few steps of each objective: a table that only a change which is meant to alter what is learned may
update, and says so."""

import numpy as np
import pytest

from tests.xlnet_jax.tiny_text import batches_of
from tests.xlnet_jax.training.tiny import NO_DROPOUT, changed, program_of, steps_of
from xlnet_jax.objectives.presets import with_objective
from xlnet_jax.objectives.registry import validate
from xlnet_jax.settings.config import MeshConfig

STEPS = 4
MEASURED = {"loss", "pair_loss", "pair_accuracy", "detection_loss", "detection_accuracy", "replaced_share"}


def with_settings(objective, network=None, **data):
    """The tiny run by this objective."""
    config = changed(with_objective(changed(NO_DROPOUT, data={"windows_per_block": 4}), objective), network, data)
    validate(config)
    return config


RUNS = {
    # All of the paper's ablations at once (Table 6): no memory, no spans, one direction, next sentences, K = 7.
    "plm, ablated": with_settings(
        "plm", {"mem_len": 0}, targets="pieces", bidirectional=False, pair_loss="next", num_predict=16 // 7
    ),
    "plm, packed": with_settings("plm", window="sentences", pack=True),
    "bert": with_settings(
        "mlm", {"positions": "learned", "max_positions": 16}, masking="static", pair_loss="order", num_predict=4
    ),
    "dae + transformer-xl": with_settings("mlm", {"mem_len": 8}, reuse_len=8, targets="words", num_predict=4),
    "clm": with_settings("clm"),
    "clm, packed": with_settings("clm", pack=True),
    "prefix": with_settings("prefix"),
    "plm in groups": with_settings("plm", group_sizes=(1, 2, 3)),
    "mdlm": with_settings("mdlm"),
    "mdlm, weights of the bound": with_settings("mdlm", bound_weights=True),
    "electra": with_settings("rtd", {"embedding_width": 6, "max_positions": 16}, num_predict=4),
}


GOLDEN = {
    "plm, ablated": {
        "loss": [4.629322, 4.291278, 4.353777, 4.558066],
        "pair_loss": [0.766354, 0.586488, 0.818222, 0.654993],
        "pair_accuracy": [0.5, 0.75, 0.375, 0.625],
    },
    "bert": {
        "loss": [4.235694, 4.239014, 4.211047, 4.221787],
        "pair_loss": [0.641669, 0.67019, 0.884391, 0.702289],
        "pair_accuracy": [0.625, 0.625, 0.25, 0.5],
    },
    "dae + transformer-xl": {"loss": [4.403904, 4.49254, 4.052999, 4.089384]},
    "clm": {"loss": [4.457089, 4.47076, 4.414619, 4.461608]},
    "plm, packed": {"loss": [4.499821, 4.396455, 4.352299, 4.449175]},
    "clm, packed": {"loss": [4.478037, 4.439867, 4.394741, 4.465668]},
    "prefix": {"loss": [4.412253, 4.542448, 4.472554, 4.484377]},
    "plm in groups": {"loss": [4.483037, 4.398162, 4.442712, 4.513845]},
    "mdlm": {"loss": [4.437383, 4.392781, 4.364487, 4.298759]},
    "mdlm, weights of the bound": {"loss": [4.47938, 4.447996, 4.338897, 4.407683]},
    "electra": {
        "loss": [4.140628, 4.094096, 4.309367, 4.343782],
        "detection_loss": [0.632022, 0.653455, 0.624915, 0.582931],
        "detection_accuracy": [0.75, 0.710938, 0.734375, 0.75],
        "replaced_share": [0.242188, 0.242188, 0.242188, 0.25],
    },
}


@pytest.mark.parametrize("name", RUNS)
def test_losses_of_a_tiny_run(name):
    """Train on eight devices and in micro-batches: the table was made on one device with whole batches."""
    config = changed(RUNS[name], optimizer={"accumulate": 2}, mesh=MeshConfig(fsdp=2, tensor=2))
    source = batches_of(config)
    found = [metrics for _, metrics in steps_of(program_of(config), map(source.batch_at, range(STEPS)))]
    assert found[0].keys() & MEASURED == GOLDEN[name].keys()
    for of, numbers in GOLDEN[name].items():
        np.testing.assert_allclose([metrics[of] for metrics in found], numbers, rtol=0, atol=1e-4)

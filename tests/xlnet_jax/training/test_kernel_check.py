"""The comparison of the fused kernel with plain attention before a run: the call that it makes, and what it finds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.xlnet_jax.kernels.running import running_kernels
from tests.xlnet_jax.random_models import SMALL
from tests.xlnet_jax.tiny_text import batches_of
from tests.xlnet_jax.training.test_golden import RUNS
from tests.xlnet_jax.training.tiny import CONFIG, changed
from xlnet_jax.kernels import implementations as table
from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import numbers_of
from xlnet_jax.kernels.tpu.tiles import GENERATIONS
from xlnet_jax.objectives.language_model import inputs_of, objective_of
from xlnet_jax.training import attention, sharding
from xlnet_jax.training.attention import (
    TOLERANCE,
    call_of,
    compute_both,
    difference,
    largest_shares,
    last_windows,
    two_texts,
)


def windows_of(config):
    return inputs_of(last_windows(config, batches_of(config)), config)[0]


PLM = changed(CONFIG, {"num_layers": 1}, {"windows_per_block": 4})
UNI = {"attn_type": "uni", "same_length": True, "mem_len": 4, "untie_r": False}
CALLS = {
    "plm": PLM,
    "same length": changed(PLM, UNI, {"num_predict": None}),
    **{name: RUNS[name] for name in ("plm, packed", "dae + transformer-xl", "bert", "electra")},
}


@pytest.mark.parametrize("name", CALLS)
def test_the_compared_call_is_that_of_the_runs_layers(name, monkeypatch):
    config = changed(CALLS[name], {"attention": "fused", "num_layers": 2}, {"batch_size": 2})
    batch, objective, made = last_windows(config, batches_of(config)), objective_of(config), []

    def record(inputs):
        jax.debug.callback(made.append, inputs)
        return plain.attention_BNTH(inputs)

    monkeypatch.setitem(table.IMPLEMENTATIONS, "fused", record)
    ours = call_of(inputs_of(batch, config)[0], config.model)
    mems = jnp.zeros(objective.mems.shape, objective.mems.dtype)

    def score(batch):
        return objective.score(sharding.unboxed(objective.init(jax.random.key(0))), batch, mems, None)

    jax.block_until_ready(jax.jit(score)(batch))
    jax.effects_barrier()
    theirs = made[-2]  # the last layer may have only query rows; of electra's two networks, the one that is kept

    def assert_same_form(a, b):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)

    jax.tree.map(assert_same_form, numbers_of(ours), numbers_of(theirs))
    jax.tree.map(np.testing.assert_array_equal, ours.relations, theirs.relations)


# ---- right kernels ---------------------------------------------------------------------------------------------------

LONGER = changed(
    PLM,
    {"mem_len": 40, "d_head": 64, "num_heads": 2},
    {"seq_len": 144, "reuse_len": 72, "perm_size": 72, "num_predict": 24},
)
RIGHT = {
    "plm": LONGER,
    "plm, packed": changed(LONGER, data={"window": "sentences", "pack": True}),
    "clm": changed(
        RUNS["clm"], {"mem_len": 130, "d_head": 32, "attention_dropout": 0.1}, {"seq_len": 144, "reuse_len": 144}
    ),
    "bert": changed(RUNS["bert"], {"max_positions": 70, "d_head": 64}, {"seq_len": 70}),
}


@pytest.mark.parametrize(
    ("name", "dtype", "device"),
    [
        ("plm", "float32", "gpu"),
        ("plm, packed", "bfloat16", "gpu"),
        ("clm", "bfloat16", "v5e"),
        ("bert", "bfloat16", "gpu"),
    ],
)
def test_a_right_kernel_differs_by_less_than_half_of_what_is_allowed(name, dtype, device):
    config = changed(RIGHT[name], {"dtype": dtype})
    with running_kernels(device):
        share, _ = difference(config.model, windows_of(config), 1)
    assert 0 < share < (1e-3 if dtype == "float32" else TOLERANCE[dtype] / 2)


@pytest.mark.parametrize("device", ["v5e", "gpu"])
def test_texts_of_finetuning_and_devices_that_share_a_window_are_compared_too(device):
    model = dataclasses.replace(SMALL, d_head=64, num_heads=2)
    with running_kernels(device):
        of_texts, _ = difference(model, two_texts(24, model.mem_len), 1)
        in_parts, _ = difference(LONGER.model, windows_of(LONGER), 4)
    assert 0 < of_texts < 1e-3
    assert 0 < in_parts < 1e-3


def test_a_window_that_does_not_fit_the_chip_is_compared_in_its_blocks(monkeypatch):
    blocks = {"row_block": 128, "key_block": 128}
    monkeypatch.setitem(GENERATIONS, "small", GENERATIONS["v5e"]._replace(**blocks))
    monkeypatch.setattr(attention, "SCORES", 10_000)  # too few for all rows of plain attention at once
    with running_kernels("small"):
        share, _ = difference(LONGER.model, windows_of(LONGER), 1)
    assert 0 < share < 1e-3


# ---- faults ----------------------------------------------------------------------------------------------------------

SMALL_WINDOW = changed(
    PLM,
    {"mem_len": 16, "num_heads": 1, "dtype": "bfloat16"},
    {"seq_len": 32, "reuse_len": 16, "perm_size": 16, "num_predict": 8},
)
IN_ONE_PLACE = [
    ("gradient of biases_3NH", np.s_[0]),  # r_w
    ("gradient of biases_3NH", np.s_[1]),  # r_r
    ("gradient of biases_3NH", np.s_[2]),  # r_s
    ("output", np.s_[:, :, 32:]),  # of the query stream
    ("gradient of query_BNTH", np.s_[:, :, 32:]),
    ("gradient of query_BNTH", np.s_[:, :, 21]),
    ("gradient of key_BNKH", np.s_[:, :, :16]),  # of memory
    ("gradient of key_BNKH", np.s_[1]),  # of what reads backwards
    ("gradient of value_BNKH", np.s_[:, :, -4:]),
    ("gradient of position_key_2NRH", np.s_[0]),  # of sines
    ("gradient of position_key_2NRH", np.s_[:, :, 40:48]),
]


@pytest.fixture(scope="module")
def small():
    """Return the output and the gradients of the kernel, and those of plain attention."""
    with running_kernels("v5e"):
        return compute_both(SMALL_WINDOW.model, windows_of(SMALL_WINDOW), 1)


@pytest.mark.parametrize("factor", [0.5, 0.0, -1.0])
def test_a_fault_in_the_output_or_in_any_gradient_is_found_and_named(factor, small):
    ours, reference = small
    assert len(ours) == 7
    assert max(largest_shares(ours, reference).values()) < TOLERANCE["bfloat16"] / 2
    for name, where in [*((name, np.s_[:]) for name in ours), *IN_ONE_PLACE]:
        faulty = ours | {name: ours[name].at[where].multiply(factor)}
        shares = largest_shares(faulty, reference)
        assert max(shares, key=shares.get) == name
        assert shares[name] > TOLERANCE["bfloat16"]


def test_what_is_not_finite_is_infinitely_far(small):
    ours, reference = small
    name = "gradient of key_BNKH"
    assert largest_shares(ours | {name: ours[name].at[0, 0, 3, 3].set(np.nan)}, reference)[name] == np.inf

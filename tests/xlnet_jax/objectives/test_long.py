"""The preset of long windows: its batches, and objectives that start from it."""

from dataclasses import replace

import numpy as np
import pytest

from tests.xlnet_jax.tiny_text import batches_of
from xlnet_jax.objectives.presets import base, long, with_objective
from xlnet_jax.objectives.registry import validate

SMALLER = replace(long(), data=replace(long().data, batch_size=2))


def test_a_step_has_as_many_tokens_as_one_of_base_and_as_many_targets():
    ours, theirs = long().data, base().data
    assert ours.seq_len == 16_384
    assert ours.batch_size * ours.seq_len == theirs.batch_size * theirs.seq_len
    assert ours.batch_size * ours.num_predict == theirs.batch_size * theirs.num_predict
    assert long().optimizer == base().optimizer


def test_its_batches_are_made():
    source = batches_of(SMALLER)
    (batch,) = source.iterate(3, 4)
    for name, values in source.batch_at(3).items():
        np.testing.assert_array_equal(batch[name], values)
    assert batch["input_ids"].shape == (2, 16_384)
    assert batch["target_positions"].shape == (2, 2_720)
    assert batch["target_weights"].mean() > 0.99
    assert (np.unique(batch["document_start"]) >= 0).all()


@pytest.mark.parametrize("objective", ["plm", "mlm", "clm"])
def test_targets_stand_in_ascending_order(objective):
    """So tiles of neighbouring query rows read neighbouring keys."""
    config = with_objective(SMALLER, objective)
    validate(config)
    batch = batches_of(config).batch_at(0)
    steps = np.diff(batch["target_positions"], axis=1)
    assert (steps[batch["target_weights"][:, 1:] > 0] > 0).all()
    assert (steps >= 0).all()


def test_prefix_starts_without_packing_as_a_window_has_one_prefix():
    config = with_objective(long(), "prefix")
    validate(config)
    assert not config.data.pack

"""Mixture reads sources evenly, in the requested shares, and computes any slot by itself."""

import numpy as np
import pytest

from data_pipelines.mixture import Mixture
from xlnet_jax.storage.quiet_tensorflow import tensorflow

BLOCKS, SHARES = (50, 7, 400), (0.2, 0.1, 0.7)


def source_of(blocks, source_blocks=BLOCKS):
    return np.searchsorted(np.cumsum(source_blocks), blocks, side="right")


def test_without_weights_each_epoch_is_one_shuffle_of_all_blocks():
    mixture = Mixture(BLOCKS, (), seed=9)
    total = sum(BLOCKS)
    read = mixture.own_blocks(np.arange(3 * total)).reshape(3, total)
    shuffle = tensorflow().random.experimental.index_shuffle
    for epoch in range(3):
        np.testing.assert_array_equal(read[epoch], shuffle(np.arange(total), [9, epoch], np.int64(total - 1)).numpy())


@pytest.mark.parametrize(
    ("blocks", "shares"), [(BLOCKS, SHARES), ((5, 5), (0.5, 0.5)), ((9,) * 12, (0.01,) * 11 + (0.89,))]
)
def test_every_stretch_of_slots_has_the_shares_that_were_asked_for(blocks, shares):
    mixture = Mixture(blocks, shares, seed=1)
    source = source_of(mixture.own_blocks(np.arange(20_000)), blocks)
    slots = np.arange(1, 20_001)
    for i, share in enumerate(shares):
        assert np.abs(np.cumsum(source == i) - share * slots).max() < len(shares)


def test_every_block_of_a_source_is_read_once_in_each_of_its_epochs():
    mixture = Mixture(BLOCKS, SHARES, seed=2)
    read = mixture.own_blocks(np.arange(4_000))
    first = 0
    for i, size in enumerate(BLOCKS):
        own = read[source_of(read) == i] - first
        epochs = own[: len(own) // size * size].reshape(-1, size)
        assert len(epochs) >= 5
        assert (np.sort(epochs, axis=1) == np.arange(size)).all()
        assert len(np.unique(epochs, axis=0)) > 0.9 * len(epochs)  # orders of their own, as far as seven blocks have
        first += size


def test_sources_of_one_size_are_read_in_different_orders():
    mixture = Mixture((64, 64), (0.5, 0.5), seed=3)
    read = mixture.own_blocks(np.arange(128))
    first, second = (read[source_of(read, (64, 64)) == i] % 64 for i in range(2))
    assert (first != second).mean() > 0.9


def test_any_slot_is_computed_alone_however_late():
    for weights in ((), SHARES):
        mixture = Mixture(BLOCKS, weights, seed=4)
        for start in (0, 12_345, 10**6 * 8192):
            slots = start + np.arange(24)
            alone = [mixture.own_blocks(slots[i : i + 1])[0] for i in range(24)]
            np.testing.assert_array_equal(mixture.own_blocks(slots), alone)


def test_a_source_without_blocks_is_left_out():
    mixture = Mixture((50, 0, 400), SHARES, seed=5)
    source = source_of(mixture.own_blocks(np.arange(900)), (50, 0, 400))
    np.testing.assert_allclose(np.bincount(source), [200, 0, 700], atol=1)


@pytest.mark.parametrize("weights", [(), SHARES])
def test_a_partner_is_another_block_of_the_same_source(weights):
    mixture = Mixture(BLOCKS, weights, seed=6)
    own = mixture.own_blocks(np.arange(5_000))
    partner = mixture.partners(own, np.random.default_rng(0).random(5_000))
    np.testing.assert_array_equal(source_of(partner), source_of(own))
    assert (own != partner).all()
    assert len(np.unique(partner)) == sum(BLOCKS)


def test_the_only_block_of_a_source_is_its_own_partner():
    mixture = Mixture((1, 30), (0.5, 0.5), seed=7)
    assert mixture.partners(np.array([0]), np.array([0.9])).tolist() == [0]


def test_another_seed_reads_another_order():
    slots = np.arange(300)
    for weights in ((), SHARES):
        orders = [Mixture(BLOCKS, weights, seed).own_blocks(slots) for seed in (0, 1)]
        assert (orders[0] != orders[1]).any()

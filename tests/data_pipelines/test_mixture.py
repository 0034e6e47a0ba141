"""Mixture reads sources evenly and in the requested shares, and computes any slot on its own; each epoch is a
shuffle."""

import itertools
import math

import numpy as np
import pytest

from data_pipelines.mixture import LISTED_BLOCKS, Mixture, shuffle

BLOCKS, SHARES = (50, 7, 400), (0.2, 0.1, 0.7)


def source_of(blocks, source_blocks=BLOCKS):
    return np.searchsorted(np.cumsum(source_blocks), blocks, side="right")


def test_without_weights_each_epoch_is_one_shuffle_of_all_blocks():
    total = sum(BLOCKS)
    read = Mixture(BLOCKS, (), seed=9).own_blocks(np.arange(3 * total)).reshape(3, total)
    assert (np.sort(read, axis=1) == np.arange(total)).all()
    for one, other in itertools.combinations(read, 2):
        assert (one == other).sum() < 8


@pytest.mark.parametrize(
    ("blocks", "shares"), [(BLOCKS, SHARES), ((5, 5), (0.5, 0.5)), ((9,) * 12, (0.01,) * 11 + (0.89,))]
)
def test_every_stretch_of_slots_has_the_shares_that_were_asked_for(blocks, shares):
    source = source_of(Mixture(blocks, shares, seed=1).own_blocks(np.arange(20_000)), blocks)
    slots = np.arange(1, 20_001)
    for i, share in enumerate(shares):
        assert np.abs(np.cumsum(source == i) - share * slots).max() < len(shares)


def test_every_block_of_a_source_is_read_once_in_each_of_its_epochs():
    read = Mixture(BLOCKS, SHARES, seed=2).own_blocks(np.arange(4_000))
    first = 0
    for i, size in enumerate(BLOCKS):
        own = read[source_of(read) == i] - first
        epochs = own[: len(own) // size * size].reshape(-1, size)
        assert len(epochs) >= 5
        assert (np.sort(epochs, axis=1) == np.arange(size)).all()
        assert len(np.unique(epochs, axis=0)) > 0.9 * len(epochs)  # their orders differ, as far as seven blocks allow
        first += size


def test_any_slot_is_computed_alone_however_late():
    for weights in ((), SHARES):
        mixture = Mixture(BLOCKS, weights, seed=4)
        for start in (0, 12_345, 10**6 * 8192):
            slots = start + np.arange(24)
            alone = [mixture.own_blocks(slots[i : i + 1])[0] for i in range(24)]
            np.testing.assert_array_equal(mixture.own_blocks(slots), alone)


def test_a_source_without_blocks_is_left_out():
    read = Mixture((50, 0, 400), SHARES, seed=5).own_blocks(np.arange(900))
    np.testing.assert_allclose(np.bincount(source_of(read, (50, 0, 400))), [200, 0, 700], atol=1)


@pytest.mark.parametrize("weights", [(), SHARES])
def test_a_partner_is_another_block_of_the_same_source_if_it_has_one(weights):
    mixture = Mixture(BLOCKS, weights, seed=6)
    own = mixture.own_blocks(np.arange(5_000))
    partner = mixture.partners(own, np.random.default_rng(0).random(5_000))
    np.testing.assert_array_equal(source_of(partner), source_of(own))
    assert (own != partner).all()
    assert len(np.unique(partner)) == sum(BLOCKS)
    assert Mixture((1, 30), (0.5, 0.5), seed=7).partners(np.array([0]), np.array([0.9])).tolist() == [0]


# ---- the shuffle ----------------------------------------------------------------------------------------------------


def epochs_of(size, epochs, seed=0, pool=0):
    """Return the orders of the first epochs, int [epochs, size]."""
    each = shuffle(np.repeat(np.arange(epochs), size), np.tile(np.arange(size), epochs), size, seed, pool)
    return each.reshape(epochs, size)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_orders_of_a_few_blocks_are_as_likely(size):
    epochs, orders = 6_000, math.factorial(size)
    kinds = np.unique(epochs_of(size, epochs), axis=0, return_counts=True)[1]
    assert len(kinds) == orders
    chi_square = ((kinds - epochs / orders) ** 2 / (epochs / orders)).sum()
    assert chi_square < orders - 1 + 5 * math.sqrt(2 * (orders - 1))


@pytest.mark.parametrize("size", [100, LISTED_BLOCKS, LISTED_BLOCKS + 1, 4225])
def test_every_block_is_as_likely_at_every_place_of_an_epoch(size):
    """For sizes whose orders are listed, and for larger ones, where the Feistel network is the smallest. 4225 is a
    square."""
    epochs, parts = 400, 20
    each = epochs_of(size, epochs)
    assert (np.sort(each, axis=1) == np.arange(size)).all()
    place = np.arange(size) * parts // size
    table = np.zeros((parts, parts))
    np.add.at(table, (np.broadcast_to(place, each.shape), each * parts // size), 1)
    in_part = np.bincount(place)
    expected = epochs * np.outer(in_part, in_part) / size
    freedom = (parts - 1) ** 2
    chi_square = ((table - expected) ** 2 / expected).sum() * (size - 1) / size
    assert abs(chi_square - freedom) < 5 * math.sqrt(2 * freedom)
    pairs = (np.diff(each, axis=1) == 1).sum()  # about one an epoch
    assert abs(pairs - epochs * (size - 1) / size) < 5 * math.sqrt(epochs)


@pytest.mark.parametrize("sizes", [range(1, 300), range(LISTED_BLOCKS - 3, LISTED_BLOCKS + 140)])
def test_every_number_of_blocks_is_read_once_an_epoch(sizes):
    for size in sizes:
        assert (np.bincount(epochs_of(size, 1, seed=size)[0], minlength=size) == 1).all()


@pytest.mark.parametrize("size", [LISTED_BLOCKS, 65_536])
def test_seed_epoch_and_pool_each_give_an_order_of_its_own(size):
    """Every bit of the seed counts."""
    orders = [*epochs_of(size, 2), epochs_of(size, 1, pool=1)[0]]
    orders += [epochs_of(size, 1, seed=2**bit)[0] for bit in (0, 4, 8, 16, 31, 32, 63)]
    for one, other in itertools.combinations(orders, 2):
        assert (one == other).sum() < 11
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(size)
        assert (np.diff(one - other) == 0).sum() < 11


def test_a_shuffle_of_any_places_is_that_of_all():
    for size in (7, LISTED_BLOCKS, 70_001):
        epochs, places = np.random.default_rng(0).integers([[4], [size]], size=(2, 500))
        np.testing.assert_array_equal(shuffle(epochs, places, size, 2, 0), epochs_of(size, 4, seed=2)[epochs, places])


def test_orders_are_the_same_on_every_machine_and_in_every_version():
    """Change these numbers only together with the order of every corpus: a run that continues would read other text."""
    assert epochs_of(9, 2)[:, :4].ravel().tolist() == [5, 0, 1, 7, 4, 0, 1, 6]
    large = shuffle(np.repeat([0, 1], 4), np.tile(np.arange(4), 2), 8_000_000, 2**63 + 5, 1).tolist()
    assert large == [3952103, 2369633, 5216196, 5128303, 106846, 3925296, 2467587, 6889193]

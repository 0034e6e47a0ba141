"""Mixture reads sources evenly, in the requested shares, and computes any slot by itself; an epoch is a shuffle."""

import itertools
import math

import numpy as np
import pytest

from data_pipelines import mixture as module
from data_pipelines.mixture import LISTED_BLOCKS, Mixture, shuffle

BLOCKS, SHARES = (50, 7, 400), (0.2, 0.1, 0.7)


def source_of(blocks, source_blocks=BLOCKS):
    return np.searchsorted(np.cumsum(source_blocks), blocks, side="right")


def test_without_weights_each_epoch_is_one_shuffle_of_all_blocks():
    mixture = Mixture(BLOCKS, (), seed=9)
    total = sum(BLOCKS)
    read = mixture.own_blocks(np.arange(3 * total)).reshape(3, total)
    assert (np.sort(read, axis=1) == np.arange(total)).all()
    for one, other in itertools.combinations(read, 2):
        assert (one == other).sum() < 8


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


# ---- the shuffle ----------------------------------------------------------------------------------------------------


def order_of(size, seed=0, epoch=0, pool=0):
    places = np.arange(size)
    return shuffle(np.full(size, epoch), places, size, seed, pool)


def deviations(order, batch_size):
    """Return how many standard deviations each statistic of an order is from its mean over all orders."""
    size, found = len(order), {}
    place = np.empty(size, np.int64)
    place[order] = np.arange(size)
    lags = [1, 2, 3, *(2**k for k in range(2, size.bit_length() - 2, 3))]
    # ---- blocks of one batch ----
    batch = place // batch_size
    for lag in lags:
        mean = (size - lag) * (batch_size - 1) / (size - 1)
        found[f"blocks {lag} apart in one batch"] = ((batch[lag:] == batch[:-lag]).sum() - mean) / math.sqrt(mean)
    batches = size // batch_size
    part = (order[: batches * batch_size] * 10 // size).reshape(batches, batch_size)
    rest = (size - batch_size) / (size - 1)  # a batch draws without putting back
    square = ((part == 0).sum(1) - batch_size / 10) ** 2 / (batch_size * 0.09 * rest)
    found["rows of the first tenth in a batch"] = (square.mean() - 1) / math.sqrt(2 / batches)
    counts = np.stack([(part == i).sum(1) for i in range(10)])
    chi_square, freedom = ((counts - batch_size / 10) ** 2).sum() / (batch_size / 10 * rest), 9 * batches
    found["rows of all tenths in a batch"] = (chi_square - freedom) / math.sqrt(2 * freedom)
    # ---- blocks one after the other ----
    centred = order - (size - 1) / 2
    for lag in lags:
        product = (centred[lag:] * centred[:-lag]).sum() / ((size**2 - 1) / 12)
        found[f"correlation of blocks {lag} slots apart"] = product / math.sqrt(size)
    # ---- blocks and their places ----
    displacement = np.abs(order - np.arange(size)).sum(dtype=float)  # Diaconis and Graham, 1977
    found["displacement"] = (displacement - (size**2 - 1) / 3) / math.sqrt((size + 1) * (2 * size**2 + 7) / 45)
    return found


def unlike_a_shuffle(order, batch_size):
    found = deviations(order, batch_size)
    assert (np.sort(order) == np.arange(len(order))).all()
    return {name: value for name, value in found.items() if abs(value) > 5}


SIZES = [(65_536, 64), (65_536, 8192), (2_000_000, 8192)]  # blocks, rows of a batch


@pytest.mark.parametrize(("size", "batch_size"), SIZES)
def test_an_epoch_has_the_statistics_of_a_true_shuffle(size, batch_size):
    assert not unlike_a_shuffle(order_of(size, seed=5, epoch=3), batch_size)


@pytest.mark.parametrize(("size", "batch_size"), SIZES[:2])
def test_the_statistics_pass_a_true_shuffle_and_find_one_of_few_rounds(size, batch_size, monkeypatch):
    assert not unlike_a_shuffle(np.random.default_rng(0).permutation(size), batch_size)
    monkeypatch.setattr(module, "ROUNDS", 2)
    assert len(unlike_a_shuffle(order_of(size), batch_size)) > 5


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_orders_of_a_few_blocks_are_as_likely(size):
    epochs, orders = 6_000, math.factorial(size)
    each = shuffle(np.repeat(np.arange(epochs), size), np.tile(np.arange(size), epochs), size, 0, 0)
    kinds = np.unique(each.reshape(epochs, size), axis=0, return_counts=True)[1]
    assert len(kinds) == orders
    chi_square = ((kinds - epochs / orders) ** 2 / (epochs / orders)).sum()
    assert chi_square < orders - 1 + 5 * math.sqrt(2 * (orders - 1))


@pytest.mark.parametrize("size", [10, 100, 1000, LISTED_BLOCKS, LISTED_BLOCKS + 1, 4225, 5000])
def test_every_block_is_as_likely_at_every_place_of_an_epoch(size):
    """Where orders are listed, and right behind, where the network is the smallest; 4225 is a square."""
    epochs = 400
    each = shuffle(np.repeat(np.arange(epochs), size), np.tile(np.arange(size), epochs), size, 0, 0)
    each = each.reshape(epochs, size)
    assert (np.sort(each, axis=1) == np.arange(size)).all()
    parts = min(size, 20)
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


@pytest.mark.parametrize("sizes", [range(1, 1001), range(LISTED_BLOCKS - 3, LISTED_BLOCKS + 140)])
def test_every_number_of_blocks_is_read_once_an_epoch(sizes):
    for size in sizes:
        assert (np.bincount(order_of(size, seed=size), minlength=size) == 1).all()


@pytest.mark.parametrize("size", [LISTED_BLOCKS, 65_536])
def test_seed_epoch_and_pool_each_give_an_order_of_its_own(size):
    """Every bit of the seed counts."""
    names = [(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 0, 1), (0, 1, 1), *((2**k, 0, 0) for k in (0, 4, 8, 16, 31, 32, 63))]
    orders = [order_of(size, *name) for name in names]
    for one, other in itertools.combinations(orders, 2):
        assert (one == other).sum() < 11
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(size)
        assert (np.diff(one - other) == 0).sum() < 11


def test_a_shuffle_of_any_places_is_that_of_all():
    for size in (7, LISTED_BLOCKS, 70_001):
        whole = np.stack([order_of(size, seed=2, epoch=epoch) for epoch in range(4)])
        epochs, places = np.random.default_rng(0).integers([[4], [size]], size=(2, 500))
        np.testing.assert_array_equal(shuffle(epochs, places, size, 2, 0), whole[epochs, places])


def test_orders_are_the_same_on_every_machine_and_in_every_version():
    """Change these numbers only together with the order of every corpus: a run that goes on would read other text."""
    assert shuffle(np.repeat([0, 1], 4), np.tile(np.arange(4), 2), 9, 0, 0).tolist() == SMALL
    assert shuffle(np.repeat([0, 1], 4), np.tile(np.arange(4), 2), 8_000_000, 2**63 + 5, 1).tolist() == LARGE


SMALL = [5, 0, 1, 7, 4, 0, 1, 6]
LARGE = [3952103, 2369633, 5216196, 5128303, 106846, 3925296, 2467587, 6889193]

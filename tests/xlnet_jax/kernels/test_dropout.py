"""Dropout masks: the hash and the bits that follow from it, the rate, and independence wherever two elements differ."""

import hashlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.xlnet_jax.kernels.dropout_sites import HEADS, LAYERS, RATE, ROWS, WIDTH, Sites
from xlnet_jax.kernels import dropout
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.objectives.language_model import BatchDropout, apply
from xlnet_jax.storage.reading import VERSIONS

EXAMPLES = 8
DEVIATIONS = 5.5
ALL = jnp.arange(EXAMPLES)
UINT32 = 2**32 - 1


def lowbias32(x):
    x ^= x >> 16
    x = x * 0x7FEB352D & UINT32
    x ^= x >> 15
    x = x * 0x846CA68B & UINT32
    return x ^ x >> 16


def hidden_mask(seed=0, example_B=ALL, rate=RATE):
    return np.asarray(dropout.hidden_mask_BTD(jax.random.key(seed), example_B, rate, ROWS, WIDTH))


def attention_mask(seed=0, example_B=ALL, rate=RATE, heads=HEADS):
    seed_BN = dropout.attention_seed_BN(jax.random.key(seed), example_B, heads)
    return np.asarray(dropout.attention_mask_BNTK(dropout.AttentionDropout(rate, seed_BN), ROWS, WIDTH))


def example_seed(seed, example):
    first, second = np.asarray(jax.random.bits(jax.random.key(seed), (2,), jnp.uint32)).tolist()
    return lowbias32(lowbias32(first + example * 0xC2B2AE35 & UINT32) ^ second)


def word(seed, row, column):
    row_seed = lowbias32((seed | 1) + row * 0x9E3779B9 & UINT32)
    return lowbias32(row_seed + column * 0x85EBCA6B & UINT32)


def test_masks_are_those_of_the_hash_element_by_element():
    """Spelt out in Python for a few elements: far apart, the first and the last."""
    numbers = [0, 1, 2, 0x80000000, 0xFFFFFFFF, 0xDEADBEEF]
    assert [lowbias32(x) for x in numbers] == [0, 0x688990C0, 0xD1132181, 0xCC4B4124, 0x6768824A, 0xE628C683]
    hidden, attention, limit = hidden_mask(3), attention_mask(3), round(RATE * 2**16)
    for b, t, k in itertools.product((0, 1, EXAMPLES - 1), (0, 1, ROWS - 1), (0, 1, WIDTH // 2, WIDTH - 1)):
        seed = example_seed(3, b)
        assert hidden[b, t, k] == (word(seed, t, k) >> 16 >= limit)
        for n in range(HEADS):
            pair = lowbias32(seed + (n >> 1) * 0x27D4EB2F & UINT32)
            assert attention[b, n, t, k] == (word(pair, t, k) >> 16 * (n & 1) & 0xFFFF >= limit)


def test_multiplying_by_shifts_gives_the_same_hash():
    words = jnp.asarray(np.random.default_rng(0).integers(0, 2**32, 10_000, dtype=np.uint32))
    np.testing.assert_array_equal(dropout.lowbias32(words, by_shifts=True), dropout.lowbias32(words))


def test_the_bits_of_the_masks_are_those_of_version_1_of_checkpoints():
    """A run that resumes computes the same steps: other bits need another version of the checkpoint's format."""
    assert VERSIONS["checkpoint"] == 1
    bits = np.packbits(np.concatenate([hidden_mask().ravel(), attention_mask().ravel()])).tobytes()
    recorded = "3db388b36c3b28394c6d7f3b24f1c57bc655a2c18e6c19005466c7afa9f214ba"
    assert hashlib.sha256(bits).hexdigest() == recorded


def test_a_mask_does_not_depend_on_the_part_of_the_batch_nor_on_the_number_of_heads():
    places = jnp.array([5, 2, 7])
    for mask in (hidden_mask, attention_mask):
        np.testing.assert_array_equal(mask(example_B=places), mask()[np.asarray(places)])
    np.testing.assert_array_equal(attention_mask(heads=3), attention_mask()[:, :3])


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("mask", [hidden_mask, attention_mask])
def test_every_row_column_example_and_head_drops_the_rate(mask, rate):
    dropped = ~mask(rate=rate)
    axes = range(dropped.ndim)
    for kept in [(), *((axis,) for axis in axes), *itertools.combinations(axes, 2)]:
        others = tuple(axis for axis in axes if axis not in kept)
        count = np.prod([dropped.shape[axis] for axis in others])
        deviation = np.sqrt(rate * (1 - rate) / count)
        assert np.abs(dropped.mean(others) - rate).max() < DEVIATIONS * deviation, f"along axes {kept}"


def assert_uncorrelated(one, other, rate=RATE):
    """Compare the mean product of two masks, without their rate, with its standard deviation."""
    assert one.shape == other.shape
    product = (one - (1 - rate)) * (other - (1 - rate))
    deviation = rate * (1 - rate) / np.sqrt(product.size)
    assert abs(product.mean()) < DEVIATIONS * deviation


@pytest.mark.parametrize("mask", [hidden_mask, attention_mask])
def test_neighbors_diagonals_and_seeds_are_uncorrelated_and_no_two_rows_are_equal(mask):
    """A hash of row + column would repeat along diagonals. Heads at distance 1 are the halves of a word, or of two."""
    found = mask()
    for distance, (axis, size) in itertools.product((1, 2, 3, 16), enumerate(found.shape)):
        if distance < size:
            assert_uncorrelated(found.take(range(size - distance), axis), found.take(range(distance, size), axis))
    assert_uncorrelated(found[..., 1:, 1:], found[..., :-1, :-1])
    assert_uncorrelated(found[..., 1:, :-1], found[..., :-1, 1:])
    assert_uncorrelated(found, mask(seed=1))
    rows = mask(rate=0.5).reshape(-1, WIDTH)
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_steps_sites_and_layers_are_uncorrelated():
    inputs = text_inputs(jnp.zeros((EXAMPLES, 2), jnp.int32))

    @jax.jit
    def masks_of(step):
        return apply(Sites(), {}, BatchDropout(jax.random.fold_in(jax.random.key(0), step), ALL), inputs)

    found = {"hidden": [], "attention": []}  # bool [2, B, …], of two steps
    for site, mask in jax.tree.map(lambda *steps: np.stack(steps), masks_of(0), masks_of(1)).items():
        kind = "attention" if site.startswith("attention") else "hidden"
        found[kind] += [mask] if site == "embedded" else [mask[:, :, z] for z in range(LAYERS)]
    assert {kind: len(masks) for kind, masks in found.items()} == {"hidden": 1 + 2 * LAYERS, "attention": 2 * LAYERS}
    for masks in found.values():
        for one, other in itertools.combinations(masks, 2):
            assert_uncorrelated(one, other)
        for mask in masks:
            assert_uncorrelated(*mask)
    assert_uncorrelated(found["hidden"][1], found["attention"][0][:, :, 0])

"""The n-gram model beside which the scaling study shows its losses."""

import numpy as np
import pytest

from benchmarks.ngram import probabilities

PIECES = 5


@pytest.fixture(scope="module")
def train():
    return np.random.default_rng(0).choice(PIECES, p=(0.5, 0.2, 0.15, 0.1, 0.05), size=(40, 25)).astype(np.int64)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_the_probabilities_of_all_pieces_sum_to_one(train, order):
    """In every context: seen, and never seen."""
    contexts = np.random.default_rng(1).integers(PIECES, size=(30, 24))
    blocks = np.concatenate([np.repeat(contexts, PIECES, 0), np.tile(np.arange(PIECES), 30)[:, None]], 1)
    last = probabilities(train, blocks, PIECES, order)[:, -1]
    np.testing.assert_allclose(last.reshape(30, PIECES).sum(1), 1, rtol=1e-12)
    assert last.min() > 0


def test_bigrams_by_hand():
    """a b a b a c: the discounts are those of Chen & Goodman, equation 26, held between 0 and the count."""
    train = np.array([[0, 1, 0, 1, 0, 2]])
    (found,) = probabilities(train, np.array([[0, 1, 1, 1, 1, 1]]), 3, 2)
    # Unigrams by the pieces before them: a after b; b, c after a. All counts are 1: n1 = 3, n2 = 0, Y = 1, D1 = 1.
    np.testing.assert_allclose(found[0], 1 / 3)
    # Bigrams: ab 2, ba 2, ac 1; n1 = 1, n2 = 2: Y = 1/5, D1 = 1 - 2/5 x 2/1 = 1/5, D2 = 2.
    np.testing.assert_allclose(found[1], (2 - 2) / 3 + (2 + 1 / 5) / 3 * 1 / 3)


def test_longer_contexts_predict_what_depends_on_them():
    """Each piece is the sum of the two before it."""
    blocks = np.zeros((60, 30), np.int64)
    blocks[:, :2] = np.random.default_rng(2).integers(PIECES, size=(60, 2))
    for i in range(2, 30):
        blocks[:, i] = (blocks[:, i - 1] + blocks[:, i - 2]) % PIECES
    found = {order: probabilities(blocks[:50], blocks[50:], PIECES, order)[:, 2:].mean() for order in (1, 2, 3)}
    assert found[3] > 0.9 > 0.5 > found[2]

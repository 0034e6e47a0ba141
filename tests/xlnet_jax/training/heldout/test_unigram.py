"""The unigram line is the loss of frequencies that were counted in a text, long or short."""

import numpy as np
import pytest

from data_pipelines.tokenizer import UNK
from xlnet_jax.training.evaluation import frequencies_V, unigram_line, unknown_share

VOCAB_SIZE = 8_000
ZIPF_V = 1 / np.arange(1, VOCAB_SIZE + 1)
ZIPF_V /= ZIPF_V.sum()


def batches_of(ids):
    """Two batches of targets, and padding."""
    for part in np.array_split(ids, 2):
        padded = np.concatenate([part, np.full(5, UNK)])
        yield {"target_ids": padded[None], "target_weights": (np.arange(len(padded)) < len(part))[None].astype(float)}


def line(counts_V, ids):
    return unigram_line(counts_V, batches_of(ids), lambda batch: batch)


def test_the_line_is_the_cross_entropy_of_the_targets():
    counts_V = np.array([5, 3, 2, 0])
    ids = np.array([1, 1, 2, 0, 1, 1])
    frequencies = (counts_V + 3 / 4) / (10 + 3)
    np.testing.assert_allclose(frequencies_V(counts_V), frequencies)
    assert line(counts_V, ids) == pytest.approx(-np.log(frequencies[ids]).mean(), rel=1e-6)


def test_a_text_with_every_piece_gives_add_one_counts():
    counts_V = np.random.default_rng(0).integers(1, 1000, VOCAB_SIZE)
    np.testing.assert_allclose(frequencies_V(counts_V), (counts_V + 1) / (counts_V.sum() + VOCAB_SIZE))


@pytest.mark.parametrize("tokens", [300, 1_000, 3_000, 30_000])
def test_the_line_of_a_short_text_is_not_that_of_the_smoothing(tokens):
    """Counts plus one would put a text of a few thousand tokens close to the uniform line."""
    ids = np.random.default_rng(1).choice(VOCAB_SIZE, tokens, p=ZIPF_V)
    counts_V = np.bincount(ids, minlength=VOCAB_SIZE)
    frequencies = frequencies_V(counts_V)
    assert frequencies.sum() == pytest.approx(1)
    assert frequencies.min() > 0
    used = counts_V[counts_V > 0]
    lowest = -(used / tokens * np.log(used / tokens)).sum()  # of any unigram model on this text
    found = line(counts_V, ids)
    assert lowest < found < lowest + 0.7
    add_one = -np.log((counts_V[ids] + 1) / (tokens + VOCAB_SIZE)).mean()
    assert found < add_one


def test_the_share_of_unknown_pieces_counts_targets_alone():
    ids = np.array([UNK, 5, 6, UNK, 7, 8, 9, 10])
    assert unknown_share(20, batches_of(ids), lambda batch: batch) == pytest.approx(0.25)

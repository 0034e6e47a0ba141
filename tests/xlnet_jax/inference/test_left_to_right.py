"""A text read with memory and with a sliding window: the same numbers until the text is longer than both."""

import dataclasses

import numpy as np
import pytest

from tests.xlnet_jax.random_models import CAUSAL, HEADS, random_model, strong_params
from xlnet_jax import InputError
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference.log_probs import by_window, causal_beside_likeliest

LENGTH, ATTENTION = 60, 12  # attention length: of the memory, and of the window
TEXT = np.random.default_rng(0).integers(9, 39, LENGTH).astype(np.int32)


def with_memory(model, ids, segment_len, mem_len):
    return causal_beside_likeliest(model, [ids], segment_len=segment_len, mem_len=mem_len)[0][:, 0]


@pytest.fixture(scope="module")
def model():
    return Pretrained(CAUSAL, strong_params(CAUSAL), "clm")


@pytest.fixture(scope="module")
def slid(model):
    return by_window(model, TEXT, ATTENTION)


@pytest.mark.parametrize("segment_len", [1, 5, 60])
def test_memory_and_window_agree_until_the_text_is_longer_than_they_are(model, slid, segment_len):
    remembered = with_memory(model, TEXT, segment_len, ATTENTION)
    assert remembered.shape == slid.shape == (LENGTH - 1,)
    difference = np.abs(remembered - slid)
    assert difference[:ATTENTION].max() < 1e-4
    assert np.median(difference[ATTENTION:]) > 1e-2


def test_long_memory_and_long_windows_give_the_numbers_of_the_whole_text(model):
    whole = causal_beside_likeliest(model, [TEXT], 4096)[0][:, 0]
    np.testing.assert_allclose(with_memory(model, TEXT, 7, LENGTH), whole, rtol=0, atol=1e-4)
    np.testing.assert_allclose(by_window(model, TEXT, LENGTH), whole, rtol=0, atol=1e-4)


def test_a_window_forgets_what_memory_has_seen_further_back(model, slid):
    other = np.where(np.arange(LENGTH) == 0, TEXT + 1, TEXT)
    np.testing.assert_array_equal(by_window(model, other, ATTENTION)[ATTENTION:], slid[ATTENTION:])
    remembered, changed = (with_memory(model, ids, 5, ATTENTION)[ATTENTION:] for ids in (TEXT, other))
    assert np.abs(remembered - changed).max() > 1e-3


def test_scores_depend_neither_on_the_batch_nor_on_other_targets(model, slid):
    few = np.array([50, 3, 12])
    np.testing.assert_allclose(by_window(model, TEXT, ATTENTION, few, batch_tokens=24), slid[few - 1], atol=1e-5)
    texts = [TEXT, TEXT[:9], TEXT[:2]]
    whole, *beginnings = causal_beside_likeliest(model, texts, batch_tokens=64)
    assert whole.shape == (LENGTH - 1, 2)
    for beginning, length in zip(beginnings, (9, 2), strict=True):
        np.testing.assert_allclose(beginning, whole[: length - 1], atol=1e-5)


def test_checkpoints_that_are_not_causal_are_refused(model):
    absolute = dataclasses.replace(model, model=dataclasses.replace(CAUSAL, positions="sinusoidal"))
    for run, said in (
        (lambda: by_window(random_model(), TEXT, 4), r"permuted orders \(plm\), not the next piece.*`objective` clm"),
        (lambda: with_memory(random_model(head=HEADS["regression"]), TEXT, 4, 4), "has a head for regression"),
        (lambda: with_memory(absolute, TEXT, 4, 4), "`mem_len` 4: the checkpoint has sinusoidal positions"),
    ):
        with pytest.raises(InputError, match=said):
            run()

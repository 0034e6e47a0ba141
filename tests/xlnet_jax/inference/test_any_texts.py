"""Texts may come in whatever can be iterated over; results are in that order."""

import numpy as np
import pytest

import xlnet_jax
from xlnet_jax.errors import InputError
from xlnet_jax.settings.fields import list_of_texts

TEXTS = ["She opened the letter.", "He was gone", "Rain fell on the old house by the sea", "The naïve café"]


class Series:
    """Stand-in for a Series of pandas with shuffled rows: iterated over by row, indexed by label, neither true nor
    false."""

    def __init__(self, texts):
        self._texts = list(texts)

    def __iter__(self):
        return iter(self._texts)

    def __getitem__(self, label):
        return self._texts[-1 - label]

    def __bool__(self):
        raise ValueError("The truth value of a Series is ambiguous")


KINDS = [
    Series,
    np.array,
    lambda texts: np.array(texts, object),
    tuple,
    iter,
    lambda texts: dict.fromkeys(texts).keys(),
]


@pytest.fixture(scope="module")
def tiny():
    return xlnet_jax.load("tiny")


CALLS = {
    "tokenize": lambda model, texts: [array.tolist() for array in model.tokenize(texts)],
    "embed_texts": lambda model, texts: xlnet_jax.embed_texts(model, texts).tolist(),
    "score_texts": lambda model, texts: [s.log_probs_OP.tolist() for s in xlnet_jax.score_texts(model, texts)],
    "attention_weights": lambda model, texts: xlnet_jax.attention_weights(model, texts).pieces,
    "generate": lambda model, texts: [t.text for t in xlnet_jax.generate(model, texts, max_new_tokens=1)],
}


def test_all_that_can_be_iterated_over_is_a_list_of_texts():
    for kind in KINDS:
        assert list_of_texts(kind(TEXTS)) == TEXTS
    for texts in ({"text": "a"}, b"bytes", 7):
        with pytest.raises(InputError, match="`texts` must be a list of texts, not"):
            list_of_texts(texts)
    with pytest.raises(InputError, match='number 0 \\(from 0\\) is not text: \\["a", "pair"\\]'):
        list_of_texts([["a", "pair"]])


@pytest.mark.parametrize("call", CALLS)
def test_results_are_in_the_order_of_the_texts(tiny, call):
    assert CALLS[call](tiny, Series(TEXTS)) == CALLS[call](tiny, TEXTS)
    assert CALLS[call](tiny, TEXTS[0]) == CALLS[call](tiny, [TEXTS[0]])
    with pytest.raises(InputError, match="number 1 \\(from 0\\) is not text: 3"):
        CALLS[call](tiny, ["fine", 3.5])

"""Texts with positions to fill, with tokenizers whose pieces are characters or bytes."""

import numpy as np
import pytest

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.inference.blanks import Kind, allowed_XV, continuation, fill, infilling

LINES = ["It was a cat, asking a question."] * 9


@pytest.fixture(params=["character", "byte"])
def tokenizer(request):
    return Tokenizer.train(LINES, 100, "none", token_level=request.param)


def ids_of(tokenizer, text):
    return tokenizer.encode_lines([text])[0]


def test_a_text_goes_on_behind_a_space_or_inside_its_last_word(tokenizer):
    blanks = continuation(tokenizer, "It was a ", "", 4)
    cat = ids_of(tokenizer, "cat")
    assert fill(tokenizer, blanks, cat) == "It was a cat"
    assert fill(tokenizer, continuation(tokenizer, "It was", "", 4), cat) == "It was cat"


def test_a_gap_between_words_begins_with_a_space_and_what_follows_a_gap_can_be_glued_to_it(tokenizer):
    blanks = infilling(tokenizer, "It ___ing a ___.", "", [4, 4])
    assert blanks.kinds_P[[0, 4]].tolist() == [Kind.WORD, Kind.WORD]
    assert fill(tokenizer, blanks, np.concatenate([ids_of(tokenizer, w) for w in ("ask", "cat")])) == "It asking a cat."
    full = blanks.ids_L.copy()
    full[blanks.targets_P] = np.concatenate([ids_of(tokenizer, w) for w in ("ask", "cat")])
    np.testing.assert_array_equal(full, ids_of(tokenizer, "It asking a cat."))
    begins_word = allowed_XV(tokenizer)[Kind.WORD]
    assert np.flatnonzero(begins_word).tolist() == [ids_of(tokenizer, "a")[0]]

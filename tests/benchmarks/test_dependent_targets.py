"""Spans of words that depend on each other, and their likelihoods by masked pieces."""

import jax
import numpy as np

from benchmarks.dependent_targets import (
    CONTEXT,
    Span,
    associated_pairs,
    collocations,
    masked_log_likelihoods,
    names,
    numbers,
    queries_of,
)
from data_pipelines.tokenizer import MASK, Tokenizer
from tests.xlnet_jax.random_models import random_model
from xlnet_jax.inference.log_probs import Query
from xlnet_jax.models.heads import build_model
from xlnet_jax.models.inputs import compact_inputs
from xlnet_jax.settings.config import ModelConfig


def spans(found, words):
    return [" ".join(words[span.begin : span.end]) for span in found]


def test_names_are_runs_of_capitalised_words_inside_a_sentence():
    words = "Nothing was said. Lady Ann met Miss Eleanor Tilney, and Mr. Henry bowed to Captain Hunt; They left".split()
    assert spans(names(words), words) == ["Miss Eleanor Tilney,", "Mr. Henry", "Captain Hunt;"]


def test_numbers_may_be_joined_by_and():
    words = "she was five and twenty, had two thousand pounds and one horse in 1803".split()
    assert spans(numbers(words), words) == ["five and twenty,", "two thousand"]


def test_collocations_are_associated_in_the_training_text():
    text = " ".join(f"the word{i} met a drawing room at once" for i in range(40)) + " a room " * 10
    found = associated_pairs(text, at_least=30, information=1.5)
    assert ("drawing", "room") in found
    assert ("at", "once") in found
    assert ("the", "word1") not in found
    words = "He saw the drawing room and a room".split()
    assert spans(collocations(words, found), words) == ["drawing room"]


def test_the_pieces_of_a_span_spell_its_words():
    """Words bring their punctuation along."""
    tokenizer, words = (
        Tokenizer.load("tiny"),
        ['"Oh,', "yes;", "Mr.", "Tilney's", "(dear)", "sister,", "said", "she."] * 20,
    )
    asked = [Span("name", begin, begin + 2) for begin in range(len(words) - 1)]
    found = list(queries_of(tokenizer, " ".join(words), asked))
    assert len(found) > 40
    for span, query in found:
        spelled = "".join(tokenizer.pieces[piece] for piece in query.ids_L[query.positions_P])
        assert spelled.replace("▁", " ").split() == words[span.begin : span.end]


def test_masked_pieces_are_predicted_as_by_one_text_without_padding():
    """And a piece of the span says nothing about another."""
    model = ModelConfig(
        vocab_size=50, num_layers=2, d_model=16, num_heads=2, d_head=8, d_ff=32, mem_len=0, dropout=0.0, init_std=0.3
    )
    network = random_model(model)
    ids = np.random.default_rng(0).integers(10, 50, 2 * CONTEXT + 3).astype(np.int32)
    positions = np.arange(CONTEXT, CONTEXT + 3)
    query, other = Query(ids, positions, np.arange(3)), Query(ids[:-5], positions, np.arange(3))
    found, of_other = masked_log_likelihoods(network, [query, other])

    masked = ids.copy()
    masked[positions] = MASK
    inputs = compact_inputs(
        masked[None], np.zeros((1, len(ids)), int), np.zeros((1, len(ids)), int), None, np.zeros(1, bool),
        np.zeros((1, 0), bool),
    )  # fmt: skip
    logits, _ = build_model(model, None).apply({"params": network.params}, inputs)
    expected = jax.nn.log_softmax(logits)[0, positions, ids[positions]]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - of_other).max() > 1e-4

    changed = ids.copy()
    changed[positions[0]] = 10 + (ids[positions[0]] - 9) % 40
    (again,) = masked_log_likelihoods(network, [query._replace(ids_L=changed)])
    np.testing.assert_array_equal(again[1:], found[1:])
    assert again[0] != found[0]

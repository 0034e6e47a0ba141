"""Gaps are predicted from the rest of the text alone, with the likeliest pieces first."""

import dataclasses

import numpy as np
import pytest

from data_pipelines.tokenizer import Settings, Tokenizer
from tests.xlnet_jax.random_models import HEADS, SMALL, random_model
from xlnet_jax import InputError
from xlnet_jax.inference.factorization import factorize
from xlnet_jax.inference.fill_in import fill_in

TEXT = "The list of names is new"


@pytest.fixture(scope="module")
def model(reference):
    tokenizer = Tokenizer((reference / "data" / "spiece.model").read_bytes(), Settings())
    return random_model(dataclasses.replace(SMALL, vocab_size=800), tokenizer=tokenizer)


def test_the_probability_of_a_hidden_piece_is_that_of_independent_targets(model):
    gaps = fill_in(model, TEXT, ["of names"])
    alone = factorize(model, TEXT, "of names")
    assert [gap.piece for gap in gaps] == alone.pieces
    np.testing.assert_allclose(np.log([gap.probability for gap in gaps]), alone.independent_P, atol=1e-5)


def test_gaps_come_in_the_order_of_the_text_with_the_likeliest_pieces_first(model):
    gaps = fill_in(model, TEXT, ["new", "The", "new"], likeliest=800)
    assert [gap.position for gap in gaps] == sorted({gap.position for gap in gaps})
    assert gaps[0].piece == "▁The"
    assert len(gaps) == 1 + len(model.tokenizer.encode_lines(["new"])[0])
    for gap in gaps:
        probabilities = [p for _, p in gap.likeliest]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1, rel=1e-4)
        assert dict(gap.likeliest)[gap.piece] == gap.probability


def test_no_gap_sees_what_is_hidden(model):
    """Two hidden words of one piece each change places: every probability stays at its position."""
    ours = fill_in(model, TEXT, ["list", "names"], likeliest=800)
    theirs = fill_in(model, "The names of list is new", ["list", "names"], likeliest=800)
    assert [gap.piece for gap in ours] == [gap.piece for gap in theirs][::-1] == ["▁list", "▁names"]
    for one, other in zip(ours, theirs, strict=True):
        assert dict(one.likeliest) == pytest.approx(dict(other.likeliest), rel=1e-4)
    seen = fill_in(model, "The names of list is new", ["list"], likeliest=800)
    assert dict(seen[0].likeliest) != pytest.approx(dict(ours[1].likeliest), rel=1e-2)


def test_words_outside_the_text_and_checkpoints_without_scores_are_refused(model):
    assert fill_in(model, TEXT, []) == []
    with pytest.raises(InputError, match="'York' is no whole piece or pieces of the text, which reads: ▁The"):
        fill_in(model, TEXT, ["York"])
    with pytest.raises(InputError, match="has a head for regression, and no vocabulary scores"):
        fill_in(random_model(head=HEADS["regression"]), TEXT, ["new"])
    with pytest.raises(InputError, match="has no tokenizer"):
        fill_in(random_model(), TEXT, ["new"])

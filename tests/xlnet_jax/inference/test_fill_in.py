"""Gaps are predicted from the rest of the text alone, with the likeliest pieces first."""

import dataclasses

import numpy as np
import pytest

import xlnet_jax
from data_pipelines.tokenizer import Settings, Tokenizer
from tests.xlnet_jax.random_models import HEADS, SMALL, random_model
from xlnet_jax import InputError
from xlnet_jax.inference.factorization import factorize, find_words
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


AROUND = (
    '"{}" she said', "({}) she said", "[{}]", "{{{}}}", "‘{}’", "“{}”, he said", "«{}»", "¿{}?", "—{}—", "a/{}/b",
    "he said:{}.", "*{}*", "'{}'", "…{}…", "-{}-", "<{}>",
)  # fmt: skip


@pytest.mark.parametrize("text", AROUND)
@pytest.mark.parametrize("words", ["names", "list of names", "Rain"])
def test_a_word_can_be_hidden_between_punctuation_of_all_kinds(words, text):
    """Pieces of a word after a quote are not those after a space."""
    tokenizer = xlnet_jax.load("tiny").tokenizer
    ids_L = tokenizer.encode_lines([text.format(words)])[0]
    found = find_words(tokenizer, ids_L, words)
    hidden = "".join(tokenizer.pieces[i] for i in ids_L[found]).lstrip("▁")
    assert hidden == "".join(tokenizer.encode_pieces([words])[0]).lstrip("▁")
    assert found.tolist() == list(range(found[0], found[-1] + 1))


def test_words_are_found_where_they_stand_first_and_by_themselves():
    tokenizer = xlnet_jax.load("tiny").tokenizer

    def found(text, words):
        ids_L = tokenizer.encode_lines([text])[0]
        positions = find_words(tokenizer, ids_L, words)
        before = "".join(tokenizer.pieces[i] for i in ids_L[: positions[0]])
        return len(before.replace("▁", " ").lstrip()), "".join(tokenizer.pieces[i] for i in ids_L[positions])

    assert found('the "city" and the city', "city") == (5, "city")
    assert found("walking with a walk", "walk") == (len("walking with a"), "▁walk")
    assert found("she walks", "walk")[1] == "▁walk"
    with pytest.raises(InputError, match="'art' is no whole piece or pieces of the text, which reads: ▁a"):
        found("a part of it", "art")
    with pytest.raises(InputError, match="'' is no whole piece"):
        found("a part of it", "")


@pytest.mark.parametrize("level", ["byte", "character", "word"])
def test_words_are_found_in_units_of_all_levels(level):
    tokenizer = Tokenizer.train(["a lovely walk ( part é art )"] * 20, 300, "none", token_level=level)
    ids_L = tokenizer.encode_lines(["a part ( é art ) é walk"])[0]
    for words in ("é", "art", "walk", "é art"):
        found = find_words(tokenizer, ids_L, words)
        assert tokenizer.decode(ids_L[found]).strip() == words


def test_words_of_a_script_without_spaces_are_found_inside_a_line():
    tokenizer = Tokenizer.train(["上海是一个城市", "北京也是一个城市"] * 20, 28, "none")
    ids_L = tokenizer.encode_lines(["上海是一个城市"])[0]
    assert "".join(tokenizer.pieces[i] for i in ids_L[find_words(tokenizer, ids_L, "城市")]) == "城市"


@pytest.mark.parametrize("text", ['She said "___" to him', "(___)", "“___” [___]", "he said:___."])
def test_a_gap_between_punctuation_is_filled_without_a_space(text):
    (drawn,) = xlnet_jax.generate("tiny", text, temperature=0.0)
    parts = text.split("___")
    assert drawn.text.startswith(parts[0])
    assert drawn.text.endswith(parts[-1])
    assert drawn.text[len(parts[0])] not in " _"

"""Words are found in a text, and hidden ones are predicted with the likeliest pieces in their place."""

import itertools

import pytest

import xlnet_jax
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax import InputError
from xlnet_jax.inference.words import fill_in, find_words

TEXT = "The list of names is new"


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


AROUND = ('"{}" she said', "({}) she said", "{{{}}}", "‘{}’", "«{}»", "a/{}/b", "he said:{}.", "*{}*", "…{}…")


@pytest.fixture(scope="module")
def english():
    return xlnet_jax.load("tiny").tokenizer


def test_a_word_can_be_hidden_between_punctuation_of_all_kinds(english):
    """Pieces of a word after a quote are not those after a space."""
    for text, words in itertools.product(AROUND, ["list of names", "Rain"]):
        ids_L = english.encode_lines([text.format(words)])[0]
        found = find_words(english, ids_L, words)
        hidden = "".join(english.pieces[i] for i in ids_L[found]).lstrip("▁")
        assert hidden == "".join(english.encode_pieces([words])[0]).lstrip("▁"), text


def test_words_are_found_where_they_stand_first_and_by_themselves(english):
    def found(text, words):
        ids_L = english.encode_lines([text])[0]
        positions = find_words(english, ids_L, words)
        before = "".join(english.pieces[i] for i in ids_L[: positions[0]])
        return len(before.replace("▁", " ").lstrip()), "".join(english.pieces[i] for i in ids_L[positions])

    assert found('the "city" and the city', "city") == (5, "city")
    assert found("walking with a walk", "walk") == (len("walking with a"), "▁walk")
    assert found("she walks", "walk")[1] == "▁walk"
    with pytest.raises(InputError, match="'art' does not match whole pieces of the text, which reads: ▁a"):
        found("a part of it", "art")
    with pytest.raises(InputError, match="'' does not match whole pieces"):
        found("a part of it", "")


@pytest.mark.parametrize("level", ["byte", "character", "word"])
def test_words_are_found_in_units_of_all_levels(level):
    tokenizer = Tokenizer.train(["a lovely walk ( part é art )"] * 20, 300, "none", token_level=level)
    ids_L = tokenizer.encode_lines(["a part ( é art ) é walk"])[0]
    for words in ("é", "art", "walk", "é art"):
        assert tokenizer.decode(ids_L[find_words(tokenizer, ids_L, words)]).strip() == words


def test_words_of_a_script_without_spaces_are_found_inside_a_line():
    tokenizer = Tokenizer.train(["上海是一个城市", "北京也是一个城市"] * 20, 28, "none")
    ids_L = tokenizer.encode_lines(["上海是一个城市"])[0]
    assert tokenizer.decode(ids_L[find_words(tokenizer, ids_L, "城市")]) == "城市"

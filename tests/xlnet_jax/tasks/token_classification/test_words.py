"""Words that are given apart become pieces of running text, and long sentences windows that lose none of them."""

import numpy as np
import pytest

from data_pipelines.tokenizer import UNK, Tokenizer
from xlnet_jax.tasks.token_classification.task import Pieces, encode_words, spaces_before, windows

CHINESE = ["春天来了，山上的花都开了。", "火车慢慢地离开了车站。北京站到了。", "我们都抬起头来看天上的月亮。"] * 5


@pytest.fixture(scope="module")
def chinese():
    return Tokenizer.train(CHINESE, 48, "auto")


def pieces_of(words, tokenizer):
    (found,) = encode_words([words], tokenizer)
    return [tokenizer.pieces[i] for i in found.ids], found.places.tolist()


@pytest.mark.parametrize(
    ("words", "spaces"),
    [
        ("It is a dog .", [1, 1, 1, 1, 1]),
        ("I a", [1, 1]),
        ("北 京", [1, 0]),
        ("在 1 9 9 8 年", [1, 0, 0, 0, 0, 0]),
        ("用 iPhone 拍 了", [1, 0, 0, 0]),
        ("北京 说 “ New York ” 。", [1, 0, 0, 1, 1, 1, 0]),
        ("나는 집에 간다", [1, 1, 1]),
    ],
)
def test_spaces_stand_where_running_text_has_them(words, spaces):
    assert spaces_before(words.split()) == [bool(space) for space in spaces]


def test_words_with_spaces_have_the_pieces_of_their_text(english):
    words = "It is a truth universally acknowledged , that Mr Bennet ( aged 50 ) had £ 2,000 a year .".split()
    (found,) = encode_words([words], english)
    np.testing.assert_array_equal(found.ids, english.encode_lines([" ".join(words)])[0])


def test_characters_have_pieces_without_the_spaces_that_their_text_has_not(chinese):
    for text in CHINESE[:3]:
        pieces, places = pieces_of(list(text), chinese)
        assert "".join(pieces) == "▁" + chinese.settings.normalize([text])[0]
        assert not any(piece.startswith("▁") for piece in pieces[1:])
        assert len(places) == len(text)


def test_the_first_piece_of_a_word_is_the_first_with_text(english):
    pieces, places = pieces_of(["She", ".", "“", "ran"], english)
    assert pieces[places[1] - 1 : places[1] + 1] == ["▁", "."]
    assert english.pieces[0] == "<unk>" == pieces[places[2]]
    assert all(pieces[place].strip("▁") for place in places)


@pytest.mark.parametrize("nothing", ["\x07", "\u200b", "\u3000", ""])
def test_a_word_that_normalisation_leaves_nothing_of_is_unknown_and_keeps_its_place(english, chinese, nothing):
    for tokenizer, words in ((english, ["a", nothing, "b"]), (chinese, ["山", nothing, "花"]), (english, [nothing])):
        (found,) = encode_words([words], tokenizer)
        assert len(found.places) == len(words)
        assert found.ids[found.places[words.index(nothing)]] == UNK
        assert len(set(found.places.tolist())) == len(words)


@pytest.mark.parametrize("seed", range(5))
def test_every_word_is_labelled_once_with_text_on_both_sides(seed):
    rng = np.random.default_rng(seed)
    room = int(rng.integers(1, 40))
    lengths = rng.integers(1, 6, rng.integers(1, 120))
    places = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    labelled = []
    for window in windows(Pieces(np.arange(total, dtype=np.int32), places), room):
        assert window.end - window.begin == min(room, total)
        for word in range(window.first_word, window.last_word):
            place = int(places[word])
            assert window.begin <= place < window.end
            assert place - window.begin >= min(place, room // 4 - 1)
            assert window.end - 1 - place >= min(total - 1 - place, room // 4 - 1)
            labelled.append(word)
    assert labelled == list(range(len(places)))

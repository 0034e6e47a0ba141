"""Tokenizers of words, characters and bytes: one class, with other units."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.tokenizer import CLS, EOD, SEP, SPECIAL_PIECES, UNK, Tokenizer, TokenizerSettings
from data_pipelines.tokenizer.pieces import PieceTables

LINES = ["the cat sat on the mat .", "the dog sat , and the cat ran .", "a dog ran"] * 20
BYTES = Tokenizer.train([], 1, "auto", token_level="byte")


@pytest.fixture(scope="module")
def words():
    return Tokenizer.train(LINES, len(SPECIAL_PIECES) + 5, "english", token_level="word")


@pytest.fixture(scope="module")
def characters():
    return Tokenizer.train(LINES, 100, "english", token_level="character")


def test_every_level_has_the_special_symbols_at_their_ids_and_is_kept_with_its_level(words, characters, tmp_path):
    for tokenizer in (words, characters, BYTES):
        level = tokenizer.settings.token_level
        assert tuple(tokenizer.pieces[: len(SPECIAL_PIECES)]) == SPECIAL_PIECES
        tokenizer.save(tmp_path / level)
        for same in (Tokenizer.load(tmp_path / level), pickle.loads(pickle.dumps(tokenizer))):
            assert same.settings == tokenizer.settings
            assert same.sha256 == tokenizer.sha256
        assert Tokenizer(tokenizer.model, TokenizerSettings()).sha256 != tokenizer.sha256


def test_words_are_the_most_frequent_ones_and_each_other_one_is_unknown_by_itself(words):
    assert set(words.pieces[len(SPECIAL_PIECES) :]) <= {"▁the", "▁cat", "▁sat", "▁dog", "▁ran", "▁."}
    assert "▁the" in words.pieces
    ids = words.encode_lines(["the mat and on the", "the the", "zebras"])
    assert [(line == UNK).tolist() for line in ids] == [[False, True, True, True, False], [False, False], [True]]
    assert words.encode_pieces(["the mat and the"]) == [["▁the", "▁mat", "▁and", "▁the"]]
    assert words.decode(words.encode_lines(["the cat"])[0]) == "the cat"
    assert words.tables.has_space[ids[0]].all()
    assert words.is_word_start[ids[0]].all()
    every = Tokenizer.train([*LINES, "the <unk> dog"], 1000, "english", token_level="word")
    assert every.vocab_size == len(SPECIAL_PIECES) + 11
    assert (every.encode_lines(["the <unk> dog"])[0] == UNK).tolist() == [False, True, False]  # as in WikiText-103


def test_characters_are_those_of_the_text_and_each_other_one_is_unknown_by_itself(characters):
    known = characters.pieces[len(SPECIAL_PIECES) :]
    assert sorted(known) == sorted({*"".join(LINES).replace(" ", ""), "▁"})
    ids = characters.encode_lines(["the zebra"])[0]
    assert characters.encode_pieces(["the zebra"]) == [["▁", *"the", "▁", *"zebra"]]
    assert [i == UNK for i in ids] == [c in "zb" for c in " the zebra"]
    assert characters.encode_pieces(["xyz"]) == [["▁", "x", "y", "z"]]
    assert characters.decode(characters.encode_lines(["a cat ."])[0]) == "a cat ."


TEXTS = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \t\n▁<0x>eop\u0301")), max_size=30)


@given(TEXTS)
@settings(deadline=None)
def test_bytes_come_back_as_they_were_white_space_and_all(text):
    ids = BYTES.encode_lines([text])[0]
    assert BYTES.decode(ids) == text
    if "<eop>" not in text:
        encoded = f" {text}".encode() if text else b""
        assert bytes((ids - len(SPECIAL_PIECES)).tolist()) == encoded


def test_bytes_need_no_text_and_no_number():
    assert BYTES.vocab_size == len(SPECIAL_PIECES) + 256
    assert BYTES.sha256 == Tokenizer.train(LINES, 5000, "none", token_level="byte").sha256
    english = Tokenizer.train(LINES, 5000, "english", token_level="byte")
    assert english.decode(english.encode_lines(["a  caf\u00e9"])[0]) == "a cafe"


@pytest.mark.parametrize("level", ["piece", "word", "character", "byte"])
def test_characters_bytes_and_words_of_a_text_are_counted_by_its_ids(level, words, characters, trained):
    tokenizer = {"piece": trained, "word": words, "character": characters, "byte": BYTES}[level]
    line = "the cat sat on the mat ." if level == "word" else "a dog sat on the mat."
    if level == "byte":
        line = "Käse , 世界 , naïve 🎉"
    ids = tokenizer.encode_lines([line])[0]
    tables = tokenizer.tables
    assert tables.has_space[ids].sum() == len(line.split())
    known = ids != UNK
    if known.all():
        assert tables.characters[ids].sum() == len(line) + 1  # a space before the first word
        assert tables.bytes[ids].sum() == len(line.encode()) + 1
    else:
        assert tables.characters[ids[~known]].tolist() == [1] * (~known).sum()
    assert tables.characters[[SEP, CLS, EOD]].sum() == tables.bytes[[SEP, CLS, EOD]].sum() == 0


def words_of(tokenizer, line):
    """Return the text of each word, cut where words start."""
    ids = tokenizer.encode_lines([line])[0]
    return [tokenizer.decode(word) for word in np.split(ids, np.flatnonzero(tokenizer.is_word_start[ids]))[1:]]


def test_a_word_of_characters_or_bytes_begins_with_its_space_and_marks_stand_alone(characters):
    assert words_of(characters, "the cat , ran .") == ["the", "cat", "", ",", "ran", "", "."]
    words = [*"The na\u00efve cat ,".split(), "", "\u4e16", "\u754c"]
    assert words_of(BYTES, "The na\u00efve cat, \u4e16\u754c") == words


def test_sentences_of_bytes_begin_where_those_of_characters_do():
    line = 'It is. He said: "No." She ran! and \u00c9mile? \u00c9 was. \u4e16\u754c\u3002'
    ids = BYTES.encode_lines([line])[0]
    by_byte = [BYTES.decode(ids[i:])[:3] for i in np.flatnonzero(BYTES.tables.sentence_starts(ids))]
    assert by_byte == ["He ", "She", "\u00c9 w", "\u4e16\u754c\u3002"]
    pieces = [*SPECIAL_PIECES, *sorted({"▁", *line.replace(" ", "▁")})]
    tables = PieceTables.of(pieces)
    of_characters = np.array([pieces.index(c) for c in ("▁" + line).replace(" ", "▁")])
    by_character = [line[i:][:3] for i in np.flatnonzero(tables.sentence_starts(of_characters))]
    assert by_character == by_byte

"""The ids of a line do not depend on its length, on the other lines, or on the number of threads."""

import io
import re

import numpy as np
import pytest
import sentencepiece

from data_pipelines.tokenizer import UNK, Tokenizer, TokenizerSettings, model, normalize
from data_pipelines.tokenizer.training import RECIPES


def trained_with(lines, remove_space=True, **options):
    """Train a tokenizer with XLNet's symbols but other SentencePiece options than ours."""
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=file,
        vocab_size=1000,
        minloglevel=2,
        **{**RECIPES["piece"], **options},
    )
    return Tokenizer(file.getvalue(), TokenizerSettings("none", split_digit_commas=False, remove_space=remove_space))


def test_flat_ids_are_the_lines_behind_each_other(english, novels):
    lines = ["", *novels[:30], "", "It cost 3,000, or 14, or 1,", ""]
    rows = english.encode_lines(lines)
    ids, lengths = english.encode_flat(lines)
    assert (ids.dtype, lengths.dtype) == (np.int32, np.int64)
    assert lengths.tolist() == [len(row) for row in rows]
    assert np.array_equal(ids, np.concatenate(rows))
    ids, lengths = english.encode_flat([])
    assert (ids.dtype, ids.shape, lengths.shape) == (np.int32, (0,), (0,))


def test_digits_and_commas_are_split_in_every_line_that_has_them(reference):
    content = (reference / "data" / "spiece_digitcomma.model").read_bytes()
    split, whole = (
        Tokenizer(content, TokenizerSettings()),
        Tokenizer(content, TokenizerSettings(split_digit_commas=False)),
    )
    lines = ["1,000 and 2,", "no digits", "", "in 1999, 3, 4,", "10,", "the end"]
    alone = [split.encode_lines([line])[0].tolist() for line in lines]
    assert [ids.tolist() for ids in split.encode_lines(lines)] == alone
    kept = [ids.tolist() for ids in whole.encode_lines(lines)]
    changed = [a != k for a, k in zip(alone, kept, strict=True)]
    assert any(changed)
    assert not changed[1]
    for ids in alone:
        assert not any(len(p) > 1 and p.endswith(",") and p[-2].isdigit() for p in (split.pieces[i] for i in ids))
    assert [split.decode(np.array(ids)) for ids in alone] == lines


def test_pieces_are_the_texts_of_the_ids_and_show_what_is_unknown(english, novels, reference):
    with_unknown = [*novels[:50], "tea 茶叶 and ☂, ☂", "", "☂" * 3]
    for line, ids, pieces in zip(
        with_unknown, english.encode_lines(with_unknown), english.encode_pieces(with_unknown), strict=True
    ):
        known = [(english.pieces[i], piece) for i, piece in zip(ids, pieces, strict=True) if i != UNK]
        assert all(ours == theirs for ours, theirs in known)
        assert "".join(pieces).replace("▁", " ").strip() == normalize(line, "english")
    digits = Tokenizer.load(reference / "data" / "spiece_digitcomma.model")
    line = "In 1,000 or 2,500 ☂, 1943,"
    assert "".join(digits.encode_pieces([line])[0]).replace("▁", " ").strip() == line
    assert len(digits.encode_pieces([line])[0]) == len(digits.encode_lines([line])[0])


# ---- long lines -----------------------------------------------------------------------------------------------------


def in_parts(tokenizer, lines, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(model, "LONG_LINE", 20)
        patch.setattr(model, "PART", re.compile(model.PART.pattern.replace("65536", "20"), re.DOTALL))
        parts, _ = tokenizer._in_parts(tokenizer.settings.normalize(lines))
        return tokenizer.encode_lines(lines), len(parts)


ODD = [
    "a. (b) <eop> c.<eop>d - e",
    ". . ( ( -",
    "<eop><eop> <eop>",
    "word " * 20,
    "x" * 100,
    "x" * 100 + " y " + "z" * 100,
    " leading and trailing spaces of a line ",
    "two  spaces   and more    between the words  of a line",
    "in 1,000, or 2,000, of 3, and 4, the digits and commas are split",
    "",
]


@pytest.mark.parametrize(
    "options", [{}, {"remove_extra_whitespaces": False}, {"normalization_rule_name": "identity"}], ids=str
)
def test_a_long_line_in_parts_has_the_ids_of_the_whole(novels, monkeypatch, options):
    tokenizer = trained_with(novels[:500], remove_space=not options, **options)
    lines = [*ODD, *novels[:200]]
    rows, num_parts = in_parts(tokenizer, lines, monkeypatch)
    assert num_parts > 5 * len(lines)
    for line, row, whole in zip(lines, rows, tokenizer.encode_lines(lines), strict=True):
        assert np.array_equal(row, whole), line


def test_models_whose_pieces_depend_on_the_words_around_get_lines_whole(novels, monkeypatch):
    tokenizer = trained_with(novels[:500], treat_whitespace_as_suffix=True)
    rows, num_parts = in_parts(tokenizer, novels[:50], monkeypatch)
    assert num_parts == 50
    assert all(map(np.array_equal, rows, tokenizer.encode_lines(novels[:50])))


def test_lines_around_a_long_one_keep_their_places(english, novels):
    long = " ".join(novels)
    assert len(long) > 3 * model.LONG_LINE
    alone = [english.encode_lines([line])[0] for line in ("before", long, "", "behind")]
    together = english.encode_lines(["before", long, "", "behind"])
    assert all(map(np.array_equal, together, alone))
    assert np.array_equal(together[1], np.concatenate(english.encode_lines(novels)))

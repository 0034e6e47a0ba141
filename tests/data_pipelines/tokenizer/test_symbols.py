"""Vocabularies of symbols: counted from lines of records, encoded and decoded field by field, saved and loaded."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_pipelines.records import KEY, MISSING, RecordFormat
from data_pipelines.tokenizer import SPECIAL_PIECES, SYMBOLS_JSON, UNK, Tokenizer
from xlnet_jax.errors import InputError

RECEPTORS = RecordFormat(("v:word", "cdr3:character", "j:word"))
LINES = ["TRBV9\tCASSF\tTRBJ1-1", "TRBV2\tCAF\tTRBJ1-1", "TRBV9\tCAWF\tTRBJ2-7"]
FIRST = len(SPECIAL_PIECES)


@pytest.fixture(scope="module")
def receptors():
    return Tokenizer.of_symbols(LINES, RECEPTORS)


def test_pieces_are_those_of_each_field_by_frequency_with_an_unknown_symbol_each(receptors):
    assert receptors.pieces[FIRST:] == [
        "v:TRBV9", "v:TRBV2", "cdr3:<unk>", "cdr3:A", "cdr3:C", "cdr3:F", "cdr3:S", "cdr3:W", "j:<unk>", "j:TRBJ1-1",
        "j:TRBJ2-7",
    ]  # fmt: skip
    assert receptors.field_of_V[FIRST:].tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2]
    assert [receptors.pieces[i] for i in receptors.unknown_ids] == ["<unk>", "cdr3:<unk>", "j:<unk>"]
    assert receptors.records == RECEPTORS


def test_every_symbol_begins_a_word_and_none_a_sentence(receptors):
    assert receptors.is_word_start.all()
    everything = np.arange(receptors.vocab_size)
    assert not receptors.tables.sentence_starts(everything).any()
    assert receptors.tables.characters[FIRST:].tolist() == [1] * (receptors.vocab_size - FIRST)


def test_a_line_becomes_the_symbols_of_its_fields_in_order_and_again_the_line(receptors):
    assert receptors.encode_pieces(LINES[:1]) == [
        ["v:TRBV9", "cdr3:C", "cdr3:A", "cdr3:S", "cdr3:S", "cdr3:F", "j:TRBJ1-1"]
    ]
    ids, lengths = receptors.encode_flat(["", *LINES, ""])
    assert lengths.tolist() == [0, 7, 5, 6, 0]
    ends = np.cumsum(lengths)[1:4]
    assert [receptors.decode(part) for part in np.split(ids, ends)[:3]] == LINES
    with_key = [f"{line}{KEY}family {i}" for i, line in enumerate(LINES)]
    np.testing.assert_array_equal(receptors.encode_flat(with_key)[0], ids)


def test_unknown_symbols_keep_their_field(receptors):
    (ids,) = receptors.encode_lines([f"TRBV77\tCAX\t{MISSING}"])
    assert receptors.field_of_V[ids].tolist() == [0, 1, 1, 1, 2]
    assert ids[0] == UNK
    assert ids[3] == receptors.unknown_ids[1]
    assert ids[4] == receptors.unknown_ids[2]
    assert receptors.encode_pieces(["TRBV77\tCAX\tTRBJ1-1"]) == [["TRBV77", "cdr3:C", "cdr3:A", "X", "j:TRBJ1-1"]]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no error
@given(
    st.lists(st.lists(st.sampled_from(["a", "bb", "日本", "x▁y", "0"]), min_size=1, max_size=6), min_size=1, max_size=9)
)
def test_items_of_any_script_come_back(rows):
    lines = [" ".join(row) for row in rows]
    tokenizer = Tokenizer.of_symbols(lines, RecordFormat(("items:item",)))
    ids, lengths = tokenizer.encode_flat(lines)
    assert lengths.tolist() == list(map(len, rows))
    assert UNK not in ids
    assert [tokenizer.decode(part) for part in np.split(ids, np.cumsum(lengths)[:-1])] == lines


def test_a_regular_expression_and_a_named_alphabet_cut_symbols():
    molecules = Tokenizer.of_symbols(["CC(=O)Cl", "c1ccccc1[nH+]"], RecordFormat(("smiles:smiles",)))
    assert molecules.encode_pieces(["CCl[nH+]"]) == [["C", "Cl", "[nH+]"]]
    notes = Tokenizer.of_symbols(["C4D#4", "G5"], RecordFormat((r"notes:/[A-G]#?\d/",)))
    assert notes.encode_pieces(["D#4C4"]) == [["D#4", "C4"]]
    proteins = Tokenizer.of_symbols(["MK"], RecordFormat(("sequence:protein",)))
    assert proteins.vocab_size == FIRST + 25, "all symbols of a named alphabet, also those that the text lacks"


def test_rare_symbols_are_unknown():
    tokenizer = Tokenizer.of_symbols(["a a b", "a c c"], RecordFormat(("items:item",)), min_count=2)
    assert tokenizer.pieces[FIRST:] == ["a", "c"]
    with pytest.raises(InputError, match="no symbol of 'items' occurs so often"):
        Tokenizer.of_symbols(["a b"], RecordFormat(("items:item",)), min_count=2)


def test_last_symbols_that_are_held_out_are_not_in_the_vocabulary():
    items = Tokenizer.of_symbols(["a b", "", "a c", "d"], RecordFormat(("items:item",)), holds_out_last=True)
    assert items.pieces[FIRST:] == ["a"]
    several = Tokenizer.of_symbols(LINES, RecordFormat(("v:word", "cdr3:character", "j:word")), holds_out_last=True)
    assert several.pieces[-2:] == ["j:TRBJ1-1", "j:TRBJ2-7"], "a field of one symbol needs a vocabulary too"


def test_the_lengths_of_the_training_records_have_probabilities(receptors):
    lengths = [receptors.symbols.log_prob_of_lengths((1, n, 1)) for n in range(1, 6)]
    assert math.fsum(map(math.exp, lengths)) == pytest.approx(1)
    assert lengths[2] == pytest.approx(math.log(2 / 8))  # one of three records has 3 symbols, and the longest has 5


def test_a_folder_keeps_the_tokenizer(tmp_path, receptors):
    receptors.save(tmp_path / "tokenizer")
    assert [file.name for file in (tmp_path / "tokenizer").iterdir()] == [SYMBOLS_JSON]
    for again in (Tokenizer.load(tmp_path / "tokenizer"), pickle.loads(pickle.dumps(receptors))):
        assert again.sha256 == receptors.sha256
        assert again.records == RECEPTORS
    other = Tokenizer.of_symbols([*LINES, "TRBV1\tC\tTRBJ1-1"], RECEPTORS)
    assert other.sha256 != receptors.sha256


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"symbols": 3}', "is damaged"),
        ('{"symbols": {"a:word": ["x"]}}', "it has no .lengths."),
        ('{"symbols": {', "is damaged"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, says):
    (tmp_path / SYMBOLS_JSON).write_text(content)
    with pytest.raises(InputError, match=f"tokenizer {tmp_path}.*{says}"):
        Tokenizer.load(tmp_path)


def test_a_line_with_other_fields_is_refused(receptors):
    with pytest.raises(InputError, match=r"the record 'CASSF' has 1 fields, not the 3 of the tokenizer: v, cdr3, j"):
        receptors.encode_lines(["CASSF"])


def test_symbols_of_another_kind_are_refused_as_text_in_another_script_is(receptors):
    with pytest.raises(InputError, match=r"my.tsv: the tokenizer does not know 83% of the symbols"):
        receptors.require_known(["IGHV1\tGGGF\tIGHJ1"] * 9, "my.tsv")
    assert receptors.require_known(LINES * 99_999, "my.tsv") == 0

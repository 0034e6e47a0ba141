"""A record is a line: fields in order, symbols of each level, and what is wrong with a value."""

import re
from pathlib import Path

import pytest

from data_pipelines.records import ALPHABETS, FIELD, KEY, MISSING, PATTERNS, SPACED, RecordField, RecordFormat
from xlnet_jax.errors import InputError

VALUES = [
    # level, value, its form, its symbols
    ("character", "to be", "to▁be", [*"to▁be"]),
    ("character", [*"to be"], "to▁be", [*"to▁be"]),
    ("character", "\u201cJa\u201d", "\u201cJa\u201d", [*"\u201cJa\u201d"]),
    ("word", "red  green\tblue", "red green blue", ["red", "green", "blue"]),
    ("word", ["New York", "Bath"], "New▁York Bath", ["New▁York", "Bath"]),
    ("word", 1.5, "", []),
    ("item", 12, "12", ["12"]),
    ("item", [12, "b 7", -3], "12 b▁7 -3", ["12", "b▁7", "-3"]),
    ("item", "12 13.a v1.5", "12 13.a v1.5", ["12", "13.a", "v1.5"]),
    ("protein", "mkVX", "MKVX", [*"MKVX"]),
    ("dna", "ACGUN", "ACGUN", [*"ACGUN"]),
    ("smiles", "C[C@@H](Cl)Br%12c1", "C[C@@H](Cl)Br%12c1", ["C", "[C@@H]", "(", "Cl", ")", "Br", "%12", "c", "1"]),
    (r"/[A-G]#?\d/", "C4D#4A3", "C4D#4A3", ["C4", "D#4", "A3"]),
]


@pytest.mark.parametrize(("level", "value", "form", "symbols"), VALUES)
def test_a_value_has_a_form_in_a_line_that_gives_its_symbols(level, value, form, symbols):
    field = RecordField.of(f"x:{level}")
    assert field.text_of(value)[0] == form
    if form:
        assert field.text_of(value)[1] == ""
        assert field.symbols(form) == symbols


WRONG = [
    ("protein", "MKJV", "has the symbol 'J' in 'x', outside the alphabet protein"),
    ("protein", "MK VA", "has the symbol ' ' in 'x', outside the alphabet protein"),
    ("dna", "ACGE", "has the symbol 'E' in 'x', outside the alphabet dna"),
    ("smiles", "CC!O", "has '!O' in 'x', outside the alphabet smiles"),
    ("/[A-G]/", "ABH", "has 'H' in 'x', outside the alphabet /[A-G]/"),
    ("item", 1.5, "has 1.5 in 'x', a float; write it as text or as a whole number"),
    ("item", [1, 2.0], "has 2.0 in 'x', a float; write it as text or as a whole number"),
    ("item", float("nan"), "has nan in 'x', a float; write it as text or as a whole number"),
    ("item", "12 3.0 4", "has 3.0 in 'x', a float; round it, or read it with the level word"),
    ("word", True, "has True in 'x', not text"),
    ("word", {"a": 1}, "has {'a': 1} in 'x', not text"),
    ("word", b"a", "has b'a' in 'x', not text"),
    ("protein", "", "has nothing in 'x'"),
    ("protein", " \t", "has nothing in 'x'"),
    ("item", None, "has nothing in 'x'"),
    ("item", [], "has nothing in 'x'"),
    ("item", [1, None, 2], "has nothing at 2 in 'x'"),
    ("item", ["1", "", "2"], "has nothing at 2 in 'x'"),
]


@pytest.mark.parametrize(("level", "value", "fault"), WRONG)
def test_what_is_wrong_with_a_value_is_said(level, value, fault):
    assert RecordField.of(f"x:{level}").text_of(value)[1] == fault


def test_a_line_holds_the_fields_in_order_and_the_key():
    records = RecordFormat(("v:word", "cdr3:protein", "items:item"), key="family")
    assert records.columns == ("v", "cdr3", "items", "family")
    line, fault = records.line_of(["TRBV1 a", "cass", [1, 2]], "F  7")
    assert (line, fault) == (f"TRBV1 a{FIELD}CASS{FIELD}1 2{KEY}F 7", "")
    for missing in (None, " "):
        assert records.line_of(["v", "C", "1"], missing)[1] == "has nothing in 'family'"
    assert RecordFormat(("a",), group_by="a", key="a").columns == ("a",)


def test_unknown_symbols_and_missing_values_are_counted_if_asked_but_no_float_and_no_empty_record():
    strict, lenient = (RecordFormat(("a:protein", "b:item"), unknown=unknown) for unknown in ("refuse", "count"))
    for values, line, fault in (
        (["MKJ", "1"], f"MKJ{FIELD}1", "has the symbol 'J'"),
        ([None, "1"], f"{MISSING}{FIELD}1", "has nothing in 'a'"),
        (["MK", [1, None]], f"MK{FIELD}1 {MISSING}", "has nothing at 2 in 'b'"),
    ):
        assert strict.line_of(values)[1].startswith(fault)
        assert lenient.line_of(values) == (line, "")
    assert lenient.line_of(["MK", 1.5])[1].startswith("has 1.5 in 'b', a float")
    assert lenient.line_of(["MK", "1.5"])[1].startswith("has 1.5 in 'b', a float")
    assert lenient.line_of(["", None])[1] == "has nothing in 'a'"
    assert lenient.parsed[0].symbols("MKJ") == [*"MKJ"]
    assert lenient.parsed[0].symbols(MISSING) == [MISSING]
    assert RecordField.of("x:smiles").symbols("CC!Cl") == ["C", "C", "!", "Cl"]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            "x:letter",
            "`fields` x:letter: give NAME:LEVEL, where LEVEL is character, word, item, protein, dna, smiles or",
        ),
        (":item", "`fields` :item: give NAME:LEVEL"),
        ("x:/[a/", "`fields` x:/[a/ has no regular expression (unterminated character set at position 0)"),
        ("x:/(a|b)/", "`fields` x:/(a|b)/ must match a symbol, not an empty text; write groups as (?:…)"),
        ("x:/a*/", "`fields` x:/a*/ must match a symbol, not an empty text; write groups as (?:…)"),
        ("x:item x:word", "`fields` x:item x:word names a field twice"),
    ],
)
def test_fields_that_mean_nothing_are_refused(fields, line):
    with pytest.raises(InputError, match=re.escape(line)):
        _ = RecordFormat(tuple(fields.split())).parsed


def test_the_page_lists_every_level_with_its_alphabet():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    rows = re.findall(r"^\| `([^`]+)`(?: \(the default\))? \| (.*) \|$", page.partition("| level |")[2], re.MULTILINE)
    levels = {"character", *SPACED, *ALPHABETS, *PATTERNS, "/REGULAR EXPRESSION/"}
    assert levels == {level for level, _ in rows[: len(levels)]}
    assert all(f"`{ALPHABETS[level]}`" in text for level, text in rows if level in ALPHABETS)

"""Files of every format, and values from Python, become lines of records; each mistake in them is one line that names
file and place."""

import bz2
import contextlib
import gzip
import json
import lzma
import pickle
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines import readers, record_files, sources
from data_pipelines.faults import Faults
from data_pipelines.record_files import MemoryRecords, fields_of
from data_pipelines.records import FIELD, KEY, RecordFormat
from tests.web import Web, serving
from xlnet_jax.errors import InputError

COMPRESS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd.compress, ".bz2": bz2.compress}
FASTA = """
; a comment
>sp|P1|HBB_HUMAN Beta chain OS=Homo sapiens GN=HBB SV=2
mkva
LX*
>P2 OS=Mus musculus

MST NPK
>P3 none
A*
"""


def form(fields, **given):
    return RecordFormat(tuple(fields.split()), **given)


def found(folder, name, content, records):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, pa.Table):
        pq.write_table(content, path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return sources.find([str(path)], records=records)


def lines_of(units):
    text = "".join(chunk for source in units for unit in source.units for chunk in unit.chunks(Faults()))
    assert not text or text.endswith("\n\n")
    return text.split("\n\n")[:-1]


PAIRS = form("a:protein b:word")
BOTH = [f"MKV{FIELD}x y", f"MM{FIELD}z, w"]
READ = {
    "FASTA": ("p.fasta", FASTA, form("s:protein"), ["MKVALX", "MSTNPK", "A"]),
    "FASTA by another end": ("p.fa", ">a\nMK\n>b\nV\n", form("s:protein"), ["MK", "V"]),
    "FASTA as it stands": ("p.faa", ">a\nmK\n", form("s:character"), ["mK"]),
    "FASTA, a column of its headers": ("p.fasta", ">a b OS=Mus musculus X=1\nMK\n>c OS=Rat\nV\n",
                                       form("s:protein", key="OS"), [f"MK{KEY}Mus musculus", f"V{KEY}Rat"]),
    "FASTA, its ids": ("p.fasta", ">a b\nMK\n", form("s:protein", key="id"), [f"MK{KEY}a"]),
    "CSV": ("t.csv", 'b, a,c\nx y,MKV,1\n"z, w",MM,2\n', PAIRS, BOTH),
    "CSV with a line end in a cell": ("t.csv", 'a,b\nMKV,"x\ny"\n\nMM,"z, w"\n', PAIRS, BOTH),
    "CSV with semicolons": ("t.csv", "a;b\nMKV;x y\nMM;z, w\n", PAIRS, BOTH),
    "CSV of one column": ("t.csv", "a\n1 2\n3\n", form("a:item"), ["1 2", "3"]),
    "CSV without a header": ("t.csv", 'MKV,"x y"\nMM,"z, w"\n', form("1:protein 2:word"), [*BOTH]),
    "CSV with columns named by numbers": ("t.csv", "mutant,2500\nMKV,x\n", form("2500:word mutant:protein"),
                                          [f"x{FIELD}MKV"]),
    "TSV, with a key": ("t.tsv", "a\tb\tfamily\nMKV\tx y\tF1\nMM\tz, w\tF2\n", form("a:protein b:word", key="family"),
                        [f"{BOTH[0]}{KEY}F1", f"{BOTH[1]}{KEY}F2"]),
    "PSV": ("t.psv", "a|b\nMKV|x y\nMM|z, w\n", PAIRS, BOTH),
    "a table of no known end": ("t.txt", "a\tb\nMKV\tx y\nMM\tz, w\n", PAIRS, BOTH),
    "a column of a table of no known end": ("t", "a\tb\nMKV\tx y\nMM\tz, w\n", form("a:protein"), ["MKV", "MM"]),
    "commas without spaces": ("t.txt", "a,b\nMKV,x\n", PAIRS, [f"MKV{FIELD}x"]),
    "white space": ("t.txt", "u  i\n1 5\n\n 2   6 more\n", form("i:item u:item"), [f"5{FIELD}1", f"6{FIELD}2"]),
    "groups": ("v.txt", "1 5\n1 6\n2 7\n10 5\n10 8\n", form("2:item", group_by="1"), ["5 6", "7", "5 8"]),
    "groups of several columns": ("v.csv", "u,i,shop\na,5,New York\na,6,Bath\nb,7,Bath\n",
                                  form("i:item shop:word", group_by="u", key="u"),
                                  [f"5 6{FIELD}New▁York Bath{KEY}a", f"7{FIELD}Bath{KEY}b"]),
    "lines": ("s.txt", "\ufeffMKV\r\n\r\n  MM \r\n", form("s:protein"), ["MKV", "MM"]),
    "lines below the name of their field": ("s.txt", "s\nMKV\n", form("s:protein"), ["MKV"]),
    "lines of words": ("melody", "C4 D4\nE4\n", form("notes:word"), ["C4 D4", "E4"]),
    "molecules": ("m.smi", "CCO ethanol\nC[C@H](N)Cl\n", form("s:smiles"), ["CCO", "C[C@H](N)Cl"]),
    "JSON Lines": ("v.jsonl", '{"i": [5, "b c"], "u": "x"}\n\n{"u": "y", "i": 7}\n', form("i:item u:word"),
                   [f"5 b▁c{FIELD}x", f"7{FIELD}y"]),
    "JSON Lines in groups": ("v.json", '{"i": [5, 6], "u": 1}\n{"i": 7, "u": 1}\n{"i": 8, "u": 2}\n',
                             form("i:item", group_by="u"), ["5 6 7", "8"]),
    "JSON Lines without a value": ("v.jsonl", '{"i": 5, "u": "x"}\n{"u": "y"}\n',
                                   form("i:item u:word", unknown="count"), [f"5{FIELD}x", f"\ufffd{FIELD}y"]),
    "Parquet": ("v.parquet", pa.table({"i": [[5, 6], [7]], "z": [0.5, 1], "u": ["x", "y"]}), form("u:word i:item"),
                [f"x{FIELD}5 6", f"y{FIELD}7"]),
    "Parquet in groups": ("v.parquet", pa.table({"i": [5, 6, 7], "u": [1, 1, 2]}), form("i:item", group_by="u"),
                          ["5 6", "7"]),
    "unknown symbols, counted": ("s.txt", "MKJ\n", form("s:protein", unknown="count"), ["MKJ"]),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_each_format_becomes_lines(tmp_path, case):
    name, content, records, lines = READ[case]
    units = found(tmp_path, name, content, records)
    assert lines_of(units) == lines
    assert [row.text for row in sources.read_texts(units, "document")] == [line.partition(KEY)[0] for line in lines]
    assert [line for line in sources.read_lines(units) if line] == lines
    assert list(sources.read_lines(units))[1::2] == [sources.DOCUMENT_END] * len(lines)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(case=st.sampled_from(list(READ)), place=st.floats(0, 1), byte=st.sampled_from(b'\0\t\n\r ",;>*[{5\xe9\xff'))
def test_a_damaged_file_is_read_or_refused(tmp_path_factory, case, place, byte):
    name, content, records, _ = READ[case]
    folder = tmp_path_factory.mktemp("damaged")
    units = found(folder, name, content, records)
    damaged = bytearray((folder / name).read_bytes())
    damaged[int(place * (len(damaged) - 1))] = byte
    (folder / name).write_bytes(damaged)
    with contextlib.suppress(InputError):
        lines = lines_of(units)
        assert all(line.split(KEY)[0].count(FIELD) == len(records.fields) - 1 for line in lines)


@pytest.mark.parametrize("end", COMPRESS)
@pytest.mark.parametrize("case", ["FASTA by another end", "CSV", "groups", "JSON Lines"])
def test_compressed_records_are_read(tmp_path, case, end):
    name, content, records, lines = READ[case]
    assert lines_of(found(tmp_path, name + end, COMPRESS[end](content.encode()), records)) == lines


def test_records_on_the_web_are_read(tmp_path):
    pytest.importorskip("aiohttp", reason="the extra [https] is not installed")
    with serving(Web()) as web:
        web.files["/p.fasta.gz"] = gzip.compress(b">a\nMK\n>b\nV\n")
        web.types["/p.fasta.gz"] = "application/octet-stream"
        assert lines_of(sources.find([f"{web.url}/p.fasta.gz?x=1"], records=form("s:protein"))) == ["MK", "V"]


def test_long_files_are_streamed_with_records_and_groups_across_the_blocks(tmp_path, monkeypatch):
    for module in (readers, record_files):
        monkeypatch.setattr(module, "CHUNK_BYTES", 64)
    fasta = "".join(f">r{i}\n{'MKV' * i}\n{'ACD' * i}\n" for i in range(1, 40))
    units = found(tmp_path, "p.fasta", fasta, form("s:protein"))
    assert lines_of(units) == ["MKV" * i + "ACD" * i for i in range(1, 40)]
    assert len(list(units[0].units[0].chunks(Faults()))) > 20
    views = "".join(f"{user}\t{item}\n" for user in range(30) for item in range(user + 1))
    units = found(tmp_path, "v.tsv", views, form("2:item", group_by="1"))
    assert lines_of(units) == [" ".join(map(str, range(user + 1))) for user in range(30)]


def test_a_row_has_its_place_and_id(tmp_path):
    for name, content, records, id_field, places in (
        ("p.fasta", FASTA, form("s:protein", key="GN"), None,
         [("record 1 (sp|P1|HBB_HUMAN)", "sp|P1|HBB_HUMAN"), ("record 2 (P2)", "P2"), ("record 3 (P3)", "P3")]),
        ("t.csv", "a,n\nMK,7\nV,8\n", form("a:protein"), "n", [("line 2 (7)", "7"), ("line 3 (8)", "8")]),
        ("t.csv", "a,n\nMK,7\n", form("a:protein"), None, [("line 2", None)]),
        ("v.txt", "1 5\n1 6\n2 7\n", form("2:item", group_by="1"), None, [("line 1 (1)", "1"), ("line 3 (2)", "2")]),
        ("v.jsonl", '{"i": 5, "n": 3}\n', form("i:item"), "n", [("line 1 (3)", 3)]),
        ("v.parquet", pa.table({"i": [5], "n": ["x"]}), form("i:item"), "n", [("row 1 (x)", "x")]),
    ):  # fmt: skip
        units = found(tmp_path, name, content, records)
        rows = list(sources.read_texts(units, "line", id_field))
        assert [(row.where, row.id) for row in rows] == [(f"text {tmp_path / name}: {p}", id_) for p, id_ in places]


OUTSIDE = "outside the alphabet protein; fix it, or read it as unknown with `unknown` count"
WRONG = [
    # name, content, fields, the line
    ("p.fasta", ">sp|P1|x y\nMKJ\n", form("s:protein"), f"record 1 (sp|P1|x) has the symbol 'J' in 's', {OUTSIDE}"),
    ("p.fasta", ">a\nM*K\n", form("s:protein"), f"record 1 (a) has the symbol '*' in 's', {OUTSIDE}"),
    ("p.fasta", ">a\nMK\n>b\n>c\nM\n", form("s:protein"), "record 2 (b) has nothing in 's'; fix or remove it"),
    ("p.fasta", ">a\n*\n", form("s:protein"), "record 1 (a) has nothing in 's'"),
    ("p.fasta", "\nMKV\n>a\nM\n", form("s:protein"), "line 2 is not a header, > and a name, with which each sequence "
     "of FASTA begins; if it has one sequence on each line, let its name end in .txt"),
    ("p.fasta", ">a\nMK\n", form("s:protein v:word"), "FASTA has no column 'v', only one field of any name, its "),
    ("p.fasta", ">a OS=x\nMK\n>b\nM\n", form("s:protein", key="OS"), "record 2 (b) has nothing in 'OS'"),
    ("p.txt", ">a\nMK\n>b\nM\n", form("s:character"), "it is FASTA by another name; let its name end in .fasta"),
    ("p.fq", "@r1\nACGT\n+\nIIII\n", form("s:dna"), "it is FASTQ, not a table or FASTA; convert it to FASTA, as with"),
    ("p.txt", '{"s": "MK"}\n{"s": "V"}\n', form("s:dna"), "it is JSON Lines by another name, not a table or FASTA; "),
    ("t.xlsx", b"PK\3\4", form("s:dna"), "it is a spreadsheet, not a table or FASTA; write the column with the text"),
    ("t.csv", "a,c\nMK,1\n", PAIRS, "its first line has no column 'b', only 'a', 'c'; a table without a header has "
     "the columns 1, 2, …, as in `fields` 2:item"),
    ("t.txt", "1 5\n1 6\n", form("item:item", group_by="user"), "its first line has no column 'item', only '1', '5'; "),
    ("t.txt", "1 5\n1 6\n", form("3:item 1:item"), "its first line has no column '3', only '1', '5'; a table"),
    ("t.csv", "a,b\nMK,1\nMM\n", PAIRS, "line 3 has 1 cells, not 2; fix or remove it"),
    ("t.csv", "a,b\nMK,1,2\n", PAIRS, "line 2 has 3 cells, not 2; fix or remove it"),
    ("t.csv", "a,b\nMK,\n", PAIRS, "line 2 has nothing in 'b'; fix it, or read it as unknown with `unknown` count"),
    ("t.csv", "a,b\n,\n", PAIRS, "line 2 has nothing in 'a'; fix or remove it"),
    ("t.csv", "a,p\nMK,3.5\n", form("a:protein p:item"), "line 2 has 3.5 in 'p', a float; round it, or read it with "
     "the level word; fix or remove it"),
    ("t.tsv", 'a\tb\nMK\t"x\nMM\ty\n', PAIRS, "line 3 cannot be read as a row (unexpected end of data); in a cell "
     "that begins with a quote, write quotes twice"),
    ("t.csv", b"a,b\nMK,caf\xe9\n", PAIRS, "line 2 is not UTF-8 (0xe9); convert the file"),
    ("t.csv", "a,b\nMK,x\0y\n", PAIRS, "line 2 contains a zero byte"),
    ("v.txt", "1 5\n2 6\n1 7\n", form("2:item", group_by="1"), "line 3: the group '1' of '1' began before, and is not "
     "contiguous: sort the file by '1'"),
    ("v.csv", "u,i\n1,5\n,6\n", form("i:item", group_by="u"), "line 3 has '' in 'u', which cannot name a group"),
    ("v.csv", "u,i\n1,5\n1\n", form("i:item", group_by="u"), "line 3 has 1 cells, not 2"),
    ("v.csv", "u,i\n1,5\n1,\n", form("i:item", group_by="u"), "line 2 (1) has nothing at 2 in 'i'; fix it, or read "),
    ("v.txt", "1\t5\n1\t6.5\n", form("2:item", group_by="1"), "line 1 (1) has 6.5 in '2', a float; round it"),
    ("v.jsonl", '{"i": 1.5}\n', form("i:item"), "line 1 has 1.5 in 'i', a float; write it as text or as a whole "),
    ("v.jsonl", '{"i": []}\n', form("i:item"), "line 1 has nothing in 'i'; fix or remove it"),
    ("v.jsonl", '{"j": 1}\n', form("i:item"), "line 1 has no field 'i', only 'j'; fix or remove it"),
    ("v.jsonl", '{"i": 1}\n[1, 2]\n', form("i:item"), "line 2 is not a JSON object; write one object on each line"),
    ("v.jsonl", '{"i": 1\n', form("i:item"), "line 1 is not JSON (Expecting ',' delimiter: line 1 column 8 (char 7))"),
    ("v.jsonl", '{"i": "\\ud83d"}\n', form("i:word"), "line 1 contains half a character, \\ud83d; fix it"),
    ("v.jsonl", '{"i": 1, "u": [1]}\n', form("i:item", group_by="u"), "line 1 has [1] in 'u', which cannot name a "),
    ("v.parquet", pa.table({"i": [1]}), form("j:item"), "it has no column 'j', only 'i'"),
    ("v.parquet", pa.table({"i": [1, None]}), form("i:item"), "row 2 has nothing in 'i'; fix or remove it"),
    ("v.parquet", pa.table({"i": [1.0, 2.0]}), form("i:item"), "row 1 has 1.0 in 'i', a float; write it as text or as"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "records", "line"), WRONG)
def test_the_first_fault_of_a_text_to_learn_from_is_one_line(tmp_path, name, content, records, line):
    where = f"text {tmp_path / name}: "
    with pytest.raises(InputError) as error:
        lines_of(found(tmp_path, name, content, records))
    assert str(error.value).startswith(where + line)
    assert "\n" not in str(error.value)


def test_faulty_records_keep_their_place_where_a_model_is_used(tmp_path):
    units = found(tmp_path, "t.csv", "a,b\nMK,x\nMJ,y\nM\n,z\nV,w\n", PAIRS)
    rows = list(sources.read_texts(units, "line"))
    assert [row.text for row in rows] == [f"MK{FIELD}x", "", "", "", f"V{FIELD}w"]
    assert [row.fault for row in rows] == [
        "", "has the symbol 'J' in 'a', outside the alphabet protein", "has 1 cells, not 2", "has nothing in 'a'", ""
    ]  # fmt: skip
    objects = found(tmp_path, "v.jsonl", '{"n": 7}\n{"i": 1.5, "n": 8}\n{"i": 1, "n": 9}\n', form("i:item"))
    assert [row.id for row in sources.read_texts(objects, "line", "n")] == [7, 8, 9]
    with pytest.raises(InputError, match=r"line 4 has 1 cells, not 2"):
        list(sources.read_texts(units, "line", "b"))
    views = found(tmp_path, "v.txt", "1 5\n", form("2:item", group_by="1"))
    with pytest.raises(InputError, match="`id_field` u: the id of a group is its value of `group_by`"):
        list(sources.read_texts(views, "line", "u"))
    keyed = found(tmp_path, "p.csv", "a\nMK\n", form("a:protein", key="family"))  # a use needs no key
    assert [row.text for row in sources.read_texts(keyed, "line")] == ["MK"]


def test_a_folder_of_sequences_or_tables_is_read_only_if_records_are_asked_for(tmp_path, capsys):
    for number, name in enumerate(("b.fasta.gz", "a.fa", "notes.md")):
        (tmp_path / name).write_bytes(COMPRESS[".gz" if name.endswith("gz") else ""](b">a\nM" + b"K" * number))
    (source,) = sources.find([str(tmp_path)], records=form("s:protein"))
    assert lines_of([source]) == ["MK", "M"]
    assert "skipped 1 of 3 files" in capsys.readouterr().err
    with pytest.raises(
        InputError, match="it is FASTA, not prose; to train on its sequences, give `fields` sequence:pro"
    ):
        list(sources.read_lines(sources.find([str(tmp_path)])))
    assert [sources.describe(name) for name in ("x/p.fasta.gz", "t.csv", "t.tsv.xz")] == ["p", "t", "t"]


def test_fields_of_a_tfds_dataset_are_refused():
    with pytest.raises(
        InputError, match=r"`fields` s:word: works with files, not with tfds:c4/en; write it as Parquet"
    ):
        sources.find(["tfds:c4/en"], records=form("s:word"))


SEQUENCES = [
    ([[5, 6], (7,), np.array([8, 9])], ("symbols:item",), ["5 6", "7", "8 9"]),
    ([["a b", np.int64(3)]], ("symbols:item",), ["a▁b 3"]),
    (["MK", "to be"], ("symbols:character",), ["MK", "to▁be"]),
    ([{"s": "MK", "items": [1, 2], "x": 3}, {"x": 4, "items": [3], "s": "V"}], ("s:character", "items:item", "x:item"),
     [f"MK{FIELD}1 2{FIELD}3", f"V{FIELD}3{FIELD}4"]),
]  # fmt: skip


@pytest.mark.parametrize(("sequences", "fields", "lines"), SEQUENCES)
def test_sequences_from_python_are_a_unit_as_a_file_is(sequences, fields, lines):
    assert fields_of(sequences) == fields
    unit = pickle.loads(pickle.dumps(MemoryRecords(sequences, RecordFormat(fields))))
    assert lines_of([sources.Source("sequences", "sequences", (unit,))]) == lines
    assert [row.text for row in unit.rows()] == lines


@pytest.mark.parametrize(
    ("sequences", "records", "line"),
    [
        (["MK", "MK", "M1"], form("s:protein"), f"sequences: sequence 3 has the symbol '1' in 's', {OUTSIDE}"),
        ([[1], []], form("s:item"), "sequences: sequence 2 has nothing in 's'; fix or remove it"),
        ([np.array([0.5])], form("s:item"), "sequences: sequence 1 has 0.5 in 's', a float; write it as text or as"),
        ([{"a": 1}], form("s:item"), "sequences: sequence 1 has no field 's', only 'a'; fix or remove it"),
        (["MK"], form("s:protein v:word"), "sequences: sequence 1 is not a dictionary of s, v; fix or remove it"),
        (["\ud83d"], form("s:character"), "sequences: sequence 1 contains half a character, \\ud83d; fix it"),
    ],
)
def test_a_fault_in_sequences_from_python_is_one_line(sequences, records, line):
    with pytest.raises(InputError, match=re.escape(line)):
        list(MemoryRecords(sequences, records).chunks(Faults()))


def test_no_sequences_are_refused():
    with pytest.raises(InputError, match="`sequences` has no records"):
        fields_of([])


def test_json_of_records_is_read_as_its_text_is(tmp_path):
    """Both readers accept the same files."""
    content = json.dumps({"text": "It was."}) + "\n"
    assert lines_of(found(tmp_path, "a.jsonl", content, form("text:word"))) == ["It was."]
    assert list(sources.read_lines(found(tmp_path, "a.jsonl", content, None))) == ["It was.", ""]

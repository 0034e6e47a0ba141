"""Tables of every form give the same rows, and what is wrong in them is named with its line."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.datasets import write_dataset
from xlnet_jax.errors import InputError
from xlnet_jax.tasks.classification.tables import Published, field, files_of_role, read_table

ROWS = [
    {"text": 'He said "no', "label": "bad"},
    {"text": "Güte, 天", "label": "good"},
    {"text": "plain", "label": "good"},
]


def tsv(path, rows, end="\n", mark=""):
    path.write_bytes((mark + end.join(["text\tlabel", *("\t".join(r.values()) for r in rows)]) + end).encode())


def rows_of(name, *settings):
    rows = list(read_table(str(name), *settings))
    for row in rows:
        if row.fault:
            raise InputError(f"{row.where} {row.fault}")
    return [dict(row.content) for row in rows]


def test_every_form_of_a_table_gives_the_same_rows(tmp_path):
    tsv(tmp_path / "a.tsv", ROWS)
    tsv(tmp_path / "windows.tsv", ROWS, end="\r\n", mark="\ufeff")
    (tmp_path / "a.csv").write_text('text,label\n"He said ""no",bad\n"Güte, 天",good\nplain,good\n')
    (tmp_path / "a.jsonl").write_text("\n\n".join(map(json.dumps, ROWS)))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    for name in ("a.tsv", "windows.tsv", "a.csv", "a.jsonl", "a.jsonl.gz", "a.parquet"):
        assert rows_of(tmp_path / name) == ROWS, name
    assert rows_of(tmp_path / "*a.*[lv]") == ROWS * 3


def test_a_dataset_of_tfds_gives_its_classes_by_name_or_number(tmp_path, monkeypatch):
    monkeypatch.setattr("tensorflow_datasets.core.constants.DATA_DIR", str(tmp_path))
    more = {"image": [0, 0]}
    splits = {"train": [row | more for row in ROWS], "test": [row | more | {"label": -1} for row in ROWS]}
    write_dataset(
        tmp_path / "reviews" / "1.0.0", "reviews", splits, text=lambda of: of.Text(),
        label=lambda of: of.ClassLabel(names=["bad", "good"]), image=lambda of: of.Tensor(shape=(2,), dtype=np.int32),
    )  # fmt: skip
    by_name, by_number = (Published(labels=labels) for labels in ((), ("bad", "good")))
    assert rows_of("tfds:reviews[train]", by_name) == ROWS
    assert [r["label"] for r in rows_of("tfds:reviews[test]", by_name)] == [None] * 3
    assert [r["label"] for r in rows_of("tfds:reviews[train]", by_number)] == [0, 1, 1]
    with pytest.raises(
        InputError, match=r"tfds:reviews has no split dev, only .*: choose one with tfds:reviews\[SPLIT\]"
    ):
        rows_of("tfds:reviews[dev]", by_name)


def test_a_table_without_header_has_numbers_for_columns(tmp_path):
    (tmp_path / "a.csv").write_text('"2","a ""b"""\n"1","two\nlines"\n')
    numbered = [{"0": "2", "1": 'a "b"'}, {"0": "1", "1": "two\nlines"}]
    assert rows_of(tmp_path / "a.csv", Published(), False) == numbered
    assert rows_of(tmp_path / "a.csv", Published(headless=True)) == numbered
    (tmp_path / "b.csv").write_text("label,text\n1,x\n")
    assert rows_of(tmp_path / "b.csv", Published(headless=True)) == [{"label": "1", "text": "x"}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "text\tlabel\na\t1\nb\t1\t2\n", "line 3 has 3 fields, and the first line has 2"),
        ("a.csv", 'text,label\n"a\n",1\nb\n', "a.csv: line 4 has 1 fields, and the first line has 2"),
        ("a.csv", 'text,label\n"a"b,1\n', "a.csv: line 2 is not CSV ("),
        ("a.tsv", "a\ta\n", "a.tsv: line 1 has two columns with one name; if it is not a header: `columns.no_header`"),
        ("a.tsv", b"text\nb\xffd\n", "a.tsv: line 2 is not UTF-8 (0xff); convert the file, as with iconv"),
        (None, None, "no such file; give a table (.tsv, .csv, .jsonl, .parquet), a glob in quotes, or tfds:NAME"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path, name, content, message):
    if name:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as error:
        rows_of(tmp_path / (name or "none.tsv"))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path):
    tsv(tmp_path / "a.tsv", ROWS)
    row = next(read_table(str(tmp_path / "a.tsv")))
    assert field(row, ("sentence", "text"), "text") == ROWS[0]["text"]
    said = (
        r"a\.tsv: line 2: there is no column 'a' or 'b', only 'text', 'label': name it by `columns\.text_pair`, or if"
    )
    with pytest.raises(InputError, match=said):
        field(row, ("a", "b"), "text_pair")


def test_a_folder_stands_for_its_files_of_a_role_and_a_dataset_for_its_split(tmp_path):
    for name in "train.tsv valid.csv.gz test_a.tsv test_b.tsv train.md val-00000-of-00002.parquet".split():
        (tmp_path / name).touch()
    here = str(tmp_path)
    assert files_of_role(here, (("train",),)) == [f"{here}/train.tsv"]
    assert files_of_role(here, (("dev",), ("valid",))) == [f"{here}/valid.csv.gz"]
    assert files_of_role(here, (("val",),)) == [f"{here}/val-00000-of-00002.parquet"]
    assert files_of_role(here, (("test_a", "test_b"),)) == [f"{here}/test_a.tsv", f"{here}/test_b.tsv"]
    assert files_of_role("tfds:a", (("dev",), ("validation", "b"))) == ["tfds:a[validation]", "tfds:a[b]"]
    assert files_of_role("tfds:a[x]", (("dev",),)) == ["tfds:a[x]"]
    with pytest.raises(InputError, match=r"this folder has no table named dev or v \(\.tsv, \.csv"):
        files_of_role(here, (("dev",), ("v",)))

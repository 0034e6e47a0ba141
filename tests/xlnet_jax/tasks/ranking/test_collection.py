"""Documents and queries by their ids, from the forms that collections come in."""

import gzip

import pytest

from xlnet_jax.errors import InputError
from xlnet_jax.tasks.ranking.collection import read_collection

SMART = """.I 1
.T
slab of
heat .
.A
brenckman,m.
.W
slab of
heat .
  it conducts .
.I 002
.W
.B stays text
.I 3
"""


def written(folder, name, text):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


@pytest.mark.parametrize("name", ["docs", "docs.gz"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_smart_texts_have_their_title_once_and_no_author(tmp_path, name, ends):
    path = written(tmp_path, name, "\ufeff" + SMART.replace("\n", ends))
    expected = {"1": "slab of heat . it conducts .", "002": ".B stays text", "3": ""}
    assert read_collection([path], "documents") == expected


def test_json_and_tsv_texts_are_those_of_beir_and_ms_marco(tmp_path):
    beir = written(
        tmp_path, "corpus.jsonl", '{"_id": "a", "title": "Heat", "text": "It\\nflows"}\n{"id": 7, "text": "x"}\n'
    )
    passages = written(tmp_path, "collection.tsv", "0\tone text\n1\ttwo\n")
    documents = written(tmp_path, "docs.tsv", "D1\thttp://x\tA title\tThe body\nD2\tA title\tThe body\n")
    assert read_collection([beir, passages, documents], "documents") == {
        "a": "Heat It flows", "7": "x", "0": "one text", "1": "two", "D1": "A title The body", "D2": "A title The body",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (".I 1\n.W\na\n.I 1\n.W\nb\n", "line 4: the id 1 is there already"),
        ("1\ta\n\n2 b\n", "line 3 has 1 fields between tabs"),
        ("a b\tx\ty\n", "line 1: the id 'a b' is empty or has spaces"),
        ('{"_id": "a", "text": "b"}\n{"_id": "b"}\n', "line 2 has no id or no text"),
        ('{"_id": "a", "text": "b"}\n[1]\n', "line 2 is not a JSON object"),
        ('{"_id": "a", "text": "b"}\n{"_id":\n', "line 2 is not JSON"),
        ('{"_id":' + "[" * 100_000 + "\n", "line 1 is not JSON"),
        (r'{"_id": "a", "text": "b \ud83d"}', r"line 1: the text holds half a character, \ud83d; mend it"),
        (r'{"_id": "a\ud83d", "text": "b"}', "line 1: the id holds half a character"),
        ("some words\n", "its form is unknown; give SMART"),
        ("", "nothing is in it"),
    ],
)
def test_what_cannot_be_read_is_named_by_file_and_line(tmp_path, text, said):
    path = written(tmp_path, "texts", text)
    with pytest.raises(InputError) as error:
        read_collection([path], "documents")
    assert said in str(error.value)
    assert f"documents {path}" in str(error.value)


def test_documents_in_the_cloud_are_read(bucket):
    written(bucket, "docs.tsv", "1\ta\n2\tb\n")
    assert read_collection(["gs://bucket/docs.tsv"], "documents") == {"1": "a", "2": "b"}
    assert read_collection(["gs://bucket/*.tsv"], "documents") == {"1": "a", "2": "b"}

"""Documents and queries by their ids, qrels and runs, from the forms that collections come in."""

import gzip

import numpy as np
import pytest
from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.tasks.ranking.trec import best_first, is_run, read_collection, read_qrels, read_run, write_run

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
.W
twice
.I 3
"""


def written(folder, text, name="file"):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


@pytest.mark.parametrize(("name", "ends"), [("docs", "\n"), ("docs.gz", "\r\n")])
def test_smart_texts_have_their_title_once_and_no_author(tmp_path, name, ends):
    path = written(tmp_path, "\ufeff" + SMART.replace("\n", ends), name)
    expected = {"1": "slab of heat . it conducts .", "002": ".B stays text twice", "3": ""}
    assert read_collection([path], "documents") == expected


def test_json_and_tsv_texts_are_those_of_beir_and_ms_marco(tmp_path):
    json_lines = '{"_id": "a", "title": "Heat", "text": "It\\nflows"}\n{"id": 7, "text": "x"}\n'
    beir = written(tmp_path, json_lines, "corpus.jsonl")
    passages = written(tmp_path, "0\tone text\n1\ttwo\n", "collection.tsv")
    documents = written(tmp_path, "D1\thttp://x\tA title\tThe body\nD2\tA title\tThe body\n", "docs.tsv")
    assert read_collection([beir, passages, documents], "documents") == {
        "a": "Heat It flows", "7": "x", "0": "one text", "1": "two", "D1": "A title The body", "D2": "A title The body",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["1 0 a 2\n1 0 b -2\n\n2 Q0 a 0\n", "query-id\tcorpus-id\tscore\r\n1\ta\t2\r\n1\tb\t-2\r\n2\ta\t0\r\n"]
)
def test_qrels_are_those_of_trec_and_beir(tmp_path, text):
    assert read_qrels([written(tmp_path, text)]) == {"1": {"a": 2, "b": -2}, "2": {"a": 0}}


@pytest.mark.parametrize("text", ["1 a 1 \n1 b 4\n1 c 5\n1 d -1\n", "1 0 a 1\n1 0 b 4\n1 0 c 5\n1 0 d -1\n"])
def test_the_best_code_of_cranfield_is_its_highest_grade_and_the_source_is_left_out(tmp_path, text):
    assert read_qrels([written(tmp_path, text)], "cranfield") == {"1": {"a": 4, "b": 1, "c": 0, "d": None}}


def documents(paths):
    return read_collection(paths, "documents")


def cranfield(paths):
    return read_qrels(paths, "cranfield")


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (documents, "1\ta\n1\tb\n", "line 2: the id '1' is there already"),
        (documents, "a b\tx\ty\n", "line 1: the id 'a b' is there already, is empty or has spaces"),
        (documents, "1\ta\n\n2 b\n", "line 3 has 1 fields between tabs"),
        (documents, '{"_id": "a", "text": "b"}\n{"_id": "b"}\n', "line 2 has no 'text'"),
        (documents, '{"_id": "a", "text": "b"}\n[1]\n', "line 2 is not a JSON object"),
        (documents, '{"_id":' + "[" * 100_000 + "\n", "line 1 is not JSON"),
        (documents, "some words\n", "unknown form; give SMART"),
        (
            read_qrels,
            "1 a 3\n",
            "line 1 has 3 fields; qrels have 4: query iteration document grade; those of Cranfield",
        ),
        (read_qrels, "1 0 a high\n", "line 1: 'high' is no judgement"),
        (read_qrels, "1 0 a 1\n1 0 a 0\n", "line 2: document a is judged otherwise before"),
        (read_qrels, "", "no judgement is in it"),
        (cranfield, "1 a 0\n", "line 1: '0' is no judgement: a whole number, of Cranfield 1 to 5 or -1"),
        (read_run, "1 Q0 a 1 0.5 t\n1 Q0 b 2 0.4\n", "line 2: a run has 6 fields"),
        (read_run, "1 Q0 a 1 high t\n", "line 1: a run has 6 fields"),
    ],
)
def test_what_cannot_be_read_is_named_by_file_and_line(tmp_path, read, text, said):
    path = written(tmp_path, text)
    with pytest.raises(InputError) as error:
        read([path])
    assert path in str(error.value)
    assert said in str(error.value)


def test_a_run_is_told_from_queries(tmp_path):
    assert is_run(written(tmp_path, "1 Q0 a 1 0.5 t\n"))
    assert not is_run(written(tmp_path, "1\tQ0 is what is asked\n"))
    assert not is_run(written(tmp_path, ".I 1\n.W\nwhat\n"))


def test_equal_scores_rank_by_the_greater_id():
    assert best_first({"a": 0.5, "b10": 0.5, "b9": 0.5, "z": 0.1, "c": 2.0}) == ["c", "b9", "b10", "a", "z"]


def test_a_written_run_is_read_as_it_was_to_the_last_bit(tmp_path):
    scores = np.random.default_rng(0).normal(size=50).astype(np.float32)
    run = {"7": {f"d{i}": float(score) for i, score in enumerate(scores)}, "8": {"x": 1e-30}}
    path = epath.Path(tmp_path / "run")
    write_run(path, run)
    best = int(scores.argmax())
    assert path.read_text().splitlines()[0].split() == ["7", "Q0", f"d{best}", "1", f"{scores[best]:.9g}", "xlnet_jax"]
    read = read_run([str(path)])
    assert {q: {d: np.float32(s) for d, s in of.items()} for q, of in read.items()} == run

"""Files of examples: all tasks find them alike, and name what is wrong with its place in one line."""

import gzip
import json

import pytest

from xlnet_jax.errors import InputError
from xlnet_jax.tasks.defaults import DEFAULTS, make_task
from xlnet_jax.tasks.ranking.trec import read_collection

HALF = "\ud83d"  # of a character
CHOICE = {"context": "c", "question": "q", "options": ["x", "y"], "answer": "A"}
RACE = {"article": "a", "questions": ["q"], "options": [["x", "y"]], "answers": ["C"]}
ASKED = {"id": "a", "question": "Which tea?", "answers": [{"text": "tea", "answer_start": 4}]}
PLACELESS = ASKED | {"answers": [{"text": "tea", "answer_start": "4"}]}


def squad(*questions, context="The tea was cold."):
    return {"data": [{"paragraphs": [{"context": context, "qas": list(questions)}]}]}


@pytest.mark.parametrize(
    ("task", "file", "content", "message"),
    [
        # ---- texts and labels
        ("classification", "a.tsv", "sentence\tlabel\na\t1\n", "line 2: there is no column 'text', only 'sentence'"),
        ("classification", "a.tsv", "text\tlabel\n\t0\n \t1\n", "a.tsv: line 2 is blank; "),
        ("classification", "a.tsv", "text\tlabel\n", "a.tsv: there are no examples in it"),
        ("classification", "a.tsv", "text\tlabel\na\t\n", "line 2: it has no label; training and evaluation need one"),
        ("classification", "a.jsonl", '{"text": "a", "label": NaN}', "line 1: it has no label"),
        ("classification", "a.jsonl", {"text": "a", "label": HALF}, r"line 1 contains half a character, \ud83d; fix"),
        ("regression", "a.tsv", "text\tlabel\na\t1\nb\t-inf\n", "line 3: the label '-inf' is not a number"),
        ("multilabel", "a.jsonl", {"text": "a", "label": 3}, "line 1: its label 3 is neither text nor a list"),
        ("sst-2", "a.tsv", "sentence\tlabel\na\t1\nb\t2\n", "line 3: the label '2' is none of 0, 1, which sst-2 has"),
        # ---- words
        ("ner", "a.txt", "a O\nb c O\n", "line 2 has 3 fields between spaces, the first line 2; every word"),
        ("ner", "a.txt", "a\nb\n", "line 1: a word has no label"),
        ("ner", "a.txt", "a O\nb NN\n", "line 1: 'NN', the label of 'b', is not a tag"),
        ("ner", "a.jsonl", {"words": ["a", "b"], "labels": ["O"]}, "line 1 has 2 words and 1 labels: label each word"),
        # ---- questions with options
        ("multiple_choice", "a.jsonl", CHOICE | {"answer": "C"}, "the answer 'C' is none of its 2 options"),
        ("multiple_choice", "a.jsonl", CHOICE | {"options": "xy"}, "line 1: 'options': Expected array | null, got str"),
        ("multiple_choice", "a.jsonl", CHOICE | {"context": " "}, "line 1 is blank"),
        ("multiple_choice", "a.jsonl", {"question": "q"}, "line 1 has no 'context', only 'question'"),
        ("multiple_choice", "a.jsonl", "[1]", "line 1 is not a JSON object; an example is one JSON object on one line"),
        ("race", "a.txt", RACE, "question 1: the answer 'C' is none of its 2 options"),
        # ---- questions about texts
        ("squad2", "a.json", {"questions": []}, "a.json is damaged: it has no 'data'"),
        ("squad2", "a.json", squad(ASKED | {"answers": []}), "question a needs either an answer or"),
        ("squad2", "a.json", squad(PLACELESS), "question a: an answer is a text and answer_start"),
        ("squad2", "a.json", squad(ASKED, ASKED), "its id a is also that of"),
        ("squad2", "a.json", squad(ASKED, context=" \n"), "question a is blank"),
        ("squad", "a.json", squad({"id": "a", "question": "?", "is_impossible": True}), "`task` squad2 supports that"),
        ("cmrc2018", "a.json", [{"qas": [{"query_id": "a", "query_text": "?"}]}], "it has no 'context_text'"),
    ],
)  # fmt: skip
def test_an_example_that_cannot_be_learned_is_named(tmp_path, task, file, content, message):
    (tmp_path / file).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError) as error:
        make_task(DEFAULTS[task]()).read([str(tmp_path / file)], "train")
    assert file in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


READ = {
    "squad": (json.dumps(squad(ASKED)), lambda names: make_task(DEFAULTS["squad2"]()).read(names, "predict")),
    "race": (json.dumps(RACE), lambda names: make_task(DEFAULTS["race"]()).read(names, "predict")),
    "ner": ("Tea O\n", lambda names: make_task(DEFAULTS["ner"]()).read(names, "train")),
    "ranking": ("1\tTea\n", lambda names: read_collection(names, "documents")),
}


@pytest.mark.parametrize("task", READ)
def test_all_tasks_read_compressed_files_by_name_glob_and_folder_and_name_missing_ones(tmp_path, task):
    content, read = READ[task]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content.encode()))
    for name in ("a.txt.gz", "*.txt*", ""):
        assert len(read([str(tmp_path / name)])) == 1
    for name in (str(tmp_path / "none"), str(tmp_path / "*.none"), "tfds:none"):
        with pytest.raises(InputError, match="no such file; give a file, a folder, or a glob"):
            read([name])

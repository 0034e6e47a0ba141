"""Files of examples: all tasks find them alike, read them compressed, and name what is wrong with its place."""

import bz2
import gzip
import json
import lzma

import pytest

from xlnet_jax.errors import InputError
from xlnet_jax.tasks.defaults import DEFAULTS, make_task
from xlnet_jax.tasks.ranking.trec import read_collection
from xlnet_jax.tasks.readers import Record, files, json_file

SQUAD = {"data": [{"paragraphs": [{"context": "Tea.", "qas": [{"id": "a", "question": "?"}]}]}]}
RACE = {"article": "Tea.", "questions": ["?"], "options": [["a", "b"]], "id": "a"}
READ = {
    "squad": (json.dumps(SQUAD), lambda names: make_task(DEFAULTS["squad2"]()).read(names, False)),
    "race": (json.dumps(RACE), lambda names: make_task(DEFAULTS["race"]()).read(names, False)),
    "ner": ("Tea O\n", lambda names: make_task(DEFAULTS["ner"]()).read(names, True)),
    "ranking": ("1\tTea\n", lambda names: read_collection(names, "documents")),
}


@pytest.mark.parametrize("task", READ)
@pytest.mark.parametrize("end", [".gz", ".xz", ".bz2"])
def test_all_tasks_read_compressed_files_by_name_glob_and_folder(tmp_path, task, end):
    content, read = READ[task]
    compress = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}[end]
    (tmp_path / f"a.txt{end}").write_bytes(compress(content.encode()))
    for name in (f"a.txt{end}", "*.txt*", ""):
        assert len(read([str(tmp_path / name)])) == 1
    (tmp_path / f"a.txt{end}").write_bytes(compress(content.encode())[:-12])
    with pytest.raises(InputError, match=r"ends too soon|damaged"):
        read([str(tmp_path)])


@pytest.mark.parametrize("task", READ)
def test_all_tasks_name_a_file_that_is_missing(tmp_path, task):
    for name in ("none", "*.none", "tfds:none"):
        with pytest.raises(InputError, match=r"(no such file|a TFDS dataset); give a file, a folder, or a glob"):
            READ[task][1]([str(tmp_path / name) if ":" not in name else name])


def test_a_json_file_may_be_one_line_of_any_length(tmp_path, monkeypatch):
    monkeypatch.setattr("data_pipelines.readers.MAX_LINE_BYTES", 10)
    monkeypatch.setattr("data_pipelines.readers.CHUNK_BYTES", 10)
    (tmp_path / "a.json").write_text(json.dumps(["é" * 50]), encoding="utf-8-sig")
    assert json_file(files([str(tmp_path / "a.json")], "x")[0]) == ["é" * 50]


def test_a_value_of_a_record_is_refused_with_its_place():
    record = Record({"text": 3, "number": True, "items": ["a", 4]}, "a.json, text 1")
    for name, form, said in (
        ("text", str, "a.json, text 1: 'text': Expected str, got int"),
        ("number", int, "a.json, text 1: 'number': Expected int, got bool"),
        ("none", str, "a.json, text 1 has no 'none', only 'text', 'number', 'items'"),
        ("items", list[str], "a.json, text 1: 'items': Expected str, got int - at $[1]"),
    ):
        with pytest.raises(InputError) as error:
            record.get(name, form)
        assert str(error.value) == said

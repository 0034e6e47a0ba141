"""Bad input ends python -m data_pipelines.prepare with one line and exit code 2, and leaves nothing half-written."""

import bz2
import gzip
import json
import lzma
import os
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from data_pipelines import sources
from tests.datasets import write_dataset
from xlnet_jax.printing import tell
from xlnet_jax.settings.common import TextSourceSettings

COMPRESS = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstd.compress, "bz2": bz2.compress}


@pytest.mark.parametrize("end", COMPRESS)
def test_compressed_text_that_is_damaged_anywhere_is_named(refused, place, text, end):
    half = len(text) // 2
    streams = [COMPRESS[end](part.encode()) for part in (text[:half], text[half:])]
    file = place / f"a.txt.{end}"
    whole = b"".join(streams)
    file.write_bytes(whole)
    assert "\n".join(sources.read_lines(sources.find([str(file)]))).split() == text.split()
    broken = bytearray(whole)
    broken[len(broken) // 4 : len(broken) // 4 + 8] = b"\xff" * 8
    for content in (whole[:-9], text.encode(), bytes(broken), streams[0] + b"x" + streams[1][1:]):
        file.write_bytes(content)
        assert f"a.txt.{end}: it cannot be read or is damaged (" in refused("--source", file.name)


NO_PROSE = {
    "empty": (b"", "no text in it: it is empty or has only blank lines"),
    "blank": (b"\n \r\n\t\n" * 1000, "no text in it"),
    "latin-1": (b"good\ncaf\xe9", r"line 2 is not UTF-8 \(0xe9\); convert .*, or read it with --corpus-e"),
    "utf-16-le": ("two bytes".encode("utf-16-le"), "it is UTF-16LE, not UTF-8; convert it, as with iconv -f UTF-16LE"),
    "utf-16-be": ("two bytes".encode("utf-16-be"), "it is UTF-16BE, not UTF-8; convert it, as with iconv -f UTF-16BE"),
    "utf-16": ("ж с меткой".encode("utf-16"), "it is UTF-16, not UTF-8; convert it, as with iconv -f UTF-16 -t UTF-8"),
    "utf-32": ("with a mark".encode("utf-32"), "it is UTF-32, not UTF-8; convert it, as with iconv -f UTF-32 -t UTF-8"),
    "zero byte": (b"good\n\nz\0ro\n", "line 3 contains a zero byte; fix it, or read it with --corpus-errors replace"),
    "huge line": (b"a " * 2**24, "line 1 is longer than 16 MB; a line should be a sentence or a paragraph: split it"),
    "nothing after normalisation": ("\u0301\u0302\n".encode(), "no text in it"),
}  # fmt: skip


@pytest.mark.parametrize("kind", NO_PROSE)
def test_text_that_is_none_is_named(refused, place, kind):
    content, message = NO_PROSE[kind]
    (place / "bad.txt").write_bytes(content)
    assert re.search(rf"text bad\.txt: {message}", refused("--source", "bad.txt", keeps=content[:1] == b"\xcc"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("3", "line 3 is not a JSON object; each line must be one JSON object"),
        ('{"text": "a"', "line 3 is not JSON"),
        ('{"body": "a"}', "line 3 has no field 'text', only 'body' (1 of 3 records are faulty, and at most 5% are "),
        ('{"text": {"a": 1}}', "line 3 has {'a': 1} in its field 'text', not text (1 of 3"),
        ('{"text": null}', "line 3 has null in its field 'text', not text (1 of 3"),
        ('{"text": ' + "[" * 10**5, "line 3 is not JSON"),
        ('{"text": "a\\u0000"}', "line 3: a document contains a zero byte; fix it, or read it with --corpus-errors"),
        ('{"text": "a\\ud800"}', "line 3: a document contains half a character, \\ud800; fix it, or read it with"),
    ],
)
def test_a_json_line_that_is_no_document_is_named(refused, place, text, line, message):
    good = json.dumps({"text": text})
    (place / "bad.jsonl").write_text(f"{good}\n{good}\n{line}\n")
    assert f"text bad.jsonl: {message}" in refused("--source", "bad.jsonl")


@pytest.fixture
def records(place, text):
    """Write records as JSON Lines, as a Parquet table, or as a folder with a file for each; and give the name."""
    documents = [{"text": document} for document in text.split("\n\n") * 20 if document.strip()]
    tell.cache_clear()

    def write(name, *others, good=100):
        found = [*others, *documents[:good]]
        lines = [other if isinstance(other, str) else json.dumps(other) for other in found]
        if name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(found), name)
        elif name.endswith(".jsonl"):
            (place / name).write_text("\n".join(lines) + "\n")
        else:
            (place / name).mkdir()
            for i, line in enumerate(lines):
                (place / name / f"{i:03}.json").write_text(line)
        return name

    return write


NO_TEXT = [{"body": "a"}, {"text": None}, {"text": 7}, "{", {"text": " "}]


def test_a_few_records_without_text_are_skipped_counted_and_named(run, records):
    code, err = run("--source", records("a.jsonl", *NO_TEXT))
    assert code == 0, err
    assert err == (
        "note: 5 of 105 records have no text and are skipped: text a.jsonl: line 1 has no field 'text', only 'body'; "
        "text a.jsonl: line 2 has null in its field 'text', not text; text a.jsonl: line 3 has 7 in its field 'text', "
        "not text; and 2 more\n"
    )
    code, err = run("--source", records("folder", NO_TEXT[0]), out="of-files")
    assert (code, "1 of 101 records have no text and are skipped: text folder/000.json: line 1" in err) == (0, True)
    code, err = run("--source", records("a.parquet", *NO_TEXT[1:2], NO_TEXT[-1]), out="of-rows")
    assert code == 0
    assert "2 of 102 records have no text and are skipped: text a.parquet: row 1 has null in its column 'text'" in err


def test_a_text_without_blank_lines_is_said_to_be_one_document(run, place, text):
    (place / "whole.txt").write_text(text.replace("\n\n", "\n"))
    code, err = run("--source", "whole.txt")
    assert code == 0
    assert re.fullmatch(r"note: text whole.txt is one document of [\d,]+ tokens; a blank line ends a document\n", err)


def test_blank_texts_are_counted_but_never_too_many(run, records):
    code, err = run("--source", records("a.jsonl", *[{"text": ""}] * 60))
    assert (code, "60 of 160 records have no text and are skipped: text a.jsonl: line 1 is blank;" in err) == (0, True)


@pytest.mark.parametrize("name", ["a.jsonl", "folder"])
def test_too_many_records_without_text_are_refused_with_the_remedy_that_fits(refused, records, name):
    err = refused("--source", records(name, *[{"body": "a"}] * 6))
    assert "(6 of 106 records are faulty, and at most 5% are skipped): fix or remove them" in err
    err = refused("--source", records(f"all-{name}", *[{"body": "a"}] * 1200, good=0))
    assert err.endswith("faulty, and at most 5% are skipped): name the text field with --text-field\n")
    assert "(1,000 of 1,000 records" in err, "the rest is not read"


@pytest.mark.parametrize("form", ["txt", "jsonl", "parquet"])
def test_a_zero_byte_is_named_and_can_be_replaced_in_every_form(refused, run, place, text, form):
    documents = ["A line with \0 a zero byte.", *text.split("\n\n")]
    (place / "a.txt").write_text("\n\n".join(documents))
    (place / "a.jsonl").write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    pq.write_table(pa.table({"text": documents}), "a.parquet")
    assert re.search(r"(line|row) 1.* contains a zero byte; fix it, or", refused("--source", f"a.{form}"))
    assert run("--source", f"a.{form}", "--corpus-errors", "replace", out="read") == (0, "")
    assert "A line with \ufffd a zero byte." in sources.read_lines(
        sources.find([f"a.{form}"], TextSourceSettings(corpus_errors="replace"))
    )


def test_a_table_that_is_damaged_or_holds_no_text_is_named(refused, run, place, text):
    def write(**columns):
        pq.write_table(pa.table(columns), "bad.parquet")
        return (place / "bad.parquet").read_bytes()

    write(body=["a"])
    assert "it has no column 'text', only 'body': name the text field" in refused("--source", "bad.parquet")
    write(text=pa.array([], pa.string()))
    assert "bad.parquet: no text in it" in refused("--source", "bad.parquet")
    write(text=pa.array([b"caf\xe9", text.encode(), b""], pa.binary()))
    assert "bad.parquet: row 1: a document is not UTF-8 (0xe9); fix it, or read it with" in refused(
        "--source", "bad.parquet"
    )
    assert run("--source", "bad.parquet", "--corpus-errors", "replace", out="read")[0] == 0
    numbers, whole = write(text=[1]), write(text=[text] * 3)
    for content in (numbers, b"", whole[:-20] + b"x" * 12 + whole[-8:], whole[: len(whole) // 2]):
        (place / "bad.parquet").write_bytes(content)
        assert "bad.parquet: it cannot be read or is damaged (" in refused("--source", "bad.parquet")


def test_a_folder_that_cannot_be_read_is_not_passed_over(refused, place, monkeypatch):
    (place / "texts" / "closed").mkdir(parents=True)
    shutil.copy("good.txt", "texts")
    scan = os.scandir

    def guarded(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", guarded)
    assert "text texts: it does not exist, or you have no permission to read it" in refused("--source", "texts")


def test_a_corpus_inside_a_folder_of_texts_is_no_text(run, place):
    (place / "texts").mkdir()
    shutil.copy("good.txt", "texts")
    for _ in range(2):
        assert run("--source", "texts", out="texts/inside") == (0, "")
    assert [unit.path for unit in sources.find(["texts"])[0].units] == ["texts/good.txt"]


def test_a_place_that_cannot_be_made_is_found_before_the_text_is_read(refused, place):
    (place / "link").symlink_to("nowhere")
    for out, message in (
        ("good.txt", "good.txt exists and is not a prepared corpus; name a folder that does not exist yet"),
        ("good.txt/corpus", "good.txt; give another path"),
        ("link", "link exists: name a folder that does not"),
        ("new\nline", "give a folder whose name has only printable characters"),
    ):
        assert message in refused("--source", "good.txt", out=out)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--source good.txt --weights 0.5 0.5", "--weights has 2 numbers, but --source names 1 text"),
        ("--source good.txt good.txt --weights 0.5 0.6", "they must be above 0 and sum to 1, not 1.1"),
        ("--source good.txt good.txt --weights nan nan", "they must be above 0 and sum to 1, not nan"),
        ("--source good.txt good.txt --weights -0.5 1.5", "they must be above 0 and sum to 1"),
        ("--source good.txt --validation-fraction 1", "--validation-fraction 1.0 must be in (0, 1)"),
        ("--source good.txt --block-len 0", "--block-len 0 must be at least 8"),
        ("--source good.txt --tokenizer none", "tokenizer none: no such file"),
        ("--source good.txt --validation none", "text none: no such file or folder, or it is empty; give a text"),
        ("", "--source names no text: give files, globs, folders, URLs, tfds:NAME or hf:NAME"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_read(refused, argv, message):
    assert message in refused(*argv.split())


@pytest.fixture
def dataset(place, text):
    """A prepared TFDS dataset, news/1.0.0."""
    folder = place / "data" / "news" / "1.0.0"
    rows = [{"text": document} for document in text.split("\n\n") if document.strip()]
    write_dataset(folder, "news", {"train": rows}, text=lambda of: of.Text())
    return folder


def test_a_dataset_that_is_not_there_is_named_with_how_to_prepare_it(refused, dataset, monkeypatch):
    monkeypatch.setattr("tensorflow_datasets.core.constants.DATA_DIR", "data")
    for words, message in (
        ("tfds:c4/en", "tfds:c4/en is not prepared in data: prepare it with `tfds build c4/en --data_dir data`"),
        ("tfds:wikipedai", "tfds:wikipedai is not prepared in data: TFDS has no such dataset"),
        ("tfds:news[test]", "tfds:news has no split test, only train: choose one with tfds:news[SPLIT]"),
        ("tfds:news[train[0:0]]", "tfds:news: its split train[0:0] is empty; name another split"),
        ("tfds:news --text-field body", "tfds:news has no text field 'body', only text: name the text field"),
    ):
        assert message in refused("--source", *words.split())


def test_a_dataset_that_is_damaged_is_named(refused, dataset):
    damages = {"dataset_info.json": "{", "features.json": "[]", "news-train.tfrecord-00000-of-00001": "short"}
    for name, content in damages.items():
        whole = (dataset / name).read_bytes()
        (dataset / name).write_text(content)
        message = r"its split train\[0:\d+\] cannot be read \([^{}]*\); " if content == "short" else r"is damaged: .*"
        found = refused("--source", "data")
        assert re.search(rf"data/news/1\.0\.0:? {message}prepare the dataset again", found)
        (dataset / name).write_bytes(whole)


def test_what_was_encoded_before_a_mistake_in_the_text_is_kept(run, place, monkeypatch, text):
    monkeypatch.setattr("data_pipelines.prepare.encoding.PART_CHARS", 5_000)
    monkeypatch.setattr("data_pipelines.readers.CHUNK_BYTES", 2_000)
    (place / "texts").mkdir()
    (place / "texts" / "a.txt").write_text(text)
    (place / "texts" / "b.txt").write_bytes(b"bad \xff")
    code, err = run("--source", "texts")
    assert (code, "b.txt: line 1 is not UTF-8" in err) == (2, True)
    assert not (place / "corpus").exists()
    damaged = min(place.glob(".corpus.partial/work/encoded-*/*.npz"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])
    (place / "texts" / "b.txt").write_text("good")
    code, err = run("--source", "texts")
    assert (code, f"{damaged.name} is damaged" in err) == (2, True)
    damaged.write_bytes(whole)
    assert run("--source", "texts") == (0, "")
    assert not (place / ".corpus.partial").exists()

"""python -m data_pipelines.tokenizer: what the commands print, and how mistakes end."""

import io
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from data_pipelines import sources
from data_pipelines.tokenizer import Tokenizer, TokenizerSettings
from xlnet_jax.__main__ import COMMANDS, run

TRAIN = sources.embedded()[0]
main = COMMANDS["tokenizer"].main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Text files and a tokenizer."""
    place = tmp_path_factory.mktemp("tokenizers")
    lines = [line for line in sources.read_lines(sources.find([TRAIN])) if line][:600]
    (place / "one.txt").write_text("\n".join(lines[:300]) + "\n")
    (place / "two.txt").write_text("\n".join(lines[300:]) + "\n")
    (place / "blank.txt").write_text(" \n\n")
    Tokenizer.train(lines, 500, "auto").save(place / "english")
    return place


@pytest.fixture
def do(folder, monkeypatch, capsys):
    """Run a command in the folder and return its output."""
    monkeypatch.chdir(folder)

    def do(*argv, stdin=b""):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        assert main(argv) == 0
        return capsys.readouterr().out

    return do


def test_train_samples_a_text_larger_than_was_said(do):
    args = ("--out", "sampled", "--vocab-size", "100", "--sample-megabytes", "1")
    out = do("train", "--source", TRAIN, *args)
    drawn, seen = re.search(r"a sample of ([\d,]+) of ([\d,]+) lines", out).groups()
    assert 0.1 < int(drawn.replace(",", "")) / int(seen.replace(",", "")) < 0.9


def test_train_keeps_its_normalisation_and_reads_broken_bytes_where_it_may(do, folder):
    (folder / "broken").write_bytes((folder / "one.txt").read_bytes() + b"\xff\n")
    args = ("--vocab-size", "300", "--normalization", "none", "--lower", "--corpus-errors", "replace")
    do("train", "--source", "broken", "--out", "plain", *args)
    tokenizer = Tokenizer.load(folder / "plain")
    assert tokenizer.settings == TokenizerSettings("none", split_digit_commas=False, lower=True)
    assert not any(c.isupper() for piece in tokenizer.pieces for c in piece)


def test_encode_reads_a_line_of_text_for_each_of_its_lines(do, folder):
    lines = (folder / "one.txt").read_text().splitlines()[:20]
    alone = [do("encode", "english", line) for line in lines]
    assert do("encode", "english", "--file", "one.txt").splitlines(keepends=True)[:20] == alone
    from_stdin = do("encode", "english", stdin="\n\n".join(lines).encode()).splitlines(keepends=True)
    assert from_stdin[::2] == alone
    assert set(from_stdin[1::2]) == {"\t\t\n"}, "an empty line has no pieces"
    assert do("encode", "english", stdin=b"a\n" * 2500) == do("encode", "english", "a") * 2500


MISTAKES = {
    "train --source none.txt --out new": "error: text none.txt: no such file or folder, or it is empty",
    "train --source one.txt --out english": "error: english exists: name a folder that does not",
    "train --source one.txt --out one.txt/new": "/one.txt; give another path",
    "train --source --out new": "error: --source names no text: give files, globs, folders, URLs, tfds:NAME or hf:NAME",
    "train --source blank.txt --out new": "blank.txt: no text in it",
    "train --source english/spiece.model --out new": "is not UTF-8",
    "train --source one.txt --out new --vocab-size 90000": "error: --vocab-size 90000 is too large for this text",
    "train --source one.txt --out new --vocab-size 1": "error: --vocab-size 1 is too small: 9 pieces are special",
    "train --source one.txt --out new --vocab-size 9": "error: --vocab-size 9 is too small for the characters",
    "train --source one.txt --out new --sample-megabytes 0": "error: --sample-megabytes 0 must be at least 1",
    "show none": "error: tokenizer none: no such file; give a SentencePiece model or a folder with spiece.model",
    "show one.txt": "error: tokenizer one.txt: it is not a SentencePiece model, or is damaged",
    "encode english text --file one.txt": "error: give either TEXT or --file, not both",
    "encode english two words": "error: words has no flag in front: this command takes no such word",
    "shw english": "error: Expected one of {train, adapt, show, encode}.",
}


@pytest.mark.parametrize("argv", MISTAKES)
def test_a_mistake_ends_in_one_line_and_leaves_nothing(folder, argv, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["tokenizer", *argv.split()])
    with pytest.raises(SystemExit) as stop:
        run(main)
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert MISTAKES[argv] in err
    assert (err.count("\n"), out) == (1, "")
    assert not (folder / "new").exists()


def test_the_command_works_as_a_process_whose_reader_may_have_seen_enough(folder):
    words = f"{sys.executable} -m data_pipelines.tokenizer"
    script = f"""
        {words} encode english --file {TRAIN} | head -n 1; echo ${{PIPESTATUS[0]}}
        echo -e 'good\\n\\xff' | {words} encode english; echo $?
    """
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, timeout=60, check=True, text=True)
    assert [line for line in done.stdout.splitlines() if "\t" not in line] == ["0", "2"]
    assert done.stderr.splitlines() == [
        "error: standard input, line 2: byte 0 is not UTF-8; convert the text first",
    ]

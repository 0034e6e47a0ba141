"""Scores of sentences by the command score: input, output and errors."""

import csv
import dataclasses
import io
import json
import os
import pty
import subprocess
import sys

import pytest

import xlnet_jax
from data_pipelines.tokenizer import Settings, Tokenizer
from tests.xlnet_jax.random_models import HEADS, SMALL, random_model
from xlnet_jax import InputError, score
from xlnet_jax.inference import score_files
from xlnet_jax.inference.scoring import score_texts

TEXTS = ["The list of names is new", "The names are old.", "new"]
ORDERS = ["left-to-right", "random:2"]


@pytest.fixture(scope="module")
def model(reference):
    tokenizer = Tokenizer((reference / "data" / "spiece.model").read_bytes(), Settings())
    return random_model(dataclasses.replace(SMALL, vocab_size=800), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    xlnet_jax.save(model, folder / "hf", "hf")
    xlnet_jax.save(dataclasses.replace(model, tokenizer=None), folder / "bare", "hf")
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    (folder / "texts.jsonl").write_text(
        "".join(json.dumps({"s": t, "n": f"id{i}"}) + "\n" for i, t in enumerate(TEXTS))
    )
    return folder


def run(folder, *arguments):
    return score.main([str(folder / "hf"), *map(str, arguments)])


def test_a_file_is_scored_line_by_line_in_its_order(model, folder, capsys, monkeypatch):
    monkeypatch.setattr(score_files, "TEXTS_AT_ONCE", 2)  # as a large file is, in chunks
    assert run(folder, "--texts", folder / "texts.txt", "--orders", *ORDERS) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for line, expected in zip(lines, score_texts(model, TEXTS, ORDERS), strict=True):
        assert line["pieces"] == expected.pieces
        assert line["log_probs"] == pytest.approx(expected.log_probs_P.tolist(), abs=2e-5)
        assert line["log_likelihood"] == pytest.approx(expected.log_likelihood, abs=1e-4)
        assert line["log_likelihoods"] == pytest.approx(expected.log_likelihoods_O.tolist(), abs=1e-4)
        assert line["log_mean_likelihood"] == pytest.approx(expected.log_mean_likelihood, abs=1e-4)
        assert line["perplexity"] == pytest.approx(expected.perplexity, rel=1e-4)
    assert [line["text"] for line in lines] == TEXTS


def test_a_table_has_a_row_a_sentence_with_its_id(folder, tmp_path, capsys):
    out = tmp_path / "scores.tsv"
    fields = ("--text-field", "s", "--id-field", "n")
    assert run(folder, "--texts", folder / "texts.jsonl", *fields, "--out", out) == 0
    summary = capsys.readouterr().out
    run(folder, "--texts", folder / "texts.txt")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = list(csv.DictReader(io.StringIO(out.read_text()), dialect="excel-tab"))
    assert [row["id"] for row in rows] == ["id0", "id1", "id2"]
    assert [row["text"] for row in rows] == TEXTS
    assert [float(row["log_likelihood"]) for row in rows] == [line["log_likelihood"] for line in lines]
    assert [int(row["pieces"]) for row in rows] == [len(line["pieces"]) for line in lines]
    assert f"3 texts, {sum(len(line['pieces']) for line in lines)} pieces" in summary
    assert f"{sum(line['log_likelihood'] for line in lines):.3f} nats in all" in summary
    assert "a piece, 0.00% of the pieces unknown" in summary
    assert not list(tmp_path.glob(".*"))


def test_the_summary_of_scores_says_what_share_is_unknown(folder, tmp_path, capsys):
    out = tmp_path / "scores.jsonl"
    assert run(folder, "--sentences", f"{TEXTS[0]} \u4e16 {TEXTS[0]} \u754c", "--out", out) == 0
    pieces = json.loads(out.read_text())["pieces"]
    assert pieces.count("<unk>") == 2
    assert f"{2 / len(pieces):.2%} of the pieces unknown" in capsys.readouterr().out


def test_a_terminal_for_messages_gets_no_scores(folder):
    """While progress shows on a terminal, rich would redirect the standard output to it."""
    main, terminal = pty.openpty()
    words = [sys.executable, "-m", "xlnet_jax.score", str(folder / "hf"), "--sentences", TEXTS[0]]
    printed = subprocess.run(words, stdout=subprocess.PIPE, stderr=terminal, text=True, timeout=120, check=True).stdout
    os.close(terminal)
    os.close(main)
    assert json.loads(printed)["text"] == TEXTS[0]


def test_sentences_of_the_command_line_are_scored_too(model, folder, capsys):
    assert run(folder, "--sentences", TEXTS[0], TEXTS[2], "--orders", "pseudo") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    scores = score_texts(model, [TEXTS[0], TEXTS[2]], "pseudo")
    assert [line["pseudo_log_likelihood"] for line in lines] == pytest.approx(
        [found.log_likelihood for found in scores], abs=1e-4
    )
    assert "log_likelihood" not in lines[0]


def test_files_or_sentences_are_scored(folder):
    for words in ([], ["--texts", "a.txt", "--sentences", "b"]):
        with pytest.raises(InputError, match="give either --texts, the names of files, or --sentences"):
            run(folder, *words)


def test_a_tokenizer_can_be_given_to_weights_without_one(folder, reference, tmp_path, capsys):
    words = ["--sentences", TEXTS[0]]
    with pytest.raises(InputError, match="the checkpoint has no tokenizer"):
        score.main([str(folder / "bare"), *words])
    given = ["--tokenizer", str(reference / "data" / "spiece.model")]
    assert score.main([str(folder / "bare"), *words, *given]) == 0
    theirs = capsys.readouterr().out
    run(folder, *words)
    assert capsys.readouterr().out == theirs


def test_a_mistake_is_one_line_that_names_it(folder, tmp_path):
    gap, wrong = tmp_path / "gap.jsonl", tmp_path / "scores.tsv"
    gap.write_text('{"text": "One."}\n{"text": ""}\n')
    wrong.write_text("there\n")
    for arguments, said in (
        (("--texts", gap), r"gap\.jsonl: line 2 is empty"),
        (("--texts", folder / "texts.txt", "--max-len", "5"), r"texts\.txt: line 1: 6 pieces, and 5 at most: split it"),
        (("--texts", folder / "texts.txt", "--orders", "0 1"), r"2 positions, and there are 6 .*texts\.txt: line 1"),
        (("--texts", folder / "texts.txt", "--orders", "0 0"), r"--orders '0 0' must have each of 0 to 1 once"),
        (("--texts", folder / "texts.jsonl", "--text-field", "x"), r"line 1 has no field 'x', only 's', 'n': name"),
        (
            ("--texts", folder / "texts.jsonl", "--text-field", "s", "--id-field", "x"),
            r"the one with the ids by --id-f",
        ),
        (("--texts", folder / "texts.txt", "--id-field", "x"), r"only JSON Lines and Parquet have fields"),
        (("--sentences", ""), r"sentence 1: the tokenizer leaves nothing"),
        (("--sentences", "x", "--out", wrong), r"scores\.tsv exists: name a file that does not, or give --overwrite"),
        (("--sentences", "x", "--out", "scores.txt"), r"give a name that ends in \.jsonl or \.tsv"),
        (("--sentences", "x", "--out", tmp_path / "no" / "a.tsv"), r"there is no folder .*no; make it"),
    ):
        with pytest.raises(InputError, match=said):
            run(folder, *arguments)
    assert wrong.read_text() == "there\n"
    xlnet_jax.save(random_model(head=HEADS["regression"]), tmp_path / "head", "hf")
    with pytest.raises(InputError, match="has a head for regression, and no vocabulary scores"):
        score.main([str(tmp_path / "head"), "--sentences", "x"])


def test_a_mistake_in_the_middle_leaves_no_file(folder, tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(f'{{"text": "{text}"}}\n' for text in ("One.", "Two.", "")))
    with pytest.raises(InputError, match="line 3 is empty"):
        run(folder, "--texts", texts, "--out", tmp_path / "scores.jsonl")
    assert [file.name for file in tmp_path.iterdir()] == ["texts.jsonl"]

"""Scores of sentences by the commands score and evaluate: input, output and errors."""

import csv
import dataclasses
import io
import json
import os
import pty
import subprocess
import sys
from importlib import import_module

import pytest

import xlnet_jax
from data_pipelines.tokenizer import Settings, Tokenizer
from tests.xlnet_jax.random_models import HEADS, SMALL, random_model
from xlnet_jax import InputError, score
from xlnet_jax.inference import score_files
from xlnet_jax.inference.scoring import score_texts

evaluate = import_module("xlnet_jax.evaluate")

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
    return evaluate.main([str(folder / "hf"), *map(str, arguments)])


def test_a_file_is_scored_line_by_line_in_its_order(model, folder, capsys, monkeypatch):
    monkeypatch.setattr(score_files, "TEXTS_AT_ONCE", 2)  # as a large file is, in chunks
    assert run(folder, "--score", folder / "texts.txt", "--orders", *ORDERS) == 0
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
    assert run(folder, "--score", folder / "texts.jsonl", *fields, "--out", out) == 0
    summary = capsys.readouterr().out
    run(folder, "--score", folder / "texts.txt")
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
    assert run(folder, "--score-text", f"{TEXTS[0]} \u4e16 {TEXTS[0]} \u754c", "--out", out) == 0
    pieces = json.loads(out.read_text())["pieces"]
    assert pieces.count("<unk>") == 2
    assert f"{2 / len(pieces):.2%} of the pieces unknown" in capsys.readouterr().out


def test_a_terminal_for_messages_gets_no_scores(folder):
    """While progress shows on a terminal, rich would redirect the standard output to it."""
    main, terminal = pty.openpty()
    words = [sys.executable, "-m", "xlnet_jax.evaluate", str(folder / "hf"), "--score-text", TEXTS[0]]
    printed = subprocess.run(words, stdout=subprocess.PIPE, stderr=terminal, text=True, timeout=120, check=True).stdout
    os.close(terminal)
    os.close(main)
    assert json.loads(printed)["text"] == TEXTS[0]


def test_sentences_of_the_command_line_are_scored_too(model, folder, capsys):
    assert run(folder, "--score-text", TEXTS[0], TEXTS[2], "--orders", "pseudo") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    scores = score_texts(model, [TEXTS[0], TEXTS[2]], "pseudo")
    assert [line["pseudo_log_likelihood"] for line in lines] == pytest.approx(
        [found.log_likelihood for found in scores], abs=1e-4
    )
    assert "log_likelihood" not in lines[0]


def test_score_prints_what_evaluate_prints(folder, tmp_path, capsys):
    options = ("--orders", *ORDERS, "--seed", "3", "--context", "The names.", "--max-len", "40")
    for ours, theirs in (
        (("--texts", folder / "texts.txt"), ("--score", folder / "texts.txt")),
        (("--sentences", *TEXTS), ("--score-text", *TEXTS)),
    ):
        assert run(folder, *theirs, *options) == 0
        expected = capsys.readouterr().out
        assert score.main([str(folder / "hf"), *map(str, ours), *options]) == 0
        assert capsys.readouterr().out == expected
    texts = ["--texts", str(folder / "texts.txt"), "--out", str(tmp_path / "scores.tsv")]
    assert score.main([str(folder / "hf"), *texts]) == 0
    assert "3 texts, " in capsys.readouterr().out
    for words in ([], ["--texts", "a.txt", "--sentences", "b"]):
        with pytest.raises(InputError, match="give either --texts, the names of files, or --sentences"):
            score.main([str(folder / "hf"), *words])


def test_a_tokenizer_can_be_given_to_weights_without_one(folder, reference, tmp_path, capsys):
    words = ["--score-text", TEXTS[0]]
    with pytest.raises(InputError, match="the checkpoint has no tokenizer"):
        evaluate.main([str(folder / "bare"), *words])
    given = ["--tokenizer", str(reference / "data" / "spiece.model")]
    assert evaluate.main([str(folder / "bare"), *words, *given]) == 0
    theirs = capsys.readouterr().out
    run(folder, *words)
    assert capsys.readouterr().out == theirs


def test_a_mistake_is_one_line_that_names_it(folder, tmp_path):
    gap, wrong = tmp_path / "gap.jsonl", tmp_path / "scores.tsv"
    gap.write_text('{"text": "One."}\n{"text": ""}\n')
    wrong.write_text("there\n")
    for arguments, said in (
        (("--score", gap), r"gap\.jsonl: line 2 is empty"),
        (("--score", folder / "texts.txt", "--max-len", "5"), r"texts\.txt: line 1: 6 pieces, and 5 at most: split it"),
        (("--score", folder / "texts.txt", "--orders", "0 1"), r"2 positions, and there are 6 .*texts\.txt: line 1"),
        (("--score", folder / "texts.txt", "--orders", "0 0"), r"--orders '0 0' must have each of 0 to 1 once"),
        (("--score", folder / "texts.jsonl", "--text-field", "x"), r"line 1 has no field 'x', only 's', 'n': name"),
        (
            ("--score", folder / "texts.jsonl", "--text-field", "s", "--id-field", "x"),
            r"the one with the ids by --id-f",
        ),
        (("--score", folder / "texts.txt", "--id-field", "x"), r"only JSON Lines and Parquet have fields"),
        (("--score-text", ""), r"sentence 1: the tokenizer leaves nothing"),
        (("--score-text", "x", "--out", wrong), r"scores\.tsv exists: name a file that does not, or give --overwrite"),
        (("--score-text", "x", "--out", "scores.txt"), r"give a name that ends in \.jsonl or \.tsv"),
        (("--score-text", "x", "--out", tmp_path / "no" / "a.tsv"), r"there is no folder .*no; make it"),
    ):
        with pytest.raises(InputError, match=said):
            run(folder, *arguments)
    assert wrong.read_text() == "there\n"
    xlnet_jax.save(random_model(head=HEADS["regression"]), tmp_path / "head", "hf")
    with pytest.raises(InputError, match="has a head for regression, and no vocabulary scores"):
        evaluate.main([str(tmp_path / "head"), "--score-text", "x"])


def test_a_mistake_in_the_middle_leaves_no_file(folder, tmp_path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(f'{{"text": "{text}"}}\n' for text in ("One.", "Two.", "")))
    with pytest.raises(InputError, match="line 3 is empty"):
        run(folder, "--score", texts, "--out", tmp_path / "scores.jsonl")
    assert [file.name for file in tmp_path.iterdir()] == ["texts.jsonl"]

"""Scores of texts are log-likelihoods under an order, and do not depend on the other texts; the command writes
them."""

import csv
import dataclasses
import io
import itertools
import json
from importlib import import_module

import jax
import numpy as np
import pytest

from data_pipelines.tokenizer import EOD
from tests.xlnet_jax.inference.test_factorize import dense_log_probs
from tests.xlnet_jax.random_models import HEADS, SMALL, random_model
from xlnet_jax import InputError
from xlnet_jax.inference import log_probs
from xlnet_jax.inference import score as scoring
from xlnet_jax.inference.factorize import factorize
from xlnet_jax.inference.log_probs import Query, log_likelihoods, log_probs_PV
from xlnet_jax.inference.score import score_texts
from xlnet_jax.models.inputs import text_inputs

command = import_module("xlnet_jax.score")

TEXT = "The list of names is new"
LONGER = "The list of names is new, and the names of the list are old. " * 2


def test_scores_are_those_of_the_network_with_the_masks_of_the_order(model):
    order = [2, 0, 5, 1, 3, 4]
    (score,) = score_texts(model, [TEXT], " ".join(map(str, order)))
    rank, rest = np.argsort(order), order[1:]  # the first piece of an order sees nothing
    ids = model.tokenizer.encode_lines([TEXT])[0]
    expected = dense_log_probs(model, ids, rest, rank < rank[:, None])
    np.testing.assert_allclose(score.log_probs_OP[0, rest], expected, atol=2e-5)
    assert score.log_likelihood == pytest.approx(score.log_probs_OP.sum(), abs=1e-4)


def test_probabilities_of_all_texts_of_two_pieces_sum_to_one():
    """The first piece sees nothing; equal ranks predict both pieces independently."""
    tiny = random_model(dataclasses.replace(SMALL, vocab_size=12))
    for rank in ([0, 1], [1, 0], [0, 0]):
        pairs = itertools.product(range(12), repeat=2)
        queries = [Query(np.array(pair, np.int32), np.arange(2), np.array(rank)) for pair in pairs]
        total = np.exp([scores.sum(dtype=np.float64) for scores in log_likelihoods(tiny, queries, 4096)]).sum()
        assert total == pytest.approx(1, abs=1e-5)


def test_the_pseudo_log_likelihood_shows_each_piece_all_others(model):
    (score,) = score_texts(model, [TEXT], "pseudo")
    ids = model.tokenizer.encode_lines([TEXT])[0]
    alone = [log_probs_PV(model, Query(ids, np.array([i]), np.array([0])))[0, piece] for i, piece in enumerate(ids)]
    np.testing.assert_allclose(score.log_probs_OP, [alone], atol=1e-5)


def test_scores_depend_neither_on_the_bucket_nor_on_the_batch(model, monkeypatch):
    texts, orders = [LONGER, TEXT, "new"], ["left-to-right", "random:2"]
    together = score_texts(model, texts, orders)
    monkeypatch.setattr(log_probs, "SHORTEST", 64)
    alone = score_texts(model, texts, orders, batch_tokens=1)
    assert len(together[0].pieces) > 16 > len(together[1].pieces)
    for ours, other in zip(together, alone, strict=True):
        assert other.pieces == ours.pieces
        np.testing.assert_allclose(other.log_probs_OP, ours.log_probs_OP, atol=1e-5)


def test_averages_over_orders_are_means_of_each_order(model):
    (both,) = score_texts(model, [TEXT], ["left-to-right", "right-to-left"])
    each = [score_texts(model, [TEXT], order)[0].log_likelihood for order in ("0 1 2 3 4 5", "5 4 3 2 1 0")]
    assert both.log_likelihoods_O == pytest.approx(each, abs=1e-4)
    assert both.log_likelihood == pytest.approx(np.mean(each), abs=1e-4)
    assert both.log_probs_P.sum() == pytest.approx(both.log_likelihood, abs=1e-4)
    assert both.log_mean_likelihood == pytest.approx(np.log(np.mean(np.exp(each))), abs=1e-4)
    assert both.perplexity == pytest.approx(np.exp(-both.log_likelihood / len(both.pieces)))
    # Random orders come again with their seed.
    first, second, other = (score_texts(model, ["new", TEXT], "random:3", seed=seed)[1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.log_probs_OP, second.log_probs_OP)
    assert len({round(total, 4) for total in [*first.log_likelihoods_O, *other.log_likelihoods_O]}) == 6


def test_all_pieces_see_a_context_that_is_not_scored(model):
    (told,) = score_texts(model, ["is new"], context="The list of names")
    joint = factorize(model, TEXT, "is new")
    assert told.pieces == joint.pieces
    np.testing.assert_allclose(told.log_probs_OP[0], joint.dependent_P, atol=2e-5)


def test_a_causal_model_scores_from_left_to_right_after_the_end_of_another_text(causal):
    run = jax.jit(lambda params, ids_1L: causal.network.apply({"params": params}, text_inputs(ids_1L))[0][0])
    for context in ("The list of names", ""):
        scores = score_texts(causal, ["is new", TEXT], context=context)
        for text, score in zip(["is new", TEXT], scores, strict=True):
            before, ids = (causal.tokenizer.encode_lines([words])[0] for words in (context, text))
            read = np.concatenate([[EOD], before, ids])
            logits = run(causal.params, np.pad(read, (0, 16 - len(read)))[None])
            log_probs = jax.nn.log_softmax(logits)[np.arange(len(read) - 1), read[1:]]
            np.testing.assert_allclose(score.log_probs_OP, log_probs[None, len(before) :], atol=1e-5)
    with pytest.raises(InputError, match=r"reads from left to right \(clm\), so left-to-right is the only order"):
        score_texts(causal, [TEXT], "pseudo")


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        ("backwards", r"`orders` backwards: give one or several of left-to-right, right-to-left, random:8"),
        (["pseudo", "left-to-right"], r"`orders` pseudo, left-to-right: give one .* or only pseudo"),
        ((), r"`orders` : give one"),
        (
            "0 1 1",
            r"`orders` '0 1 1' must have each position of the 6 pieces exactly once in text 0, which reads: ▁The",
        ),
    ],
)
def test_an_order_that_does_not_fit_is_named(model, orders, said):
    with pytest.raises(InputError, match=said):
        score_texts(model, [TEXT], orders)


def test_texts_and_checkpoints_that_cannot_be_scored_are_named(model):
    uni = dataclasses.replace(model, model=dataclasses.replace(model.model, attn_type="uni"))
    for network, texts, said in (
        (model, ["new", " "], "text 1 has no pieces: the tokenizer removes all of it"),
        (random_model(head=HEADS["regression"]), [TEXT], "has a head for regression and no vocabulary scores"),
        (random_model(), [TEXT], "has no tokenizer"),
        (uni, [TEXT], "reads in one direction"),
        (
            dataclasses.replace(model, objective="mlm"),
            [TEXT],
            r"trained to predict masked pieces \(mlm\), each by itself",
        ),
    ):
        with pytest.raises(InputError, match=said):
            score_texts(network, texts)


TEXTS = [TEXT, "The names are \u4e16 old.", "new"]
ORDERS = ["left-to-right", "random:2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("score")
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    lines = (json.dumps({"s": text, "n": f"id{i}"}) + "\n" for i, text in enumerate(TEXTS))
    (folder / "texts.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def score(checkpoint):
    return lambda *words: command.main([str(checkpoint), *map(str, words)])


def test_a_file_is_scored_line_by_line_in_its_order(model, score, folder, capsys, monkeypatch):
    monkeypatch.setattr(scoring, "TEXTS_AT_ONCE", 2)  # as a large file is, in chunks
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal, where rich would print scores among its progress
    assert score("--texts", folder / "texts.txt", "--orders", *ORDERS) == 0
    printed = capsys.readouterr().out
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [line["text"] for line in lines] == TEXTS
    for line, expected in zip(lines, score_texts(model, TEXTS, ORDERS), strict=True):
        assert line["pieces"] == expected.pieces
        assert line["log_probs"] == pytest.approx(expected.log_probs_P.tolist(), abs=2e-5)
        assert line["log_likelihoods"] == pytest.approx(expected.log_likelihoods_O.tolist(), abs=1e-4)
        for name in ("log_likelihood", "log_mean_likelihood", "perplexity"):
            assert line[name] == pytest.approx(getattr(expected, name), rel=1e-4)
    assert score("--sentences", *TEXTS, "--orders", *ORDERS) == 0
    assert capsys.readouterr().out == printed
    score("--sentences", "new", "--orders", "pseudo")
    assert '"log_likelihood"' not in (line := capsys.readouterr().out)
    assert '"pseudo_log_likelihood"' in line


def test_a_table_has_a_row_a_sentence_with_its_id(model, score, folder, tmp_path, capsys):
    out = tmp_path / "scores.tsv"
    fields = ("--text-field", "s", "--id-field", "n")
    assert score("--texts", folder / "texts.jsonl", *fields, "--out", out) == 0
    summary, scores = capsys.readouterr().out, score_texts(model, TEXTS)
    rows = list(csv.DictReader(io.StringIO(out.read_text()), dialect="excel-tab"))
    assert [(row["id"], row["text"]) for row in rows] == list(zip(["id0", "id1", "id2"], TEXTS, strict=True))
    likelihoods = [found.log_likelihood for found in scores]
    assert [float(row["log_likelihood"]) for row in rows] == pytest.approx(likelihoods, abs=1e-4)
    assert [int(row["pieces"]) for row in rows] == [len(found.pieces) for found in scores]
    pieces = [piece for found in scores for piece in found.pieces]
    assert f"3 texts, {len(pieces)} pieces, {sum(likelihoods):.3f} nats" in summary
    assert f"a piece, {pieces.count('<unk>') / len(pieces):.2%} of the pieces unknown" in summary
    assert not list(tmp_path.glob(".*"))


def test_a_mistake_is_one_line_that_names_it_and_leaves_no_file(score, folder, tmp_path):
    gap, there = tmp_path / "gap.jsonl", tmp_path / "scores.tsv"
    gap.write_text("".join(f'{{"text": "{text}"}}\n' for text in ("One.", "Two.", "")))
    there.write_text("there\n")
    texts, lines = ("--texts", folder / "texts.txt"), ("--texts", folder / "texts.jsonl")
    for words, said in (
        ((), "give either --texts, names of files, or --sentences"),
        (("--texts", gap, "--out", tmp_path / "new.jsonl"), r"gap\.jsonl: line 3 is empty"),
        ((*texts, "--max-len", "5"), r"texts\.txt: line 1 has 6 pieces .* more than 5: split it, or raise --max-len"),
        ((*lines, "--text-field", "s", "--id-field", "x"), r"name the id field with --id-field"),
        (("--sentences", "x", "--out", there), r"scores\.tsv exists: give another file, or --overwrite"),
        (("--sentences", "x", "--out", "scores.txt"), r"give a name that ends in \.jsonl or \.tsv"),
    ):
        with pytest.raises(InputError, match=said):
            score(*words)
    assert there.read_text() == "there\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["gap.jsonl", "scores.tsv"]

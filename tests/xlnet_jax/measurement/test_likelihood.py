"""Likelihoods of a corpus are those of its texts, with intervals over texts."""

import json
import math

import numpy as np
import pytest

import xlnet_jax
from data_pipelines import sources
from data_pipelines.prepare.commands import prepare
from xlnet_jax import InputError, score_texts
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.inference.score import score_ids
from xlnet_jax.measurement.likelihood import estimate, measure_likelihoods, resampled_sums

command = COMMANDS["evaluate"]

DOCUMENTS = ["The list of names is new.", "new names", "It is old,\nand the list of names is new. The names are old."]
WORDS = ["left-to-right", "random:3", "bound:7", "pseudo"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("likelihood") / "text.txt"
    path.write_text("\n\n".join(DOCUMENTS) + "\n")
    return path


@pytest.fixture(scope="module")
def scores(model):
    """Scores of each document by order. Each has orders of its own."""
    texts = [" ".join(document.split()) for document in DOCUMENTS]
    ids, settings = model.tokenizer.encode_lines(texts), {"max_len": 8, "seed": 5, "names": texts, "numbers": range(3)}
    return {
        word: [
            score._replace(log_probs_OP=own_OP)
            for score, own_OP in zip(
                score_texts(model, texts, word, max_len=8, seed=5),
                score_ids(model, ids, [word], **settings),
                strict=True,
            )
        ]
        for word in WORDS
    }


def test_texts_of_one_length_have_orders_of_their_own(model):
    """Otherwise all of a corpus had the same, and intervals over texts would be too narrow."""
    ids = model.tokenizer.encode_lines(["It is a truth"])[0]
    settings = {"names": ["one", "two"], "max_len": 64}
    for word in ("random:1", "bound:3"):
        first, second = score_ids(model, [ids, ids], [word], numbers=[0, 1], **settings)
        assert np.abs(first - second).max() > 1e-4
        first, second = score_ids(model, [ids, ids], [word], **settings)
        np.testing.assert_array_equal(first, second)


def settings(text, **others):
    return {"text": str(text), "orders": WORDS, "data": {"seq_len": 8}, "mem_len": 5, "seed": 5, **others}


def test_each_number_is_that_of_all_texts_together(checkpoint, scores, text, tmp_path):
    found = xlnet_jax.evaluate(checkpoint, **settings(text, out=str(tmp_path / "found.json")))
    measured = found.measured
    pieces = sum(len(score.pieces) for score in scores["pseudo"])
    characters = sum(len("".join(score.pieces).replace("<unk>", "?")) for score in scores["pseudo"])
    unknown = sum(score.pieces.count("<unk>") for score in scores["pseudo"])
    assert measured.facts == {"texts": 3, "pieces": pieces, "characters": characters, "unknown": unknown}
    totals = {word: -sum(score.log_likelihood for score in scores[word]) for word in WORDS}
    both = [
        [*a.log_likelihoods_O, *b.log_likelihoods_O] for a, b in zip(scores[WORDS[0]], scores[WORDS[1]], strict=True)
    ]
    totals["best of 4 orders"] = -sum(map(max, both))
    totals["mixture of orders"] = -sum(score.log_mean_likelihood for score in scores["random:3"])
    for name in ("random:3", "mixture of orders"):
        totals[f"bound:7 minus {name}"] = totals["bound:7"] - totals[name]
    assert set(totals) == set(measured.tables["orders"])
    for name, total in totals.items():
        nats, bits = measured.tables["orders"][name].values()
        assert nats.value == pytest.approx(total / pieces, abs=1e-5)
        assert bits.value == pytest.approx(total / characters / math.log(2), abs=1e-5)
        assert nats.low <= nats.value <= nats.high
        assert f"{nats.value:.4f} [{nats.low:.4f}, {nats.high:.4f}]" in found.report
    written = json.loads((tmp_path / "found.json").read_text())
    assert written == measured.numbers()
    assert written["orders"]["random:3"]["nats per piece"]["value"] * pieces == pytest.approx(
        totals["random:3"], abs=1e-3
    )


def test_a_prepared_corpus_has_its_documents(model, checkpoint, text, tmp_path):
    """The last one loses what no longer fills a block."""
    corpus = prepare(
        (), sources.find([str(text)]), model.tokenizer, tmp_path / "corpus", block_len=4, validation_fraction=0
    )
    encoded = model.tokenizer.encode_lines([" ".join(document.split()) for document in DOCUMENTS])
    documents = list(corpus.documents("validation"))
    assert [*map(list, documents[:2])] == [*map(list, encoded[:2])]
    assert list(documents[2]) == list(encoded[2][: len(documents[2])])
    assert len(encoded[2]) - 4 < len(documents[2])
    found = xlnet_jax.evaluate(checkpoint, **settings(tmp_path / "corpus", orders=["left-to-right"])).measured
    assert found.facts["pieces"] == sum(map(len, documents))


def test_at_most_max_texts_are_read_evenly(model, checkpoint, text):
    found = xlnet_jax.evaluate(checkpoint, **settings(text, orders=["left-to-right"], max_texts=2))
    assert found.measured.facts["pieces"] == sum(map(len, model.tokenizer.encode_lines(DOCUMENTS[:2])))


def test_intervals_cover_the_true_mean_as_often_as_they_say():
    """Ratios of sums over 100 texts of different sizes, 200 times."""
    rng, covered = np.random.default_rng(0), 0
    for trial in range(200):
        size_T = rng.integers(1, 20, 100)
        loss_T = size_T * 3 + np.sqrt(size_T) * rng.normal(0, 2, 100)
        sums = resampled_sums(np.column_stack([size_T, loss_T]), trial)
        found = estimate(sums[:, 1] / sums[:, 0])
        assert found.value == pytest.approx(loss_T.sum() / size_T.sum())
        covered += found.low <= 3 <= found.high
    assert 0.9 <= covered / 200 <= 0.99
    np.testing.assert_array_equal(resampled_sums(np.eye(4), 1), resampled_sums(np.eye(4), 1))


def test_a_causal_network_reads_from_left_to_right(causal):
    texts = causal.tokenizer.encode_lines(DOCUMENTS)
    found = measure_likelihoods(
        causal, texts, ["left-to-right"], names=DOCUMENTS, seed=0, max_len=4, mem_len=5, on_batch=lambda *_: None
    )
    assert set(found.tables["orders"]) == {"left-to-right"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--orders", "sideways"), r"--orders sideways: give one or several of left-to-right"),
        (
            ("--orders", "random:2", "--max-windows", "3"),
            r"--max-windows is for windows, but --orders reads whole texts",
        ),
        (("--orders", "all", "--data.reuse-len", "3"), r"--data\.reuse-len is for windows, but --orders reads whole"),
        (("--seed", "1"), r"--seed needs --orders"),
        (("--orders", "all"), r"--orders 'all' is for texts of at most 6 pieces"),
    ],
)
def test_settings_that_cannot_work_are_named_in_one_line(checkpoint, text, words, said):
    with pytest.raises(InputError, match=said):
        command.main([str(checkpoint), "--text", str(text), *words])

"""Scores of texts are log-likelihoods under an order, and do not depend on the other texts."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data_pipelines.tokenizer import EOD, Settings, Tokenizer
from tests.xlnet_jax.random_models import CAUSAL, HEADS, SMALL, random_model
from xlnet_jax import InputError
from xlnet_jax.inference import lengths
from xlnet_jax.inference.factorization import factorize
from xlnet_jax.inference.query_stream import Query, log_likelihoods, log_probs_PV
from xlnet_jax.inference.scoring import score_texts
from xlnet_jax.models.inputs import dense_inputs, text_inputs
from xlnet_jax.models.xlnet import XLNetLM

TEXT = "The list of names is new"
LONGER = "The list of names is new, and the names of the list are old. " * 2


@pytest.fixture(scope="module")
def model(reference):
    tokenizer = Tokenizer((reference / "data" / "spiece.model").read_bytes(), Settings())
    return random_model(dataclasses.replace(SMALL, vocab_size=800), tokenizer=tokenizer)


def one_by_one(model, ids, order):
    """Return log p of each piece, from one forward pass of the ordinary network for each.

    The pass gets the pieces before the target in the order; all others, the target included, are replaced by another
    piece. The first piece of the order is left out: it sees nothing."""
    scores = np.full(len(ids), np.nan)
    for t in range(1, len(ids)):
        target = order[t]
        known = np.zeros(len(ids), bool)
        known[order[:t]] = True
        hidden = np.where(known, ids, 9)
        perm_mask = np.ones((1, len(ids), len(ids)), np.float32)
        # Ranks follow the order: a content row sees the pieces before it, and itself, which the network adds.
        for later, row in enumerate(order[:t]):
            perm_mask[0, row, order[:later]] = 0
        perm_mask[0, target, order[:t]] = 0
        inputs = dense_inputs(
            jnp.asarray(hidden)[None],
            segment_ids_BL=jnp.zeros((1, len(ids)), jnp.int32),
            perm_mask_BLL=jnp.asarray(perm_mask),
            target_mapping_BPL=jnp.asarray(np.eye(len(ids), dtype=np.float32)[None, [target]]),
        )
        logits, _ = run(model.params, inputs)
        scores[target] = jax.nn.log_softmax(logits[0, 0])[ids[target]]
    return scores


@jax.jit
def run(params, inputs):
    return XLNetLM(dataclasses.replace(SMALL, vocab_size=800)).apply({"params": params}, inputs)


@pytest.mark.parametrize("order", ["left-to-right", "right-to-left", "2 0 5 1 3 4"])
def test_scores_are_those_of_the_network_run_token_by_token(model, order):
    (score,) = score_texts(model, [TEXT], order)
    ids = model.tokenizer.encode_lines([TEXT])[0]
    forwards = list(range(len(ids)))
    positions = {"left-to-right": forwards, "right-to-left": forwards[::-1]}.get(order) or list(map(int, order.split()))
    expected = one_by_one(model, ids, positions)
    rest = positions[1:]
    np.testing.assert_allclose(score.log_probs_OP[0, rest], expected[rest], atol=2e-5)
    assert score.log_likelihood == pytest.approx(score.log_probs_OP.sum(), abs=1e-4)


@pytest.mark.parametrize("rank", [[0, 1], [1, 0], [0, 0]])
def test_probabilities_of_all_texts_of_two_pieces_sum_to_one(rank):
    """The first piece sees nothing; equal ranks predict both pieces independently."""
    tiny = random_model(dataclasses.replace(SMALL, vocab_size=12))
    pairs = itertools.product(range(12), repeat=2)
    queries = [Query(np.array(pair, np.int32), np.arange(2), np.array(rank)) for pair in pairs]
    total = np.exp([scores.sum(dtype=np.float64) for scores in log_likelihoods(tiny, queries, 4096)]).sum()
    assert total == pytest.approx(1, abs=1e-5)


def test_a_piece_that_sees_nothing_does_not_see_itself():
    tiny = random_model(dataclasses.replace(SMALL, vocab_size=12))
    first, other = (
        log_probs_PV(tiny, Query(np.array(ids, np.int32), np.array([0]), np.array([0]))) for ids in ([9], [10])
    )
    np.testing.assert_array_equal(first, other)


def test_the_pseudo_log_likelihood_shows_each_piece_all_others(model):
    (score,) = score_texts(model, [TEXT], "pseudo")
    last = [*range(1, len(score.pieces)), 0]
    told_all = score_texts(model, [TEXT], " ".join(map(str, last)))[0].log_probs_OP[0, 0]
    assert score.log_probs_OP.shape == (1, len(score.pieces))
    ids = model.tokenizer.encode_lines([TEXT])[0]
    for i in range(len(ids)):
        alone = log_probs_PV(model, Query(ids, np.array([i]), np.array([0])))[0, ids[i]]
        assert score.log_probs_OP[0, i] == pytest.approx(alone, abs=1e-5)
    # In an order the other pieces see less themselves.
    assert abs(score.log_probs_OP[0, 0] - told_all) > 1e-4


def test_scores_depend_neither_on_the_bucket_nor_on_the_batch(model, monkeypatch):
    texts, orders = [LONGER, TEXT, "new"], ["left-to-right", "random:2"]
    together = score_texts(model, texts, orders)
    alone = score_texts(model, texts, orders, batch_tokens=1)
    monkeypatch.setattr(lengths, "SHORTEST", 64)
    padded = score_texts(model, texts, orders)
    assert len(together[0].pieces) > 16 > len(together[1].pieces)
    for ours, *others in zip(together, alone, padded, strict=True):
        for other in others:
            assert other.pieces == ours.pieces
            np.testing.assert_allclose(other.log_probs_OP, ours.log_probs_OP, atol=1e-5)


def test_averages_over_orders_are_means_of_each_order(model):
    (both,) = score_texts(model, [TEXT], ["left-to-right", "right-to-left"])
    each = [score_texts(model, [TEXT], order)[0].log_likelihood for order in ("left-to-right", "right-to-left")]
    assert both.log_likelihoods_O == pytest.approx(each, abs=1e-4)
    assert both.log_likelihood == pytest.approx(np.mean(each), abs=1e-4)
    assert both.log_probs_P.sum() == pytest.approx(both.log_likelihood, abs=1e-4)
    assert both.log_mean_likelihood == pytest.approx(np.log(np.mean(np.exp(each))), abs=1e-4)
    assert both.perplexity == pytest.approx(np.exp(-both.log_likelihood / len(both.pieces)))


def test_random_orders_differ_and_come_again_with_their_seed(model):
    first, second, other = (score_texts(model, ["new", TEXT], "random:3", seed=seed)[1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.log_probs_OP, second.log_probs_OP)
    assert len({round(total, 4) for total in [*first.log_likelihoods_O, *other.log_likelihoods_O]}) == 6


def test_all_pieces_see_a_context_that_is_not_scored(model):
    (alone,) = score_texts(model, ["is new"])
    (told,) = score_texts(model, ["is new"], context="The list of names")
    joint = factorize(model, TEXT, "is new")
    assert told.pieces == alone.pieces == joint.pieces
    np.testing.assert_allclose(told.log_probs_OP[0], joint.dependent_P, atol=2e-5)
    assert abs(told.log_likelihood - alone.log_likelihood) > 1e-2


def test_a_causal_model_scores_from_left_to_right_behind_the_end_of_another_text(model):
    causal = random_model(dataclasses.replace(CAUSAL, vocab_size=800), tokenizer=model.tokenizer)
    run = jax.jit(lambda params, ids_1L: causal.network.apply({"params": params}, text_inputs(ids_1L))[0][0])
    told, alone = (score_texts(causal, ["is new", TEXT], context=text) for text in ("The list of names", ""))
    for scores, context in ((told, "The list of names"), (alone, "")):
        for text, score in zip(["is new", TEXT], scores, strict=True):
            before, ids = (model.tokenizer.encode_lines([words])[0] for words in (context, text))
            read = np.concatenate([[EOD], before, ids])
            logits = run(causal.params, np.pad(read, (0, 16 - len(read)))[None])
            log_probs = jax.nn.log_softmax(logits)[np.arange(len(read) - 1), read[1:]]
            np.testing.assert_allclose(score.log_probs_OP, log_probs[None, len(before) :], atol=1e-5)
            assert score.log_likelihood == pytest.approx(score.log_probs_OP.sum(), abs=1e-4)
    # The same text split into context and target has the same log-probabilities.
    assert alone[1].log_probs_OP[0, 4:] == pytest.approx(told[0].log_probs_OP[0], abs=1e-5)
    for orders in ("right-to-left", "random:2", "pseudo", ["left-to-right", "random:2"]):
        with pytest.raises(InputError, match=r"reads from left to right \(clm\), .*: left-to-right is the only order"):
            score_texts(causal, [TEXT], orders)


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        ("backwards", r"`orders` 'backwards': give left-to-right, right-to-left, random:N, pseudo, or the positions"),
        ("0 1 1", r"`orders` '0 1 1' must have each of 0 to 2 once"),
        ("2 0 1", r"`orders` '2 0 1' has 3 positions, and there are 6 pieces in text 0, which reads: ▁The"),
        ("random:none", r"`orders` random:none: give a number, as in random:8"),
        (["pseudo", "left-to-right"], r"pseudo is no order, and stands by itself"),
        ((), r"`orders` names no order"),
    ],
)
def test_an_order_that_does_not_fit_is_named(model, orders, said):
    with pytest.raises(InputError, match=said):
        score_texts(model, [TEXT], orders)


def test_mistakes_are_named(model):
    with pytest.raises(InputError, match=r"b.txt: line 2: 6 pieces, and 5 at most: split it, or raise `max_len`"):
        score_texts(model, ["new", TEXT], names=["b.txt: line 1", "b.txt: line 2"], max_len=5)
    with pytest.raises(InputError, match="text 1: the tokenizer leaves nothing of it"):
        score_texts(model, ["new", " "])
    with pytest.raises(InputError, match="has a head for regression, and no vocabulary scores"):
        score_texts(random_model(head=HEADS["regression"]), [TEXT])
    with pytest.raises(InputError, match="has no tokenizer"):
        score_texts(random_model(), [TEXT])
    uni = dataclasses.replace(model, model=dataclasses.replace(model.model, attn_type="uni"))
    with pytest.raises(InputError, match="reads in one direction"):
        score_texts(uni, [TEXT])
    masked = {"backbone": {n: p for n, p in model.params["backbone"].items() if n != "mask_embedding"}}
    with pytest.raises(
        InputError, match=r"has learned masked pieces \(mlm\), each by itself, and cannot be asked in an"
    ):
        score_texts(dataclasses.replace(model, params=model.params | masked, objective="mlm"), [TEXT])

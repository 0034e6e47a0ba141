"""Draws are the pieces that the ordinary network would draw, within the limits of the settings; the command prints
them."""

import dataclasses
import itertools
import json
import re

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

import xlnet_jax
from data_pipelines import sources
from data_pipelines.tokenizer import EOD, MASK, PAD, SPACE, SPECIAL_PIECES, Tokenizer
from tests.xlnet_jax.random_models import BERT, CAUSAL, HEADS, SMALL, random_model, random_params
from xlnet_jax import InputError
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference import passes
from xlnet_jax.inference.draws import Limits, probabilities, sample
from xlnet_jax.inference.log_probs import Query, log_likelihoods, log_probs_PV, query_logits_BPV, stack_queries
from xlnet_jax.inference.passes import NONE
from xlnet_jax.inference.requests import (
    OF_PROSE,
    OF_RECORDS,
    GenerateSettings,
    Kind,
    allowed_XV,
    fill,
    read_prompt,
    segments,
)
from xlnet_jax.inference.sampler import Sampler, spread_order
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.plots.passes import draw_passes

command = COMMANDS["generate"]

TEXT = "It is a truth"
CONTEXT = 24


@pytest.fixture(scope="module")
def tokenizer():
    with open(sources.embedded()[0]) as novels:
        return Tokenizer.train([line.strip() for line in itertools.islice(novels, 300)], 300, "english")


@pytest.fixture(scope="module")
def model(tokenizer):
    return make_attentive(dataclasses.replace(SMALL, vocab_size=300, num_layers=2), tokenizer)


@pytest.fixture(scope="module")
def causal(tokenizer):
    return make_attentive(dataclasses.replace(CAUSAL, vocab_size=300), tokenizer)


def make_attentive(config, tokenizer):
    model = random_model(config, tokenizer=tokenizer)
    # The tokens read must decide the draws, not the terms that all positions share.
    backbone, layers = model.params["backbone"], model.params["backbone"]["layers"]
    for name in "qkvro":
        layers["attention"][name] *= 3
    for block in layers.values():
        block["norm"]["LayerNorm_0"]["bias"] *= 0
    layers["feed_forward"]["outer"]["bias"] *= 0
    backbone["word_embedding"] *= 3
    backbone["mask_embedding"] *= 0.1
    model.params["output_bias"] *= 0
    model.params["output_bias"][EOD] = -1e3
    return model


def make_sampler(model, **settings):
    return Sampler(
        model,
        GenerateSettings("loaded", **{"context": CONTEXT, "temperature": 0.0, "repetition_penalty": 1.0, **settings}),
    )


@pytest.fixture(scope="module")
def greedy(model):
    return make_sampler(model)


def draw(sampler, texts, seed=0, first=0):
    """Return copies of requests with the pieces that were drawn for them."""
    rows = [dataclasses.replace(text) for text in texts]
    assert len(list(sampler.draw(rows, jax.random.key(seed), first)))
    assert all(row.is_done for row in rows)
    return rows


# ---- any order, several pieces per pass ------------------------------------------------------------------------------

GAPS = "The ___ of the sea, un___, and he said that it was a ___ in her."


def filled(text, row):
    """Return the ids of a text with the pieces that were drawn for it."""
    size = max(len(text.ids_L), text.targets_P.max() + 1)
    ids = np.pad(text.ids_L, (0, size - len(text.ids_L)), constant_values=PAD)
    ids[text.targets_P[: len(row.ids_P)]] = row.ids_P
    return ids


def filled_with(tokenizer, text, ids):
    return fill(tokenizer, dataclasses.replace(text, ids_P=ids))


def texts_of_several_lengths(tokenizer):
    """Return gaps of more than 200 pieces in all, few ones, and a continuation."""
    return [
        read_prompt(tokenizer, GAPS, gap_pieces=[150, 3, 60]),
        read_prompt(tokenizer, GAPS, gap_pieces=[2, 1, 7]),
        read_prompt(tokenizer, TEXT, max_new_tokens=41),
    ]


@pytest.mark.parametrize(
    ("order", "parallel"),
    [("left", 1), ("left", 16), ("left", 0), ("random", 1), ("random", 16), ("random", 10**12), ("confidence", 7)],
)
def test_log_probs_are_those_of_the_ordinary_network_by_the_number_of_the_pass(model, order, parallel):
    texts = texts_of_several_lengths(model.tokenizer)
    rows = draw(make_sampler(model, context=256, temperature=1.0, order=order, parallel=parallel), texts)
    queries = [Query(filled(text, row), text.targets_P, row.passes_P) for text, row in zip(texts, rows, strict=True)]
    for text, row, log_probs in zip(texts, rows, log_likelihoods(model, queries, 1024), strict=True):
        np.testing.assert_allclose(row.log_probs_P, log_probs, atol=1e-5)
        each = parallel or len(text.targets_P)
        assert_sizes_of_passes(row.passes_P, order, each)
        if order == "left":
            np.testing.assert_array_equal(row.passes_P, np.arange(len(text.targets_P)) // each)
        assert allowed_XV(model.tokenizer)[text.kinds_P, row.ids_P].all()


def assert_sizes_of_passes(passes_P, order, parallel):
    """As few passes as possible: all but the last are full, or, in random order, all have every n-th target, so that
    they are far from each other. By confidence, neighbors are not of one pass."""
    sizes, count = np.bincount(passes_P), len(passes_P)
    if order == "confidence":
        assert max(sizes) <= parallel
        return
    assert len(sizes) == -(-count // parallel)
    full = [min(parallel, count - parallel * i) for i in range(len(sizes))]
    spread = [len(range(i, count, len(sizes))) for i in range(len(sizes))]
    if order != "random":
        assert sizes.tolist() == full
        return
    assert sorted(sizes) == sorted(spread)
    for number in range(len(sizes)):
        assert (np.diff(np.flatnonzero(passes_P == number)) == len(sizes)).all()


def test_all_at_once_fills_gaps_as_bert_does(model):
    text = read_prompt(model.tokenizer, GAPS, gap_pieces=[3, 2, 5])
    may_be = allowed_XV(model.tokenizer)[text.kinds_P]
    log_probs = log_probs_PV(model, Query(text.ids_L, text.targets_P, np.zeros_like(text.targets_P)))
    for order in ("left", "random", "confidence"):
        (row,) = draw(make_sampler(model, context=64, order=order, parallel=0), [text])
        np.testing.assert_array_equal(np.where(may_be, log_probs, -np.inf).argmax(1), row.ids_P)
        np.testing.assert_allclose(row.log_probs_P, log_probs[np.arange(len(row.ids_P)), row.ids_P], atol=1e-5)


@pytest.mark.parametrize("parallel", [1, 3])
def test_confidence_takes_the_targets_whose_likeliest_piece_is_the_most_probable(model, parallel):
    """One pass of the ordinary network for each group: a plain loop, without a cache. The pieces of a pass are four
    positions from each other at least."""
    text = read_prompt(model.tokenizer, GAPS, gap_pieces=[4, 2, 5])
    (row,) = draw(make_sampler(model, context=64, order="confidence", parallel=parallel), [text])
    ids, passes = text.ids_L.copy(), np.full(len(text.targets_P), len(text.targets_P))
    may_be = allowed_XV(model.tokenizer)[text.kinds_P]
    for number in itertools.takewhile(lambda number: passes.max() > number, itertools.count()):
        log_probs = np.where(may_be, log_probs_PV(model, Query(ids, text.targets_P, passes)), -np.inf)
        best = np.where(passes > number, log_probs.max(1), -np.inf)
        chosen: list[int] = []
        for i in np.argsort(-best, kind="stable")[: (passes > number).sum()]:
            is_apart = all(abs(text.targets_P[i] - text.targets_P[j]) >= 4 for j in chosen)
            chosen += [i] if is_apart and len(chosen) < parallel else []
        ids[text.targets_P[chosen]] = log_probs.argmax(1)[chosen]
        passes[chosen] = number
    np.testing.assert_array_equal(row.passes_P, passes)
    np.testing.assert_array_equal(row.ids_P, ids[text.targets_P])
    assert (np.diff(passes) < 0).any()


@pytest.mark.parametrize(("order", "parallel"), [("left", 1), ("random", 4), ("confidence", 4)])
def test_a_draw_depends_on_its_seed_and_number_and_on_no_other_text(model, order, parallel):
    texts = texts_of_several_lengths(model.tokenizer)[1:]
    sampler = make_sampler(model, context=64, temperature=1.5, top_k=50, top_p=0.95, order=order, parallel=parallel)
    together = draw(sampler, texts)
    alone = [draw(sampler, [text], first=i)[0] for i, text in enumerate(texts)]
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_array_equal(a.ids_P, b.ids_P)
        np.testing.assert_array_equal(a.passes_P, b.passes_P)
    assert draw(sampler, texts, seed=1)[1].ids_P.tolist() != together[1].ids_P.tolist()


def test_random_orders_are_drawn_anew_for_each_text_and_seed(model):
    text = read_prompt(model.tokenizer, TEXT, max_new_tokens=16)
    sampler = make_sampler(model, context=64, temperature=1.0, order="random")
    orders = [row.passes_P.tolist() for seed in (0, 1) for row in draw(sampler, [text] * 4, seed)]
    assert all(sorted(order) == list(range(16)) for order in orders)
    assert len(set(map(tuple, orders))) == 8


def test_pieces_of_a_pass_are_far_from_each_other():
    for targets, parallel, seed in itertools.product(range(1, 65), range(1, 65), (0, 1)):
        order = [numbers[numbers != NONE] for numbers in spread_order(targets, parallel, seed)]
        assert len(order) == (passes := -(-targets // parallel))
        assert all((np.diff(numbers) == passes).all() for numbers in order)
        np.testing.assert_array_equal(np.sort(np.concatenate(order)), np.arange(targets))


@pytest.mark.parametrize("order", ["left", "random", "confidence"])
def test_a_text_ends_at_its_first_stop_whatever_was_drawn_after_it(model, order):
    """Targets after the end are no longer drawn, so a text of 200 ends after a few passes."""
    bias = np.where(np.arange(300) == EOD, 8.0, 0.0).astype(np.float32)
    ending = dataclasses.replace(model, params=model.params | {"output_bias": bias})
    texts = [read_prompt(model.tokenizer, prompt, max_new_tokens=200) for prompt in (TEXT, "Emma was")]
    sampler = make_sampler(ending, context=256, temperature=1.0, order=order, parallel=5)
    for text, row in zip(texts, draw(sampler, texts), strict=True):
        assert row.is_stopped
        assert EOD not in row.ids_P
        assert PAD not in row.ids_P
        assert len(row.log_probs_P) == len(row.passes_P) == len(row.ids_P) + 1 < 200
        assert row.passes_P.max() < 20  # of 40
        if order == "left":
            given, count = text.targets_P[0], len(row.ids_P)
            whole = np.concatenate([text.ids_L, row.ids_P, [EOD]]).astype(np.int32)
            query = Query(whole, given + np.arange(count + 1), row.passes_P)
            np.testing.assert_allclose(row.log_probs_P, *log_likelihoods(ending, [query], 1024), atol=1e-5)


def test_groups_go_on_beyond_the_context(model):
    """Each piece sees the newest positions before it. One layer, in which keys depend on their own token only."""
    one = make_attentive(dataclasses.replace(SMALL, vocab_size=300, num_layers=1), model.tokenizer)
    text = read_prompt(model.tokenizer, TEXT, max_new_tokens=61)
    (row,) = draw(make_sampler(one, temperature=1.0, parallel=4), [text])
    whole, queries = filled(text, row), []
    for target, number in zip(text.targets_P, row.passes_P, strict=True):
        begin, group = max(target - CONTEXT, 0), text.targets_P[number * 4]
        hidden = np.arange(group, target + 1) - begin
        queries.append(Query(whole[begin : target + 1], hidden, np.zeros_like(hidden)))
    log_probs = [found[-1] for found in log_likelihoods(one, queries, 1024)]
    np.testing.assert_allclose(row.log_probs_P, log_probs, atol=1e-5)
    assert len(whole) > 2 * CONTEXT


# ---- networks that read <mask> ---------------------------------------------------------------------------------------


@pytest.fixture
def make_masked(model):
    """Return random networks of masked diffusion."""

    def make(config):
        config = dataclasses.replace(config, vocab_size=300, num_layers=2, mem_len=0)
        params = random_params(config, None)
        params["backbone"].pop("mask_embedding", None)
        for weights in map(params["backbone"]["layers"]["attention"].get, "qkvo"):
            kernel = weights["kernel"] if isinstance(weights, dict) else weights
            kernel *= 3
        return Pretrained(config, params, "mdlm", None, model.tokenizer)

    return make


MASKED = {
    "relative": SMALL,
    "sinusoidal": dataclasses.replace(SMALL, positions="sinusoidal"),
    "learned": dataclasses.replace(BERT, max_positions=40),
}


@pytest.mark.parametrize("positions", MASKED)
def test_a_masked_network_reads_the_whole_text_in_each_pass(make_masked, positions):
    """A plain loop: <mask> at the pieces of this pass and of later ones, which by confidence are the likeliest."""
    masked = make_masked(MASKED[positions])
    tokenizer = masked.tokenizer
    texts = [
        read_prompt(tokenizer, "The ___ of the sea, un___.", gap_pieces=[4, 7]),
        read_prompt(tokenizer, TEXT, max_new_tokens=9),
    ]

    @jax.jit
    def read(params, ids_BL):
        logits, _ = masked.network.apply({"params": params}, text_inputs(ids_BL, segment_ids_BL=jnp.zeros_like(ids_BL)))
        return jax.nn.log_softmax(logits[0])

    for order, parallel in (("left", 3), ("random", 3), ("confidence", 3)):
        context = 64 if positions != "learned" else None
        rows = draw(make_sampler(masked, context=context, order=order, parallel=parallel), texts)
        for text, row in zip(texts, rows, strict=True):
            whole, may_be = filled(text, row), allowed_XV(tokenizer)[text.kinds_P]
            for number in range(row.passes_P.max() + 1):
                ids = whole.copy()
                ids[text.targets_P[row.passes_P >= number]] = MASK
                log_probs = np.asarray(read(masked.params, ids[None]))[text.targets_P]
                now = np.flatnonzero(row.passes_P == number)
                np.testing.assert_allclose(row.log_probs_P[now], log_probs[now, row.ids_P[now]], atol=1e-5)
                best = np.where(may_be, log_probs, -np.inf)
                np.testing.assert_array_equal(best.argmax(1)[now], row.ids_P[now])
                later = row.passes_P > number
                if order == "confidence" and later.any():
                    free = [abs(text.targets_P[now] - position).min() >= 4 for position in text.targets_P]
                    assert len(now) == parallel or not (later & free).any()
                    assert best.max(1)[now].min() >= best.max(1)[later & free].max(initial=-np.inf) - 1e-5
            assert_sizes_of_passes(row.passes_P, order, parallel)
            assert MASK not in row.ids_P
        assert len(set(rows[0].ids_P.tolist())) > 1


def test_a_masked_text_must_fit_into_the_context(make_masked):
    masked = make_masked(SMALL)
    with pytest.raises(
        InputError, match="which exceeds the context of 24: a network that reads <mask> cannot go beyond"
    ):
        make_sampler(masked).require_room(read_prompt(masked.tokenizer, TEXT, max_new_tokens=CONTEXT))
    assert make_sampler(make_masked(BERT), context=None).context == BERT.num_places


# ---- texts -----------------------------------------------------------------------------------------------------------


def test_a_gap_without_any_text_begins_a_document(model):
    text = read_prompt(model.tokenizer, "___ ___", gap_pieces=[4, 3])
    assert text.ids_L.tolist() == [EOD] + [PAD] * 7
    assert text.targets_P.tolist() == list(range(1, 8))


# ---- from left to right, one by one ----------------------------------------------------------------------------------


def test_greedy_pieces_are_those_of_the_ordinary_network(model, greedy):
    """One pass of the query stream with what was drawn: each target sees those before it alone."""
    text = read_prompt(model.tokenizer, "The ___ of the sea, un___.", gap_pieces=[2, 3])
    (row,) = draw(greedy, [text])
    places = np.arange(len(text.targets_P))
    log_probs = log_probs_PV(model, Query(filled(text, row), text.targets_P, places))
    may_be = allowed_XV(model.tokenizer)[text.kinds_P]
    np.testing.assert_array_equal(np.where(may_be, log_probs, -np.inf).argmax(1), row.ids_P)
    np.testing.assert_allclose(row.log_probs_P, log_probs[places, row.ids_P], atol=2e-5)
    assert len(set(row.ids_P.tolist())) > 1


@pytest.mark.parametrize(("order", "exact"), [("left", False), ("random", False), ("left", True)])
def test_a_penalty_makes_pieces_that_the_text_has_less_likely(model, order, exact):
    """A plain loop, one pass of the ordinary network for each piece: CTRL's rule, without special pieces."""
    text, penalty = read_prompt(model.tokenizer, TEXT, max_new_tokens=14), 1.7
    settings = {"order": order, "repetition_penalty": penalty, "context": 64}
    (row,) = draw(make_sampler(model, **settings, parallel=5 if exact else 1, exact=exact), [text])
    order_P = np.arange(14) if exact else np.argsort(row.passes_P)
    ids, rank_P = filled(text, dataclasses.replace(row, ids_P=np.full(14, PAD, np.int32))), np.argsort(order_P)
    (free,) = draw(make_sampler(model, order=order, context=64), [text])
    for number in order_P:
        logits_V = logits_of(model, Query(ids, text.targets_P, rank_P))[number]
        seen = np.unique(ids[ids >= len(SPECIAL_PIECES)])
        logits_V[seen] = np.where(logits_V[seen] > 0, logits_V[seen] / penalty, logits_V[seen] * penalty)
        allowed = allowed_XV(model.tokenizer)[text.kinds_P[number]]
        ids[text.targets_P[number]] = np.where(allowed, logits_V, -np.inf).argmax()
    np.testing.assert_array_equal(row.ids_P, ids[text.targets_P])
    assert len(set(row.ids_P.tolist())) > len(set(free.ids_P.tolist()))


def logits_of(model, query):
    """Return the logits of a query by the ordinary network, float32 [P, V]."""
    count = len(query.positions_P)
    ids, *others = stack_queries([query], 1, len(query.ids_L), count)
    return np.array(query_logits_BPV(model.model, False, model.params, ids, np.zeros_like(ids), *others)[0])


def test_a_causal_model_goes_on_as_the_ordinary_network_would(causal):
    text = read_prompt(causal.tokenizer, TEXT, "that a", max_new_tokens=10)
    (row,) = draw(make_sampler(causal), [text])
    length = len(text.ids_L)
    whole = np.concatenate([text.ids_L, row.ids_P])
    logits, _ = jax.jit(causal.network.apply)({"params": causal.params}, text_inputs(whole[None]))
    log_probs = jax.nn.log_softmax(logits[0, length - 1 : -1])
    np.testing.assert_array_equal(log_probs.argmax(-1), row.ids_P)
    np.testing.assert_allclose(log_probs.max(-1), row.log_probs_P, atol=1e-5)
    assert len(set(row.ids_P.tolist())) > 1


def test_one_program_serves_any_number_of_pieces(model, greedy):
    """Also beyond the context: the last call draws ten times as many pieces as the first."""
    counts = []
    for pieces in (2, 33, 100, 20):
        (row,) = draw(greedy, [read_prompt(model.tokenizer, TEXT, max_new_tokens=pieces)])
        assert len(row.ids_P) == pieces
        counts.append((passes.prefill_and_sample._cache_size(), passes.decode_and_sample._cache_size()))
    assert len(set(counts[1:])) == 1


def test_every_target_has_a_key_of_its_own(model):
    """At such a temperature draws are nearly uniform: with one key for all, all would be alike."""
    text = read_prompt(model.tokenizer, TEXT, max_new_tokens=40)
    (even,) = draw(make_sampler(model, temperature=100.0, top_p=1.0), [text])
    assert len(set(even.ids_P.tolist())) > 20


def test_usual_limits_are_those_of_prose_and_a_greedy_piece_is_the_likeliest():
    usual = GenerateSettings("loaded")
    assert usual.limits(of_records=False) == OF_PROSE == (0.8, 0.9, 1.2)
    assert usual.limits(of_records=True) == OF_RECORDS == (1, 1, 1)
    greedy = dataclasses.replace(usual, temperature=0.0)
    assert greedy.limits(of_records=False) == (0, 1, 1)
    assert dataclasses.replace(greedy, repetition_penalty=1.5).limits(of_records=False) == (0, 1, 1.5)


def test_temperatures_and_top_p_share_a_program(model):
    """A page on which a user tries them would otherwise compile for each."""
    text = read_prompt(model.tokenizer, TEXT, max_new_tokens=9)
    drawn, counts = [], []
    for temperature, top_p in ((1.0, 0.9), (0.3, 0.9), (2.0, 0.5)):
        (row,) = draw(make_sampler(model, temperature=temperature, top_p=top_p), [text])
        drawn.append(row.ids_P.tolist())
        counts.append((passes.prefill_and_sample._cache_size(), passes.decode_and_sample._cache_size()))
    assert len(set(counts)) == 1
    assert drawn[0] != drawn[1] != drawn[2]


@pytest.mark.parametrize("order", ["left", "random", "confidence"])
def test_each_pass_is_shown_and_keys_of_texts_make_their_draws(model, order):
    """Texts of two seeds are drawn together as each alone, and what is yielded after each pass adds up to the text."""
    tokenizer, settings = model.tokenizer, {"temperature": 1.0, "order": order, "parallel": 2}
    texts = [read_prompt(tokenizer, prompt, gap_pieces=[3]) for prompt in (GAPS, "She ___ the ___, ___.")]
    alone = [draw(make_sampler(model, **settings), [text], seed)[0] for text, seed in zip(texts, (3, 8), strict=True)]
    keys = jax.vmap(jax.random.fold_in, (0, None))(jax.vmap(jax.random.key)(np.array([3, 8])), 0)
    together = [dataclasses.replace(text) for text in texts]
    shown = [0, 0]
    for number, known in enumerate(make_sampler(model, **settings).draw(together, keys, chunk=1)):
        for i, (ids_P, log_probs_P, passes_P) in enumerate(known):
            is_drawn_P = ids_P != PAD
            assert is_drawn_P.sum() >= shown[i]
            np.testing.assert_array_equal(passes_P[is_drawn_P] <= number, True)
            np.testing.assert_array_equal(log_probs_P[~is_drawn_P], 0)
            shown[i] = is_drawn_P.sum()
    for (ids_P, log_probs_P, passes_P), row, one in zip(known, together, alone, strict=True):
        np.testing.assert_array_equal(row.ids_P, one.ids_P)
        np.testing.assert_array_equal(ids_P[: len(row.ids_P)], one.ids_P)
        np.testing.assert_array_equal(passes_P[: len(one.passes_P)], one.passes_P)
        np.testing.assert_allclose(log_probs_P[: len(one.log_probs_P)], one.log_probs_P, atol=1e-4)


def test_a_text_ends_at_a_stop(model, greedy):
    bias = np.zeros(300, np.float32)
    bias[EOD] = 1e3
    text = read_prompt(model.tokenizer, TEXT, max_new_tokens=9)
    (row,) = draw(make_sampler(dataclasses.replace(model, params=model.params | {"output_bias": bias})), [text])
    assert row.is_stopped is True  # not NumPy's, which JSON does not take
    assert not len(row.ids_P)
    assert row.log_probs_P == pytest.approx([0], abs=1e-3)

    (free,) = draw(greedy, [text])
    stop = model.tokenizer.pieces[free.ids_P[2]].removeprefix(SPACE)
    (row,) = draw(make_sampler(model, stop=(stop,)), [text])
    assert row.is_stopped
    assert row.ids_P.tolist() == free.ids_P[: len(row.ids_P)].tolist()
    assert model.tokenizer.pieces[row.ids_P[-1]].removeprefix(SPACE) == stop
    with pytest.raises(InputError, match="`stop` 'Zebedee' is not in the vocabulary"):
        make_sampler(model, stop=("Zebedee",))


def test_limits_leave_the_likeliest_pieces_in_their_proportions():
    probs = np.array([0.4, 0.3, 0.2, 0.1])
    logits, keys = jnp.log(probs), jax.random.split(jax.random.key(0), 4000)

    def shares(temperature=1.0, top_k=0, top_p=None):
        of_each = jnp.broadcast_to(logits, (1, len(keys), 4))
        pieces = sample(Limits(temperature, top_k, top_p), of_each, keys[None])
        return np.bincount(pieces[0], minlength=4) / len(keys)

    noise = 5 * np.sqrt(0.25 / len(keys))
    np.testing.assert_allclose(shares(), probs, atol=noise)
    np.testing.assert_allclose(shares(top_k=2), [4 / 7, 3 / 7, 0, 0], atol=noise)
    np.testing.assert_allclose(shares(top_p=0.6), [4 / 7, 3 / 7, 0, 0], atol=noise)
    np.testing.assert_allclose(shares(top_p=0.75), [4 / 9, 3 / 9, 2 / 9, 0], atol=noise)
    np.testing.assert_allclose(shares(top_k=3, top_p=0.5), [4 / 7, 3 / 7, 0, 0], atol=noise)
    np.testing.assert_allclose(shares(temperature=0.5), probs**2 / (probs**2).sum(), atol=noise)
    assert shares(temperature=None)[0] == shares(top_p=1e-9)[0] == shares(top_k=1)[0] == 1


@pytest.mark.parametrize("limits", [Limits(1.0, 0, 0.9), Limits(0.7, 30), Limits(1.5, 200, 0.5), Limits(1.0, 0, 1e-9)])
@pytest.mark.parametrize("scale", [4, 0.1])  # few pieces are likely, or many
def test_the_bisected_limits_are_those_of_sorted_pieces(scale, limits):
    """Sorted as Hugging Face does: top_p keeps a piece if those before it sum to less."""
    logits_BCV = scale * jax.random.normal(jax.random.key(1), (3, 4, 1000))
    sorted_BCV = -np.sort(-np.asarray(jax.nn.softmax(logits_BCV / limits.temperature), np.float64))
    wanted_BCV = np.where(np.arange(1000) < (limits.top_k or 1000), sorted_BCV, 0)
    wanted_BCV /= wanted_BCV.sum(-1, keepdims=True)
    wanted_BCV[np.cumsum(wanted_BCV, -1) - wanted_BCV >= (limits.top_p or 1)] = 0
    found_BCV = -np.sort(-np.asarray(probabilities(limits, logits_BCV)))
    np.testing.assert_array_equal(found_BCV > 0, wanted_BCV > 0)
    np.testing.assert_allclose(found_BCV, wanted_BCV / wanted_BCV.sum(-1, keepdims=True), rtol=1e-4)


def test_pieces_that_are_equally_likely_are_all_drawn_or_none():
    even_BCV = jnp.where(jnp.arange(8) < 6, 0.0, -jnp.inf)[None, None]
    for limits in (Limits(1.0, 2), Limits(1.0, 0, 0.5)):
        np.testing.assert_allclose(probabilities(limits, even_BCV)[0, 0], [*[1 / 6] * 6, 0, 0], rtol=1e-6)


def test_gaps_keep_the_text_around_them(model, greedy):
    tokenizer = model.tokenizer
    text = read_prompt(tokenizer, "The ___ of the sea, un___; he said ___", gap_pieces=[1, 2, 1])
    (row,) = draw(greedy, [text])
    starts = [tokenizer.pieces[i].startswith(SPACE) for i in row.ids_P]
    assert (starts[0], starts[1], starts[3]) == (True, False, True)
    filled = fill(tokenizer, row)
    assert re.fullmatch(r"The .+ of the sea, un.+; he said .+", filled)
    for prompt in ('She said "___" to him', "“___” [___]", "he said:___."):
        text = read_prompt(tokenizer, prompt)
        glued = np.flatnonzero(allowed_XV(tokenizer)[Kind.GLUED])[: len(text.targets_P)]
        assert filled_with(tokenizer, text, glued)[len(prompt.split("___")[0])] not in " _"


@pytest.mark.parametrize("level", ["character", "byte"])
def test_a_gap_between_words_begins_with_a_space_and_what_follows_a_gap_can_be_glued_to_it(level):
    tokenizer = Tokenizer.train(["It was a cat, asking a question."] * 9, 100, "none", token_level=level)
    ask, cat, a = tokenizer.encode_lines(["ask", "cat", "a"])
    assert filled_with(tokenizer, read_prompt(tokenizer, "It was a ", max_new_tokens=4), cat) == "It was a cat"
    blanks = read_prompt(tokenizer, "It ___ing a ___.", gap_pieces=[4, 4])
    assert blanks.kinds_P[[0, 4]].tolist() == [Kind.WORD, Kind.WORD]
    assert filled_with(tokenizer, blanks, np.concatenate([ask, cat])) == "It asking a cat."
    full = blanks.ids_L.copy()
    full[blanks.targets_P] = np.concatenate([ask, cat])
    np.testing.assert_array_equal(full, tokenizer.encode_lines(["It asking a cat."])[0])
    assert np.flatnonzero(allowed_XV(tokenizer)[Kind.WORD]).tolist() == [a[0]]


def test_a_prefix_is_read_and_not_printed(model):
    tokenizer = model.tokenizer
    plain, after = (read_prompt(tokenizer, TEXT, prefix) for prefix in ("", "that a single man"))
    assert after.ids_L.tolist() == [*tokenizer.encode_lines(["that a single man"])[0], EOD, *plain.ids_L]
    assert filled_with(tokenizer, after, plain.ids_L).startswith(TEXT)
    assert read_prompt(tokenizer, "").ids_L.tolist() == [EOD]


def test_the_context_is_that_of_pretraining_and_places_in_one_window_cannot_be_left(model, causal):
    for network, context in ((causal, 4 + 5), (model, 2 * 4 + 5), (dataclasses.replace(model, reuse_len=None), 512)):
        assert make_sampler(network, context=None).context == context
    sampler = make_sampler(dataclasses.replace(causal, model=dataclasses.replace(causal.model, positions="sinusoidal")))
    sampler.require_room(read_prompt(model.tokenizer, TEXT, max_new_tokens=2))
    text = read_prompt(model.tokenizer, TEXT, max_new_tokens=CONTEXT)
    with pytest.raises(InputError, match=r"\d+ pieces .* a checkpoint with sinusoidal positions cannot go beyond it"):
        sampler.require_room(text)
    for settings, limit in [({"order": "random"}, "`order` random"), ({"parallel": 0}, "`parallel` 0")]:
        with pytest.raises(InputError, match=rf"{limit} cannot go beyond it; ask for fewer pieces, or raise `context`"):
            make_sampler(model, **settings).require_room(text)
    make_sampler(model, parallel=4).require_room(text)


@pytest.fixture(scope="module")
def checkpoint(model, causal, tmp_path_factory):
    folder = tmp_path_factory.mktemp("generate")
    xlnet_jax.save(model, folder / "lm")
    xlnet_jax.save(random_model(model.model, HEADS["classification"], model.tokenizer), folder / "classifier")
    xlnet_jax.save(causal, folder / "causal")
    xlnet_jax.save(dataclasses.replace(model, tokenizer=None), folder / "bare")
    return folder / "lm"


def printed(capsys, *argv):
    assert command.main([*map(str, argv), "--context", str(CONTEXT)]) == 0
    return capsys.readouterr().out


def test_every_prompt_has_its_samples_as_text_and_as_json(checkpoint, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("\ufeffEmma was handsome,\n\nThe ___ of the house\n")
    args = [checkpoint, "--prompt", TEXT, "--prompt-file", tmp_path / "prompts.txt", "--num-samples", 2]
    args += ["--max-new-tokens", 4]
    assert command.main([*map(str, args), "--context", str(CONTEXT), "--json"]) == 0
    output = capsys.readouterr()
    assert "prompts.txt: line 2 is blank" in output.err
    assert "1 of 3 records have no text and keep their place with a new document: " in output.err
    records = [json.loads(line) for line in output.out.splitlines()]
    prompts = [TEXT, "Emma was handsome,", "", "The ___ of the house"]
    assert [r["prompt"] for r in records] == [prompt for prompt in prompts for _ in range(2)]
    for record in records[:6]:
        assert record["text"].startswith(record["prompt"])
        assert record["ended"] or len(record["pieces"]) == 4
        assert all(p <= 0 for p in record["log_probs"])
        assert record["passes"] == list(range(len(record["log_probs"])))
    assert records[0]["text"] != records[1]["text"]
    assert all(len(r["pieces"]) == 1 and r["text"].endswith(" of the house") for r in records[6:])
    assert printed(capsys, *args) == "\n---\n".join(r["text"] for r in records) + "\n"


def test_one_text_is_printed_as_it_is_drawn_and_is_the_text_of_python(checkpoint, model, capsys):
    settings = {"context": CONTEXT, "seed": 3, "max_new_tokens": 70}
    parts = []
    (text,) = xlnet_jax.generate(model, "It is", on_part=parts.append, **settings)
    assert len(parts) > 1
    assert "".join(parts) == text.text
    for order in ("random", "confidence"):
        parts = []
        wanted = {**settings, "max_new_tokens": 12, "order": order, "parallel": 5}
        (other,) = xlnet_jax.generate(model, "It is", on_part=parts.append, **wanted)
        assert parts == [other.text]
        assert other.passes_P.max() < 6  # of 12 pieces
    shown = printed(capsys, checkpoint, "--prompt", "It is", "--seed", 3, "--max-new-tokens", 70)
    assert shown == text.text + "\n"
    with pytest.raises(InputError, match="`on_part` shows only one text"):
        xlnet_jax.generate(model, ["It is", "He"], on_part=parts.append)


def test_the_picture_colors_what_was_drawn_by_its_pass(model, tmp_path):
    prompt = "The ___ of the sea, un___."
    (text,) = xlnet_jax.generate(
        model, prompt, gap_pieces=(3, 2), parallel=2, context=CONTEXT, picture=str(tmp_path / "passes.png")
    )
    blanks = read_prompt(model.tokenizer, prompt, gap_pieces=[3, 2])
    ids = np.array([model.tokenizer.pieces.index(piece) for piece in text.pieces], np.int32)
    parts = list(segments(model.tokenizer, dataclasses.replace(blanks, ids_P=ids, passes_P=text.passes_P)))
    assert [number for _, number in parts] == [None, 0, 0, 1, None, 1, 2, None]
    assert "".join(part for part, _ in parts).split() == text.text.split()

    def hues(*parts):
        draw_passes(parts, tmp_path / "picture.png")
        pixels = (matplotlib.image.imread(tmp_path / "picture.png") * 255).astype(int)[:, :800, :3]  # no color bar
        return {tuple(c) for c in np.unique(pixels.reshape(-1, 3), axis=0).tolist() if max(c) - min(c) > 30}

    assert not hues(("given text", None))
    first, last = hues(("given", None), (" drawn", 0)), hues((" drawn", 1), (" given", None))
    assert min(len(first), len(last)) > 0
    assert first.isdisjoint(last)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("{lm}", "there is no prompt: give it after the checkpoint, or --prompt-file; an empty prompt begins"),
        ("{lm} --prompt-file missing.txt", "missing.txt is missing"),
        ("{lm} --prompt a --gap-pieces 2", "--gap-pieces has 1 numbers, but 'a' has 0 gaps, written as ___"),
        (f"{{lm}} --prompt {'a' * 300} --context 20", "which exceeds the context of 20: shorten it"),
        ("{classifier} --prompt a", "has a head for classification and no vocabulary scores"),
        (
            "{bare} --prompt a",
            "the checkpoint has no tokenizer: put its spiece.model into its folder, or give --tokenizer",
        ),
        ("{causal} --prompt ___", "has gaps, but the checkpoint reads from left to right"),
        (
            "{causal} --prompt a --parallel 4",
            "the checkpoint reads from left to right and predicts one piece at a time: leave out --parallel",
        ),
        ("{causal} --prompt a --order random", "predicts one piece at a time: leave out --order"),
        ("{lm} --prompt a b --picture a.png", "--picture shows only one text: give one prompt, and --num-samples 1"),
        ("{lm} --prompt a --picture a.gif", "--picture a.gif must end in .png: the picture is a PNG"),
        ("{lm} --prompt a --parallel -1", "--parallel -1 must be at least 0 (all)"),
        ("{lm} --prompt a --order last", "--order"),
    ],
)
def test_a_mistake_of_the_command_is_one_line(checkpoint, argv, message):
    places = {name: checkpoint.parent / name for name in ("lm", "classifier", "causal", "bare")}
    with pytest.raises(InputError, match=re.escape(message)):
        command.main(argv.format(**places).split())

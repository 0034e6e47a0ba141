"""Parallel draws that must be exact have the distribution of one piece in a pass, and need fewer passes."""

import collections
import dataclasses
import itertools

import jax
import numpy as np
import pytest
import scipy.stats

from data_pipelines.records import RecordFormat
from data_pipelines.tokenizer import EOD, Tokenizer
from tests.xlnet_jax.inference.test_generate import (
    causal,  # noqa: F401 a fixture
    draw,
    filled,
    make_attentive,
    make_sampler,
    model,  # noqa: F401 a fixture
    texts_of_several_lengths,
    tokenizer,  # noqa: F401 a fixture
)
from tests.xlnet_jax.inference.test_records_score import network_of
from tests.xlnet_jax.random_models import SMALL
from xlnet_jax import InputError
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.inference import draws
from xlnet_jax.inference.draws import Limits
from xlnet_jax.inference.log_probs import Query, log_likelihoods, log_probs_of_vocabulary
from xlnet_jax.inference.requests import GenerateSettings, allowed_XV, read_record
from xlnet_jax.inference.sampler import order_of

AT_ONCE = 10_000
LIMITS = Limits(1.3, 0, 0.95)


@pytest.mark.parametrize(
    ("order", "parallel", "penalty"),
    [*itertools.product(("left", "random"), (2, 16, 0), (1.0,)), ("block", 5, 1.0), ("random", 5, 1.5)],
)
def test_greedy_pieces_are_those_of_one_at_a_time_in_fewer_passes(model, order, parallel, penalty):  # noqa: F811
    texts = texts_of_several_lengths(model.tokenizer)
    common = {"context": 256, "order": order, "block_size": 12, "repetition_penalty": penalty}
    alone = draw(make_sampler(model, **common), texts)
    exact = draw(make_sampler(model, **common, parallel=parallel, exact=True), texts)
    for text, one, row in zip(texts, alone, exact, strict=True):
        np.testing.assert_array_equal(row.ids_P, one.ids_P)
        np.testing.assert_allclose(row.log_probs_P, one.log_probs_P, atol=1e-5)
        count = len(text.targets_P)
        assert count / ((parallel or count) + 1) <= row.passes_P.max() // 2 + 1  # N + 1 pieces in two passes at most
        assert row.passes_P.max() + 1 <= count + count % 2  # two pieces in two passes at least


@pytest.mark.parametrize("order", ["left", "random"])
def test_log_probs_are_those_of_the_ordinary_network_by_the_order(model, order):  # noqa: F811
    texts = texts_of_several_lengths(model.tokenizer)
    settings = GenerateSettings("loaded", order=order)
    rows = draw(make_sampler(model, context=256, temperature=1.0, order=order, parallel=7, exact=True), texts, seed=3)
    keys = [jax.random.fold_in(jax.random.key(3), i) for i in range(len(texts))]
    seeds = [int.from_bytes(np.asarray(jax.random.key_data(key)).tobytes()[:8], "little") for key in keys]
    orders = [order_of(settings, len(text.targets_P), 1, seed)[:, 0] for text, seed in zip(texts, seeds, strict=True)]
    queries = [
        Query(filled(text, row), text.targets_P, np.argsort(order))
        for text, row, order in zip(texts, rows, orders, strict=True)
    ]
    for text, row, log_probs in zip(texts, rows, log_likelihoods(model, queries, 1024), strict=True):
        np.testing.assert_allclose(row.log_probs_P, log_probs, atol=1e-5)
        assert allowed_XV(model.tokenizer)[text.kinds_P, row.ids_P].all()
        assert (np.diff(row.passes_P[order_of_passes(row.passes_P)]) >= 0).all()


def order_of_passes(passes_P):
    return np.argsort(passes_P, kind="stable")


# ---- against enumeration ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    """A network of records of four symbols, whose symbols depend on each other."""
    symbols = Tokenizer.of_symbols(["ACGT", "CAGT", "GGCA", "TTAC"], RecordFormat(("dna:character",)))
    return make_attentive(dataclasses.replace(SMALL, vocab_size=symbols.vocab_size, num_layers=2, mem_len=0), symbols)


def probability_of_each(network, order):
    """Return the probability of each record of four symbols by the ordinary network, one piece in a pass."""
    request = read_record(network.tokenizer.symbols, "____", gap_pieces=(4,))
    outcomes = list(itertools.product(network.tokenizer.symbols.ids_of(0).tolist(), repeat=4))
    ordered_P = request.targets_P[list(order)]
    queries = [Query(filled_with(request, ids), ordered_P, np.arange(4)) for ids in outcomes]
    logits_NPV = np.stack(log_probs_of_vocabulary(network, queries, 4096))
    logits_NPV = np.where(allowed_XV(network.tokenizer)[0], logits_NPV, -np.inf)
    of_NPV = np.asarray(draws.probabilities(LIMITS, logits_NPV))
    drawn_NP = np.array(outcomes)[:, list(order)]
    probabilities = np.take_along_axis(of_NPV, drawn_NP[..., None], axis=-1)[..., 0].prod(1, dtype=np.float64)
    return dict(zip(outcomes, probabilities, strict=True))


def filled_with(request, ids):
    row = request.ids_L.copy()
    row[request.targets_P] = ids
    return row


def sampled(network, samples, **settings):
    """Return how often each record of four symbols is drawn."""
    sampler = make_sampler(network, **LIMITS._asdict(), context=32, **settings)
    request = read_record(network.tokenizer.symbols, "____", gap_pieces=(4,))
    found = collections.Counter()
    for first in range(0, samples, AT_ONCE):
        rows = [dataclasses.replace(request) for _ in range(AT_ONCE)]
        list(sampler.draw(rows, jax.random.key(7), first))
        found.update(tuple(map(int, row.ids_P)) for row in rows)
    return found


def chi_square(counts, probabilities):
    """Return the p-value of counts, the rare outcomes together; 0 if something impossible was drawn."""
    outcomes = sorted(probabilities, key=probabilities.__getitem__, reverse=True)
    observed = np.array([counts[ids] for ids in outcomes])
    expected = observed.sum() * np.array([probabilities[ids] for ids in outcomes])
    if observed[expected == 0].any():
        return 0.0
    often = expected >= 10
    if expected[~often].sum():
        expected, observed = (np.append(x[often], x[~often].sum()) for x in (expected, observed))
    return scipy.stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


@pytest.fixture(scope="module")
def by_order(small):
    return {order: probability_of_each(small, order) for order in itertools.permutations(range(4))}


def expected_of(by_order, order):
    if order == "random":
        return {ids: np.mean([of[ids] for of in by_order.values()]) for ids in by_order[0, 1, 2, 3]}
    return by_order[(0, 1, 2, 3) if order == "left" else tuple(map(int, order.split()))]


@pytest.mark.parametrize("samples", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("order", ["left", "random", "2 0 3 1"])
def test_exact_draws_have_the_distribution_of_one_piece_in_a_pass(small, by_order, order, samples):
    expected = expected_of(by_order, order)
    assert sum(expected.values()) == pytest.approx(1, abs=1e-4)
    assert chi_square(sampled(small, samples, order=order, parallel=3, exact=True), expected) > 1e-3


def test_draws_that_do_not_see_each_other_have_another_distribution(small, by_order):
    """The test above would find a draft that is kept without a judgment."""
    assert chi_square(sampled(small, 10_000, order="left", parallel=4), expected_of(by_order, "left")) < 1e-6


@pytest.mark.parametrize("limits", [Limits(), Limits(1.0), Limits(0.7, 5), Limits(1.5, 0, 0.8), Limits(1.0, 20, 0.5)])
def test_probabilities_are_those_of_the_draws(limits):
    logits = np.random.default_rng(0).normal(0, 2, 40).astype(np.float32)
    logits[:4] = -np.inf
    keys = jax.random.split(jax.random.key(0), 20_000)
    (drawn,) = np.asarray(draws.sample(limits, np.broadcast_to(logits, (1, len(keys), 40)), keys[None]))
    ((probability,),) = np.asarray(draws.probabilities(limits, logits[None, None]))
    assert probability.sum() == pytest.approx(1, abs=1e-5)
    counts = np.bincount(drawn, minlength=40)
    assert not counts[probability == 0].any()
    often = probability * len(keys) >= 5
    assert abs(counts / len(keys) - probability)[often].max() < 0.02


# ---- what it keeps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["left", "random"])
def test_an_exact_draw_depends_on_no_other_text(model, order):  # noqa: F811
    texts = texts_of_several_lengths(model.tokenizer)[1:]
    sampler = make_sampler(model, context=64, temperature=1.5, top_p=0.95, order=order, parallel=5, exact=True)
    together = draw(sampler, texts)
    for i, (text, row) in enumerate(zip(texts, together, strict=True)):
        (alone,) = draw(sampler, [text], first=i)
        np.testing.assert_array_equal(alone.ids_P, row.ids_P)
        np.testing.assert_array_equal(alone.passes_P, row.passes_P)


@pytest.mark.parametrize("order", ["left", "random"])
def test_a_stop_among_the_drafts_ends_the_text_as_one_at_a_time(model, order):  # noqa: F811
    text = texts_of_several_lengths(model.tokenizer)[2]
    common = {"context": 64, "order": order}
    (free,) = draw(make_sampler(model, **common), [text])
    stop = model.tokenizer.pieces[free.ids_P[9]].removeprefix("▁")
    (alone,) = draw(make_sampler(model, **common, stop=(stop,)), [text])
    (exact,) = draw(make_sampler(model, **common, stop=(stop,), parallel=8, exact=True), [text])
    assert exact.is_stopped
    assert len(exact.ids_P) < len(free.ids_P)
    np.testing.assert_array_equal(exact.ids_P, alone.ids_P)
    assert (exact.ids_P != EOD).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "confidence", "parallel": 4}, "drafts decide which positions come next, so they cannot be verified"),
        ({"parallel": 1}, "`exact` : one piece in a pass is exact already: give the number of drafts with `parallel`"),
    ],
)
def test_what_cannot_be_judged_is_refused(model, settings, message):  # noqa: F811
    with pytest.raises(InputError) as refused:
        make_sampler(model, exact=True, **settings)
    assert message.replace("` :", "`:") in str(refused.value)


def test_networks_that_cannot_judge_are_refused(causal, small):  # noqa: F811
    with pytest.raises(InputError, match="predicts one piece at a time, which is exact: leave it out"):
        make_sampler(causal, exact=True)
    masked = network_of(small.tokenizer, "mdlm")
    with pytest.raises(InputError, match="verifies one draft per pass, so drafts save nothing"):
        make_sampler(masked, exact=True, parallel=4)


@pytest.mark.parametrize("order", ["0 1", "0 1 1 2", "0 1 2 4"])
def test_a_given_order_has_each_open_position_once(small, order):
    request = read_record(small.tokenizer.symbols, "____", gap_pieces=(4,))
    with pytest.raises(InputError, match="must have each of 0 to 3 once, for the open positions"):
        make_sampler(small, order=order, context=32).require_room(request)


def test_an_order_that_does_not_exist_is_one_line():
    with pytest.raises(InputError) as refused:
        COMMANDS["generate"].main(["tiny", "--prompt", "a", "--order", "right"])
    assert str(refused.value).startswith("--order right must be left, random, block, confidence or numbers")

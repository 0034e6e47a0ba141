"""Draws are the pieces that the ordinary network would draw, within the limits of the sampling."""

import dataclasses
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data_pipelines import sources
from data_pipelines.tokenizer import EOD, PAD, Tokenizer
from data_pipelines.tokenizer.symbols import SPACE
from tests.xlnet_jax.random_models import CAUSAL, HEADS, SMALL, random_model
from xlnet_jax import InputError
from xlnet_jax.inference import generation
from xlnet_jax.inference.blanks import continuation, fill, infilling
from xlnet_jax.inference.generation import Generator, Sampling, choose
from xlnet_jax.inference.query_stream import Query, log_probs_PV
from xlnet_jax.models.inputs import text_inputs

GREEDY = Sampling(temperature=0)
TEXT = "It is a truth"
CONTEXT = 24


@pytest.fixture(scope="module")
def tokenizer():
    with open(sources.embedded()[0]) as novels:
        return Tokenizer.train([line.strip() for line in itertools.islice(novels, 300)], 300, "english")


@pytest.fixture(scope="module")
def model(tokenizer):
    return attentive(dataclasses.replace(SMALL, vocab_size=300, num_layers=2), tokenizer)


@pytest.fixture(scope="module")
def causal(tokenizer):
    return attentive(dataclasses.replace(CAUSAL, vocab_size=300), tokenizer)


def attentive(config, tokenizer):
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


@pytest.fixture(scope="module")
def greedy(model):
    return Generator(model, GREEDY, CONTEXT)


@pytest.fixture(scope="module")
def sampler(model):
    return Generator(model, Sampling(temperature=1.5, top_k=50, top_p=0.95), CONTEXT)


def drawn(generator, texts, seed=0, first=0):
    *_, last = generator.draw(texts, jax.random.key(seed), first)
    assert all(row.is_done for row in last)
    return last


def by_ordinary_network(model, text, allowed):
    """Draw greedily, computing everything again for each piece; return (ids, log-probabilities)."""
    size = max(len(text.ids_L), text.targets_P.max() + 1)
    ids = np.pad(text.ids_L, (0, size - len(text.ids_L)), constant_values=PAD)
    found, scores = [], []
    for t, target in enumerate(text.targets_P):
        # Query all targets: those not drawn yet must be hidden.
        log_probs = log_probs_PV(model, Query(ids, text.targets_P, np.arange(len(text.targets_P))))[t]
        ids[target] = np.where(allowed[text.kinds_P[t]], log_probs, -np.inf).argmax()
        found.append(ids[target])
        scores.append(log_probs[ids[target]])
    return np.array(found), np.array(scores)


@pytest.mark.parametrize(
    "make",
    [
        lambda tokenizer: continuation(tokenizer, TEXT, "", 10),
        lambda tokenizer: infilling(tokenizer, "The ___ of the sea, un___.", "", [2, 3]),
    ],
    ids=["continuation", "gaps"],
)
def test_greedy_pieces_are_those_of_the_ordinary_network(model, greedy, make):
    text = make(model.tokenizer)
    (row,) = drawn(greedy, [text])
    ids, scores = by_ordinary_network(model, text, np.asarray(greedy._allowed_XV))
    np.testing.assert_array_equal(row.ids_P, ids)
    np.testing.assert_allclose(row.log_probs_P, scores, atol=2e-5)
    assert len(set(row.ids_P.tolist())) > 1


def test_a_causal_model_goes_on_as_the_ordinary_network_would(causal):
    text = continuation(causal.tokenizer, TEXT, "that a", 10)
    (row,) = drawn(Generator(causal, GREEDY, CONTEXT), [text])
    length, size = len(text.ids_L), len(text.ids_L) + 10
    ids = np.pad(text.ids_L, (0, 10), constant_values=PAD)
    run = jax.jit(lambda params, ids_1L: causal.network.apply({"params": params}, text_inputs(ids_1L))[0][0])
    for t, position in enumerate(range(length, size)):
        log_probs = np.asarray(jax.nn.log_softmax(run(causal.params, ids[None])[position - 1]))
        ids[position] = row.ids_P[t]
        assert log_probs[ids[position]] == pytest.approx(row.log_probs_P[t], abs=1e-5)
        assert log_probs.argmax() == row.ids_P[t]
    assert len(set(row.ids_P.tolist())) > 1


def test_one_program_serves_any_number_of_pieces(model, greedy):
    """Also beyond the context: the last call draws ten times as many pieces as the first."""
    counts = []
    for pieces in (2, 33, 100, 20):
        (row,) = drawn(greedy, [continuation(model.tokenizer, TEXT, "", pieces)])
        assert len(row.ids_P) == pieces
        counts.append((generation._begin._cache_size(), generation._go_on._cache_size()))
    assert len(set(counts[1:])) == 1


def test_a_draw_depends_on_its_seed_and_number_and_on_no_other_text(model, sampler):
    one = continuation(model.tokenizer, TEXT, "", 8)
    other = continuation(model.tokenizer, "acknowledged, that", "", 40)
    together = drawn(sampler, [one, other])
    alone = [drawn(sampler, [text], first=i)[0] for i, text in enumerate([one, other])]
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_array_equal(a.ids_P, b.ids_P)
    assert len(together[0].ids_P) <= 8 < len(together[1].ids_P)
    assert drawn(sampler, [one], seed=1)[0].ids_P.tolist() != alone[0].ids_P.tolist()


def test_a_text_ends_at_a_stop(model):
    bias = np.zeros(300, np.float32)
    bias[EOD] = 1e3
    params = model.params | {"output_bias": bias}
    (row,) = drawn(
        Generator(dataclasses.replace(model, params=params), GREEDY, CONTEXT),
        [continuation(model.tokenizer, TEXT, "", 9)],
    )
    assert row.is_stopped
    assert not len(row.ids_P)
    assert row.log_probs_P == pytest.approx([0], abs=1e-3)

    (free,) = drawn(Generator(model, GREEDY, CONTEXT), [continuation(model.tokenizer, TEXT, "", 9)])
    stop = model.tokenizer.pieces[free.ids_P[2]].removeprefix(SPACE)
    (row,) = drawn(Generator(model, GREEDY, CONTEXT, [stop]), [continuation(model.tokenizer, TEXT, "", 9)])
    assert row.is_stopped
    assert row.ids_P.tolist() == free.ids_P[: len(row.ids_P)].tolist()
    assert model.tokenizer.pieces[row.ids_P[-1]].removeprefix(SPACE) == stop


def test_limits_leave_the_likeliest_pieces_in_their_proportions():
    probs = np.array([0.4, 0.3, 0.2, 0.1])
    logits, keys = jnp.log(probs), jax.random.split(jax.random.key(0), 4000)

    def shares(**limits):
        pieces = jax.jit(jax.vmap(lambda key: choose(Sampling(**limits), logits, key)))(keys)
        return np.bincount(pieces, minlength=4) / len(keys)

    noise = 5 * np.sqrt(0.25 / len(keys))
    np.testing.assert_allclose(shares(top_p=1.0), probs, atol=noise)
    np.testing.assert_allclose(shares(top_k=2, top_p=1.0), [4 / 7, 3 / 7, 0, 0], atol=noise)
    np.testing.assert_allclose(shares(top_p=0.75), [4 / 9, 3 / 9, 2 / 9, 0], atol=noise)
    np.testing.assert_allclose(shares(top_k=3, top_p=0.5), [4 / 7, 3 / 7, 0, 0], atol=noise)
    np.testing.assert_allclose(shares(temperature=0.5, top_p=1.0), probs**2 / (probs**2).sum(), atol=noise)
    assert shares(temperature=0.0)[0] == shares(top_p=1e-9)[0] == shares(top_k=1)[0] == 1


def test_gaps_keep_the_text_around_them(model, sampler):
    tokenizer = model.tokenizer
    text = infilling(tokenizer, "The ___ of the sea, un___; he said ___", "", [1, 2, 1])
    without_gaps = "The of the sea, un; he said"
    given = text.ids_L[~np.isin(np.arange(len(text.ids_L)), text.targets_P)]
    assert tokenizer.decode(given) == without_gaps
    (row,) = drawn(sampler, [text])
    starts = [tokenizer.pieces[i].startswith(SPACE) for i in row.ids_P]
    assert (starts[0], starts[1], starts[3]) == (True, False, True)
    filled = fill(tokenizer, text, row.ids_P)
    assert re.fullmatch(r"The .+ of the sea, un.+; he said .+", filled)
    assert "_" not in filled


def test_a_prefix_is_read_and_not_printed(model, greedy):
    tokenizer = model.tokenizer
    plain, after = (continuation(tokenizer, TEXT, prefix, 3) for prefix in ("", "that a single man"))
    assert after.ids_L.tolist() == [*tokenizer.encode_lines(["that a single man"])[0], EOD, *plain.ids_L]
    rows = [drawn(greedy, [text])[0] for text in (plain, after)]
    assert abs(rows[0].log_probs_P[0] - rows[1].log_probs_P[0]) > 1e-4
    assert fill(tokenizer, after, rows[1].ids_P).startswith(TEXT)
    assert continuation(tokenizer, "", "", 3).ids_L.tolist() == [EOD]


def test_mistakes_are_named(model, greedy):
    for settings, message in (
        ({"temperature": -1}, "`temperature` -1 must be a number from 0 up"),
        ({"temperature": float("nan")}, "`temperature` nan"),
        ({"top_p": 0}, r"`top_p` 0 must be in \(0, 1\]"),
        ({"top_p": 1.1}, "`top_p` 1.1"),
        ({"top_k": -2}, "`top_k` -2 must be at least 0"),
    ):
        with pytest.raises(InputError, match=message):
            Sampling(**settings)
    with pytest.raises(InputError, match="has a head for regression, and no vocabulary scores"):
        Generator(random_model(head=HEADS["regression"]), GREEDY)
    for stop in ("Zebedee", ""):
        with pytest.raises(InputError, match=f"'{stop}' is not in the vocabulary"):
            Generator(model, GREEDY, stops=[stop])
    with pytest.raises(InputError, match="more than the context of 24: shorten it"):
        drawn(greedy, [continuation(model.tokenizer, TEXT * 9, "", 2)])
    with pytest.raises(InputError, match="no gap in 'The sea': write ___"):
        infilling(model.tokenizer, "The sea", "", [1])
    with pytest.raises(InputError, match="2 numbers of pieces for the 1 gaps"):
        infilling(model.tokenizer, "The ___ sea", "", [1, 2])


def test_a_checkpoint_of_another_objective_names_what_it_cannot_generate(model, causal):
    with pytest.raises(InputError, match=r"has gaps, and the checkpoint reads from left to right"):
        drawn(Generator(causal, GREEDY, CONTEXT), [infilling(model.tokenizer, "The ___ sea", "", [1])])
    masked = {"backbone": {n: p for n, p in model.params["backbone"].items() if n != "mask_embedding"}}
    with pytest.raises(InputError, match=r"has learned masked pieces \(mlm\)"):
        Generator(dataclasses.replace(model, params=model.params | masked, objective="mlm"), GREEDY)
    places = dataclasses.replace(causal, model=dataclasses.replace(causal.model, positions="sinusoidal"))
    generator = Generator(places, GREEDY, CONTEXT)
    generator.demand_room(continuation(model.tokenizer, TEXT, "", 2))
    with pytest.raises(
        InputError, match=r"comes to \d+ pieces .* which a checkpoint with sinusoidal positions cannot leave"
    ):
        generator.demand_room(continuation(model.tokenizer, TEXT, "", CONTEXT))


def test_the_context_is_that_of_pretraining_where_it_is_known(model, causal):
    assert generation.default_context(causal) == 4 + 5
    assert generation.default_context(model) == 2 * 4 + 5
    assert generation.default_context(dataclasses.replace(model, reuse_len=None)) == 512

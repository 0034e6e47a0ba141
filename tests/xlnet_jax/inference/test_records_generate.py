"""Drawn symbols belong to the field in which they stand, and are drawn as the ordinary network predicts them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data_pipelines.records import FIELD, RecordFormat
from data_pipelines.tokenizer import BOS, EOD, Tokenizer
from tests.xlnet_jax.random_models import CAUSAL, SMALL, random_model
from xlnet_jax import InputError, generate
from xlnet_jax.inference.requests import AFTER, GenerateSettings, allowed_XV, fill, read_record, segments
from xlnet_jax.inference.sampler import Sampler, default_context
from xlnet_jax.models.inputs import compact_inputs, text_inputs
from xlnet_jax.objectives.registry import segment_of_V

FIELDS = ("v:word", "cdr3:protein", "items:item")
FORM = RecordFormat(FIELDS)
LINES = ["TRBV1\tCASSF\t3 7", "TRBV2\tCASSPGF\t7 3 11", "TRBV3▁x\tCAWF\t3", "TRBV1\tCASSQQF\t11 12 13 14 15"]
TOKENIZER = Tokenizer.of_symbols(LINES, FORM)
SYMBOLS = TOKENIZER.symbols
KNOWN = [{SYMBOLS.decode([i]).strip(FIELD) for i in SYMBOLS.ids_of(number)} for number in range(3)]
SETTINGS = {"plm": SMALL, "clm": CAUSAL, "mdlm": dataclasses.replace(SMALL, num_segments=0)}


def network(objective):
    config = dataclasses.replace(SETTINGS[objective], vocab_size=TOKENIZER.vocab_size)
    model = random_model(config, tokenizer=TOKENIZER)
    model.params["output_bias"][:9] += 9.0  # special pieces are what an untrained network would draw
    return dataclasses.replace(model, objective=objective)


NETWORKS = {objective: network(objective) for objective in SETTINGS}


def symbols_of(line):
    return [field.symbols(text) for field, text in zip(FORM.parsed, line.split(FIELD), strict=True)]


@pytest.mark.parametrize("objective", ["plm", "mdlm"])
@pytest.mark.parametrize("settings", [{}, {"order": "random", "parallel": 3}, {"order": "confidence", "top_k": 3}])
def test_a_gap_takes_only_symbols_of_its_field(objective, settings):
    prompts = ["TRBV1\tCA___F\t3 ___ 11", "___\tCASSF\t___", "TRBV2"]
    texts = generate(
        NETWORKS[objective], prompts, num_samples=20, gap_pieces=(), top_p=1.0, temperature=2.0, **settings
    )
    lines = [text.text for text in texts]
    for line in lines:
        for found, known in zip(symbols_of(line), KNOWN, strict=True):
            assert set(found) <= known
    assert all(line.startswith("TRBV1\tCA") and line.split(FIELD)[1][-1] == "F" for line in lines[:20])
    assert all(symbols_of(line)[2][::2] == ["3", "11"] for line in lines[:20])
    assert all(line.split(FIELD)[1] == "CASSF" for line in lines[20:40])
    assert {len(symbols_of(line)[1]) for line in lines[40:]} == {4, 5, 7}
    assert {len(symbols_of(line)[2]) for line in lines} <= {1, 2, 3, 5}
    assert len(set(lines)) > 30


def test_a_causal_network_writes_the_fields_in_their_order_and_ends_the_record():
    texts = generate(NETWORKS["clm"], ["", "TRBV1\tCAS", "TRBV1\t"], num_samples=30, top_p=1.0, max_new_tokens=40)
    ended = [text for text in texts if text.ended]
    assert len(ended) > 20
    for text in ended:
        for found, known in zip(symbols_of(text.text), KNOWN, strict=True):
            assert found
            assert set(found) <= known
    for text in texts:
        assert set("".join(text.text.split(FIELD)[1:2])) <= KNOWN[1]
    assert all(text.text.startswith("TRBV1\tCAS") for text in texts[30:60])
    assert all(text.text.startswith("TRBV1\t") and len(text.text) > 6 for text in texts[60:])


def ordinary_log_probs_PV(model, request, ids_L, position):
    """Return log p(. | what is known) at a position, by the network as in pretraining."""
    known_L = np.isin(np.arange(len(ids_L)), request.targets_P, invert=True)
    drawn = request.targets_P[: len(request.ids_P)]
    known_L[drawn[drawn < position]] = True
    place_L = np.arange(len(ids_L))
    place_L[[0, -1]] = 0  # <s> and <eod>, which all see
    place_L[request.targets_P] += 100  # what is given comes first
    segments_L = segment_of_V(TOKENIZER, model.model)[ids_L]
    if model.objective == "plm":
        rank_L = np.where(known_L, place_L, 1000)
        inputs = compact_inputs(
            jnp.asarray(ids_L)[None],
            segment_ids_BL=jnp.asarray(segments_L)[None],
            perm_rank_BL=jnp.asarray(rank_L)[None],
            target_positions_BP=jnp.full((1, 1), position),
        )
        at_BP = None
    else:
        read_L = jnp.asarray(np.where(known_L, ids_L, 6))[None]
        inputs, at_BP = (
            text_inputs(read_L, jnp.ones_like(read_L), jnp.asarray(segments_L)[None]),
            jnp.array([[position]]),
        )
    logits, _ = model.network.apply({"params": model.params}, inputs, at_BP=at_BP)
    return np.asarray(jax.nn.log_softmax(logits[0, 0]))


@pytest.mark.parametrize("objective", ["plm", "mdlm"])
def test_draws_follow_the_conditional_of_the_network_within_the_field(objective):
    model = NETWORKS[objective]
    sampler = Sampler(model, GenerateSettings("loaded", top_p=1.0))
    first = read_record(SYMBOLS, "TRBV1\tCA___F\t___", gap_pieces=(2, 3))
    rows = [dataclasses.replace(first) for _ in range(200)]
    for _ in sampler.draw(rows, jax.random.key(3)):
        pass
    ids_L = first.ids_L.copy()
    ids_L[first.targets_P] = rows[0].ids_P
    for i, position in enumerate(first.targets_P):
        log_probs_V = ordinary_log_probs_PV(model, rows[0], ids_L, position)
        np.testing.assert_allclose(rows[0].log_probs_P[i], log_probs_V[ids_L[position]], atol=2e-4)
        if i == 0:  # what was drawn has the frequencies of the conditional, within the field
            probs_V = np.exp(log_probs_V) * allowed_XV(TOKENIZER)[1]
            found_V = np.bincount([row.ids_P[0] for row in rows], minlength=len(probs_V)) / len(rows)
            assert np.abs(found_V - probs_V / probs_V.sum()).sum() < 0.35
            assert not found_V[probs_V == 0].any()


def test_a_causal_network_predicts_after_what_it_drew():
    model = NETWORKS["clm"]
    (text,) = generate(model, "TRBV1\tCAS", top_p=1.0, max_new_tokens=12, seed=4)
    request = read_record(SYMBOLS, "TRBV1\tCAS", is_causal=True)
    ids_L = np.array([*request.ids_L, *(TOKENIZER.pieces.index(piece) for piece in text.pieces)])
    inputs = text_inputs(jnp.asarray(ids_L)[None], jnp.ones((1, len(ids_L)), jnp.int32))
    logits, _ = model.network.apply({"params": model.params}, inputs)
    log_probs = np.asarray(jax.nn.log_softmax(logits[0]))
    begin = len(request.ids_L)
    expected = [log_probs[p - 1, ids_L[p]] for p in range(begin, len(ids_L))]
    np.testing.assert_allclose(text.log_probs[: len(expected)], expected, atol=2e-4)


def test_a_record_is_framed_and_open_fields_get_lengths_of_the_training_records():
    request = read_record(SYMBOLS, "TRBV1\tca___f\t___", uniform_F=(0, 0, 0.99))
    assert request.ids_L[0] == BOS
    assert request.ids_L[-1] == EOD
    assert request.kinds_P.tolist() == [1, 2, 2, 2, 2, 2]
    assert read_record(SYMBOLS, "TRBV1\tCA___F\t___", gap_pieces=(3, 1)).kinds_P.tolist() == [1, 1, 1, 2]
    causal = read_record(SYMBOLS, "TRBV1\tCA", is_causal=True, max_new_tokens=3)
    assert causal.ids_L[[0, -1]].tolist() == [BOS, TOKENIZER.encode_lines(["TRBV1\tCA\t3"])[0][2]]
    assert causal.kinds_P.tolist() == [3 + 1, AFTER, AFTER]
    assert read_record(SYMBOLS, "TRBV1\t", is_causal=True).kinds_P[0] == 1
    lengths = [SYMBOLS.draw_length(2, 1, 99, u) for u in np.linspace(0, 0.999, 40)]
    assert [lengths.count(n) for n in (1, 2, 3, 5)] == [10] * 4
    assert default_context(NETWORKS["plm"], False, SYMBOLS) == 32


def test_drawn_symbols_join_the_line_as_readers_write_it():
    request = read_record(SYMBOLS, "___\tC___\t3 ___ 7 ___", gap_pieces=(1, 2, 1, 2))
    drawn = TOKENIZER.encode_lines(["TRBV3▁x\tAS\t11 12 13"])[0]
    request = dataclasses.replace(request, ids_P=drawn, passes_P=np.arange(len(drawn)))
    assert fill(TOKENIZER, request) == "TRBV3▁x\tCAS\t3 11 7 12 13"
    shown = [text for text, number in segments(TOKENIZER, request) if number is not None]
    assert shown == ["TRBV3▁x", "A", "S", " 11", " 12", " 13"]


@pytest.mark.parametrize(
    ("objective", "prompt", "settings", "says"),
    [
        ("plm", "TRBV1\tCAS1\t3", {}, "has the symbol '1' in 'cdr3', outside the alphabet protein"),
        ("plm", "TRBV1\tC___", {}, "has 2 fields, not the 3 of the checkpoint: v, cdr3, items, with a tab between"),
        ("plm", "TRBV1\t\t3 ___", {}, "has nothing in 'cdr3'"),
        ("plm", "TRBV9\t___\t___", {}, "most of its symbols are not in the vocabulary of the checkpoint"),
        ("plm", "TRBV1\tCASSF\t3 7 11 3 7 11", {}, "no training record has 7 to 106 symbols in 'items'"),
        ("plm", "TRBV1", {"prefix": "TRBV2"}, "is for prose: a record sees no other"),
        ("plm", "TRBV1\tCASSF\t3", {"gap_pieces": (2,)}, "has 0 gaps, written as ___"),
        ("clm", "TRBV1\tC___F\t3", {}, "has gaps, but the checkpoint reads from left to right"),
        ("plm", "TRBV1\tC___F\t3", {"gap_pieces": (60,)}, "with <s> and <eod>, which exceeds the context of 32"),
    ],
)
def test_prompts_that_cannot_be_read_end_in_one_line(objective, prompt, settings, says):
    with pytest.raises(InputError) as error:
        generate(NETWORKS[objective], prompt, **settings)
    assert says in str(error.value)
    assert "\n" not in str(error.value)

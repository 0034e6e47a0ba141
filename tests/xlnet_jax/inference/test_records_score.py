"""Records are scored as networks are trained on them: all symbols see <s> and <eod>, and no row sees its own symbol or
later ones."""

import dataclasses
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import xlnet_jax
from data_pipelines.records import RecordFormat
from data_pipelines.tokenizer import BOS, EOD, MASK, Tokenizer
from tests.xlnet_jax.random_models import CAUSAL, SMALL, random_model
from xlnet_jax import InputError, score_texts
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.inference.orders import permutations
from xlnet_jax.inference.score import score_ids
from xlnet_jax.models.inputs import compact_inputs, dense_inputs, text_inputs

command = COMMANDS["score"]

RECORDS = ["V1\tCAST\tJ2", "V2\tCAF\tJ1", "V1\tCT\tJ1"]
FORM = RecordFormat(("v:word", "cdr3:character", "j:word"))


def tokenizer_of(lines, form):
    return Tokenizer.of_symbols(lines, form)


TOKENIZER = tokenizer_of(RECORDS, FORM)
LETTERS = tokenizer_of(["AC", "D"], RecordFormat(("sequence:character",)))


def network_of(tokenizer, objective="plm"):
    sizes = {"vocab_size": tokenizer.vocab_size, "mem_len": 0}
    if objective == "clm":
        return random_model(dataclasses.replace(CAUSAL, **sizes), tokenizer=tokenizer)
    segments = {} if objective == "plm" else {"num_segments": 0}
    model = random_model(dataclasses.replace(SMALL, **sizes, **segments), tokenizer=tokenizer)
    return dataclasses.replace(model, objective=objective)


NETWORKS = {objective: network_of(TOKENIZER, objective) for objective in ("plm", "mdlm", "clm")}
PLM = NETWORKS["plm"]


def dense_log_probs(model, ids_P, sees_PP, ends_see_P=False):
    """Return log p of each symbol given those that it sees, and <s> and <eod>, by the dense masks of the original.
    ends_see: the symbols that <s> and <eod> see."""
    ids_L = np.array([BOS, *ids_P, EOD])
    sees_LL = np.zeros((len(ids_L), len(ids_L)), bool)
    sees_LL[:, [0, -1]] = True
    sees_LL[1:-1, 1:-1] = sees_PP
    sees_LL[[0, -1], 1:-1] = ends_see_P
    inputs = dense_inputs(
        jnp.asarray(ids_L)[None],
        segment_ids_BL=jnp.asarray(model.tokenizer.field_of_V[ids_L])[None],
        perm_mask_BLL=jnp.asarray(~sees_LL[None], jnp.float32),
        target_mapping_BPL=jnp.eye(len(ids_L))[None, 1:-1],
    )
    logits_1PV, _ = jax.jit(model.network.apply)({"params": model.params}, inputs)
    return np.asarray(jax.nn.log_softmax(logits_1PV[0]))[np.arange(len(ids_P)), ids_P]


def test_symbols_see_both_ends_of_their_record_and_the_segments_of_its_fields():
    (ids_P,) = TOKENIZER.encode_lines(RECORDS[0])
    order = [3, 0, 5, 1, 4, 2]
    (score,) = score_texts(PLM, RECORDS[0], " ".join(map(str, order)))
    rank = np.argsort(order)
    expected_P = dense_log_probs(PLM, ids_P, rank < rank[:, None])
    np.testing.assert_allclose(score.log_probs_OP[0], expected_P, atol=2e-5)
    assert score.pieces == ["v:V1", "cdr3:C", "cdr3:A", "cdr3:S", "cdr3:T", "j:J2"]
    (pseudo,) = score_texts(PLM, RECORDS[0], "pseudo")
    for place in range(len(ids_P)):
        others_PP = np.ones((len(ids_P), len(ids_P)), bool)
        others_PP[:, place] = False
        expected = dense_log_probs(PLM, ids_P, others_PP, others_PP[place])[place]
        assert pseudo.log_probs_OP[0, place] == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("objective", NETWORKS)
def test_no_row_sees_its_own_symbol_or_a_later_one(objective):
    """A changed symbol changes only the scores after it in the order."""
    model = NETWORKS[objective]
    (ids_P,) = TOKENIZER.encode_lines(RECORDS[0])
    other = {"v": "V2", "cdr3": "F", "j": "J1"}
    (order,) = permutations(
        "left-to-right" if objective == "clm" else "random:1", len(ids_P), len(ids_P), (0, 0, 0), ""
    )
    word = "left-to-right" if objective == "clm" else "random:1"
    (before,) = score_ids(model, [ids_P], [word], names=["record"])
    for step, place in enumerate(order):
        changed_P = ids_P.copy()
        field = FORM.parsed[TOKENIZER.field_of_V[ids_P[place]]].name
        changed_P[place] = TOKENIZER.pieces.index(f"{field}:{other[field]}")
        (after,) = score_ids(model, [changed_P], [word], names=["record"])
        np.testing.assert_allclose(after[0, order[:step]], before[0, order[:step]], atol=1e-5)
        later = [*order[step + 1 :], *([len(ids_P)] if objective == "clm" else [])]
        if later:
            assert np.abs(after[0, later] - before[0, later]).max() > 1e-4


@pytest.mark.parametrize("objective", ["plm", "mdlm"])
def test_probabilities_of_all_records_of_a_length_sum_to_one_in_each_order(objective):
    model = network_of(LETTERS, objective)
    pairs = [np.array(pair, np.int32) for pair in itertools.product(range(LETTERS.vocab_size), repeat=2)]
    for order in ("left-to-right", "right-to-left"):
        scores = score_ids(model, pairs, [order], names=["pair"] * len(pairs))
        total = np.exp([scores_OP.sum(dtype=np.float64) for scores_OP in scores]).sum()
        assert total == pytest.approx(1, abs=1e-5)


def test_a_causal_network_predicts_the_end_of_a_record():
    """Its probabilities of all records of up to n symbols, and of all longer beginnings, sum to 1."""
    model, symbols = network_of(LETTERS, "clm"), [i for i in range(LETTERS.vocab_size) if i != EOD]
    total = 0.0
    for length in (1, 2):
        records = [np.array(ids, np.int32) for ids in itertools.product(symbols, repeat=length)]
        scores = score_ids(model, records, ["left-to-right"], names=["record"] * len(records))
        assert {scores_1P.shape for scores_1P in scores} == {(1, length + 1)}
        total += np.exp([scores_1P.sum(dtype=np.float64) for scores_1P in scores]).sum()
        if length == 2:
            total += np.exp([scores_1P[:, :length].sum(dtype=np.float64) for scores_1P in scores]).sum()
            total -= np.exp([scores_1P.sum(dtype=np.float64) for scores_1P in scores]).sum()
    (score,) = score_texts(model, "AC")
    ids = [BOS, *LETTERS.encode_lines("AC")[0], EOD]
    logits, _ = model.network.apply({"params": model.params}, text_inputs(np.array([ids])))
    empty = math.exp(jax.nn.log_softmax(logits[0, 0])[EOD])  # a record without symbols
    assert total + empty == pytest.approx(1, abs=1e-5)
    expected = jax.nn.log_softmax(logits[0, :-1])[np.arange(3), np.array(ids[1:])]
    np.testing.assert_allclose(score.log_probs_OP[0], expected, atol=1e-5)
    assert score.pieces == ["A", "C", "<eod>"]


@pytest.mark.parametrize("objective", NETWORKS)
def test_the_score_of_a_record_does_not_depend_on_the_others(objective):
    orders = ["left-to-right"] if objective == "clm" else ["random:2", "left-to-right"]
    together = score_texts(NETWORKS[objective], RECORDS, orders)
    for record, score in zip(RECORDS, together, strict=True):
        (alone,) = score_texts(NETWORKS[objective], record, orders, batch_tokens=1)
        assert alone.pieces == score.pieces
        np.testing.assert_allclose(alone.log_probs_OP, score.log_probs_OP, atol=1e-5)


def test_a_network_of_masked_symbols_scores_each_given_the_others():
    mlm = dataclasses.replace(PLM, objective="mlm")
    (score,) = score_texts(mlm, RECORDS[0], "pseudo")
    ids = np.array([BOS, *TOKENIZER.encode_lines(RECORDS[0])[0], EOD])
    for place in range(6):
        read = ids.copy()
        read[place + 1] = MASK
        inputs = compact_inputs(read[None], segment_ids_BL=TOKENIZER.field_of_V[ids][None])
        logits, _ = mlm.network.apply({"params": mlm.params}, inputs)
        expected = float(jax.nn.log_softmax(logits[0, place + 1])[ids[place + 1]])
        assert score.log_probs_OP[0, place] == pytest.approx(expected, abs=2e-5)
    with pytest.raises(InputError, match="trained with mlm, which has no likelihood"):
        score_texts(mlm, RECORDS[0])


def test_an_order_of_fields_gives_the_conditional_of_each_field():
    """log p(cdr3), then log p(v | cdr3) and log p(j | v, cdr3): changing a later field changes no earlier one."""
    (score,) = score_texts(PLM, RECORDS[0], "random:3", field_order="cdr3>v>j")
    assert list(score.log_likelihood_by_field) == ["v", "cdr3", "j"]
    assert sum(score.log_likelihood_by_field.values()) == pytest.approx(score.log_likelihood, abs=1e-4)
    (ids_P,) = TOKENIZER.encode_lines(RECORDS[0])
    place_P = np.array([1, 0, 0, 0, 0, 2])
    orders = permutations("random:3", 6, 6, (0, 0, 0), "")
    for order_P, found_P in zip(orders, score.log_probs_OP, strict=True):
        rank_P = np.argsort(order_P[np.argsort(place_P[order_P], kind="stable")])
        np.testing.assert_allclose(found_P, dense_log_probs(PLM, ids_P, rank_P < rank_P[:, None]), atol=2e-5)
    (other,) = score_texts(PLM, "V2\tCAST\tJ1", "random:3", field_order="cdr3>v>j")
    ours, theirs = score.log_likelihood_by_field, other.log_likelihood_by_field
    assert ours["cdr3"] == pytest.approx(theirs["cdr3"], abs=1e-5)
    assert abs(ours["j"] - theirs["j"]) > 1e-3


def test_lengths_have_a_probability_of_their_own():
    (score,) = score_texts(PLM, RECORDS[0])
    counts = {4: 1, 3: 1, 2: 1}  # of cdr3; v and j always have one symbol
    assert score.log_prob_of_lengths == pytest.approx(math.log((counts[4] + 1) / (3 + 4)))
    assert score_texts(NETWORKS["clm"], RECORDS[0])[0].log_prob_of_lengths is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"field_order": "cdr3>v"}, r"`field_order` cdr3>v must name each field of the checkpoint once \(v, cdr3, j\)"),
        ({"field_order": "cdr3>v>j,v"}, r"must name each field of the checkpoint once"),
        ({"field_order": "v>cdr3>j", "orders": "pseudo"}, r"`field_order` v>cdr3>j: `orders` pseudo has no order"),
        ({"context": "V1\tC\tJ1"}, r"`context` .* is for prose: a record sees no other; leave it out"),
    ],
)
def test_arguments_that_do_not_fit_records_are_named(arguments, said):
    with pytest.raises(InputError, match=said):
        score_texts(PLM, RECORDS, **arguments)


def test_a_causal_network_has_no_order_of_fields():
    with pytest.raises(InputError, match=r"`field_order` v,cdr3>j: the checkpoint reads from left to right \(clm\)"):
        score_texts(NETWORKS["clm"], RECORDS, field_order="v,cdr3>j")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records") / "plm"
    xlnet_jax.save(PLM, folder, "native")
    return folder


def test_the_command_scores_a_table_of_records(checkpoint, tmp_path, capsys):
    table = tmp_path / "receptors.tsv"
    table.write_text("cdr3\tv\tj\nCAST\tV1\tJ2\nCAF\tV2\tJ1\n")
    words = ("--texts", str(table), "--orders", "random:2", "--field-order", "cdr3>v,j")
    assert command.main([str(checkpoint), *words]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = score_texts(PLM, RECORDS[:2], "random:2", field_order="cdr3>v,j")
    for line, score, record in zip(lines, expected, RECORDS, strict=False):
        assert line["text"] == record
        assert line["log_likelihood"] == pytest.approx(score.log_likelihood, abs=1e-4)
        assert line["log_likelihood_by_field"] == pytest.approx(score.log_likelihood_by_field, abs=1e-4)
        assert line["log_prob_of_lengths"] == pytest.approx(score.log_prob_of_lengths, abs=1e-5)


def test_the_command_names_a_sentence_that_is_no_record(checkpoint):
    with pytest.raises(InputError, match=r"the record 'V1\\tCAST' has 2 fields, not the 3 of the tokenizer"):
        command.main([str(checkpoint), "--sentences", "V1\tCAST"])

"""The study of receptors measures what it says: sums of exact chains, conditionals that sum to one, and equal FLOPs."""

import itertools
import json
import lzma
import math

import numpy as np
import pytest

from benchmarks import receptors, receptors_samples, studies
from benchmarks.receptors import Run
from data_pipelines.records import RecordFormat
from data_pipelines.tokenizer import BOS, EOD, Tokenizer
from tests.xlnet_jax.inference.test_records_score import network_of
from xlnet_jax import score_texts
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.inference import log_probs

ROWS = ["CASF\tV1\tJ1", "CAF\tV2\tJ2", "CATF\tV1\tJ1", "CSSF\tV2\tJ1"]
CDR3S = [row.split("\t")[0] for row in ROWS]
GENES = Tokenizer.of_symbols(ROWS, RecordFormat(receptors.FIELDS["genes"]))
ALONE = Tokenizer.of_symbols(CDR3S, RecordFormat(receptors.FIELDS["cdr3"]))
# The least loss of short and of full runs is at the lowest rate.
TUNED = {
    Run(contender, "cdr3", 1, rate, kind=kind).name: {"loss": rate}
    for contender, rate, kind in itertools.product(receptors.CONTENDERS, receptors.RATES, ("tune", "full"))
}


def tuning(measured):
    return [run for name in receptors.CONTENDERS for run in receptors.tuning(name, lambda: measured)]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder of data: half of the time the source draws a sequence, the first one twice as often as the others."""
    pgens = zip(CDR3S, (0.2, 0.1, 0.1, 0.1), strict=True)
    (tmp_path / "test_pgen.tsv").write_text("cdr3\tpgen\n" + "".join(f"{cdr3}\t{p}\n" for cdr3, p in pgens))
    rows = [ROWS[0], *ROWS] * 2000
    (tmp_path / "train.tsv.xz").write_bytes(lzma.compress("\n".join(["cdr3\tv\tj", *rows]).encode()))
    rows = [{"middle": [1, 2, log_p], "v": [0.25, 0.75]} for log_p in (-1, -2)]
    truth = {"log_productive": math.log(0.5), "genes": ["V1", "V2"], "rows": rows}
    monkeypatch.setattr(receptors, "TRUTH", tmp_path / "truth.json")
    receptors.TRUTH.write_text(json.dumps(truth))
    return tmp_path


def test_the_truth_is_among_productive_sequences(data):
    sequences, log_p_T = receptors.read_test(data)
    assert sequences == CDR3S
    np.testing.assert_allclose(np.exp(log_p_T), [0.4, 0.2, 0.2, 0.2])


def test_n_grams_of_the_whole_source_have_no_excess(data):
    ngrams = receptors.measure_ngrams(data, (1, 5))["ngrams"]
    assert ngrams["1"]["excess"] > 1
    assert abs(ngrams["5"]["excess"]) < 0.01
    assert ngrams["5"]["r"] > 0.99


@pytest.mark.parametrize("objective", ["plm", "mdlm", "mlm"])
def test_probabilities_of_a_hidden_symbol_sum_to_one(objective, data):
    records = [np.array([12, symbol]) for symbol in range(ALONE.vocab_size)]
    log_q_KT = receptors.chains(network_of(ALONE, objective), records, [(1, 2)] * len(records), 1)
    np.testing.assert_allclose(np.exp(log_q_KT).sum(), 1, rtol=1e-4)


def test_middles_of_a_causal_network_have_their_share_of_all_sequences_with_these_ends(monkeypatch):
    """Against the sum over all middles, by a network that has learned nothing: its draws are spread widely."""
    monkeypatch.setattr(receptors, "DRAWS", 20_000)
    network, symbols = network_of(ALONE, "clm"), [i for i in range(ALONE.vocab_size) if i != EOD]
    texts = [np.array([BOS, 12, *pair, 13, EOD], np.int32) for pair in itertools.product(symbols, symbols)]
    log_q_T = np.array([of_L2[:, 0].sum() for of_L2 in log_probs.causal_beside_likeliest(network, texts, 4096)])
    asked = range(0, len(texts), 131)
    found = receptors.causal_middles(network, [texts[i][1:-1] for i in asked], [(1, 3)] * len(asked))
    np.testing.assert_allclose(found, log_q_T[asked] - np.logaddexp.reduce(log_q_T), atol=0.02)


@pytest.mark.parametrize(("parallel", "exact"), [(1, False), (2, False), (0, False), (2, True)])
def test_the_distribution_of_draws_sums_to_one_in_every_order(parallel, exact, monkeypatch):
    """Over all receptors of two symbols. In one pass the order does not matter; drafts in their order are a chain."""
    monkeypatch.setattr(receptors_samples, "ORDERS", 3)
    network, symbols = network_of(ALONE), np.arange(ALONE.vocab_size)
    pairs = [np.array(pair, np.int32) for pair in itertools.product(symbols, symbols)]
    log_q_OT = receptors_samples.log_q(network, pairs, parallel, exact)
    np.testing.assert_allclose(np.exp(log_q_OT).sum(1), 1, rtol=1e-4)
    in_one_pass = receptors_samples.log_q(network, pairs, 0)
    np.testing.assert_allclose(in_one_pass, np.broadcast_to(in_one_pass[0], in_one_pass.shape), rtol=1e-5)
    assert np.allclose(log_q_OT, in_one_pass, atol=1e-4) == (parallel != 1 and not exact)


def test_the_mean_over_orders_never_has_more_excess_than_the_orders(data):
    found = receptors.log_probs_of(network_of(ALONE), CDR3S)
    assert [*found] == ["K=1", "K=2", "K=4", "K=8", "K=16", "K=32"]
    lengths = [ALONE.symbols.log_prob_of_lengths([len(cdr3)]) for cdr3 in CDR3S]
    log_q_KT = receptors.chains(network_of(ALONE), ALONE.encode_lines(CDR3S), [(0, len(c)) for c in CDR3S], 32)
    np.testing.assert_allclose(found["K=1"], log_q_KT[0] + lengths, rtol=1e-5)
    assert (found["K=32"] >= log_q_KT.mean(0) + lengths - 1e-6).all()


@pytest.mark.parametrize("objective", ["plm", "mdlm", "clm"])
def test_genes_are_predicted_from_the_sequence_without_j(objective, data):
    model = network_of(GENES, objective)
    np.testing.assert_allclose(receptors.genes_given(model, CDR3S, ["V1", "V2"]).sum(1), 1)
    q_TG = receptors.genes_given(model, ["C", "F"], ["V1", "V2"])  # with one order
    ways = {} if objective == "clm" else {"field_order": "cdr3>v>j"}
    for cdr3, q_G in zip("CF", q_TG, strict=True):
        scores = score_texts(model, [f"{cdr3}\t{v}\tJ1" for v in ("V1", "V2")], **ways)
        log_q_G = [score.log_likelihood_by_field["v"] for score in scores]
        assert np.log(q_G[0] / q_G[1]) == pytest.approx(log_q_G[0] - log_q_G[1], abs=1e-3)


@pytest.mark.parametrize(("objective", "tokenizer"), [("plm", ALONE), ("clm", ALONE), ("mlm", ALONE), ("plm", GENES)])
def test_measurements_of_a_run(objective, tokenizer, data, monkeypatch):
    monkeypatch.setattr(receptors, "load", lambda _: network_of(tokenizer, objective))
    measured = receptors.measure(data, data)
    if tokenizer is GENES:
        assert measured["v"]["kl"] > 0
        return
    last = [*measured["ways"].values()][-1]
    assert last["excess"] == pytest.approx(np.mean(measured["excess"]), abs=1e-3)
    assert measured["middle"]["low"] < measured["middle"]["excess"] < measured["middle"]["high"]


def test_runs_of_the_study_are_commands_of_train_and_spend_equal_flops(tmp_path):
    runs = {run.name: run for run in receptors.runs_of(TUNED)}
    for run in [*tuning(TUNED), *(run for run in runs.values() if run.seed < 2)]:
        module, *words = run.command("corpus", tmp_path)
        assert module == "xlnet_jax.train"
        config = COMMANDS["train"].parse(words)
        assert (config.objective, config.steps) == (run.contender.split("-")[0], run.steps)
        assert config.optimizer.learning_rate == run.rate
    plm = runs["plm-cdr3-sequences-seed-0"]
    for contender in ("clm", "mdlm", "mlm"):
        other = runs[f"{contender}-cdr3-flops-seed-0"]
        spent, expected = (run.steps * receptors.cost(run.contender, run.fields) for run in (other, plm))
        assert spent == pytest.approx(expected, rel=1e-3)
    assert {run.rate for run in runs.values()} == {min(receptors.RATES)}


def test_records_of_the_study_have_the_commands_of_their_runs(tmp_path):
    """So each contender's runs have the rate that its tuning chose."""
    measured = studies.read(studies.MEASURED / receptors.NAME)
    runs = {run.name: run for run in [*tuning(measured), *receptors.runs_of(measured)]}
    for name, record in measured.items():
        if name != "ngrams":
            assert studies.shown(runs[name].command("CORPUS", tmp_path), tmp_path) == record["command"]
            assert runs[name].steps == record["steps"]

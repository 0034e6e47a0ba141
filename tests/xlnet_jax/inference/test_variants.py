"""Scores of variants are log-ratios of likelihoods; mutations that do not fit the reference are named."""

import csv
import dataclasses
import io
import itertools
import json
import math

import numpy as np
import pytest
import scipy.stats

import xlnet_jax
from data_pipelines.records import RecordFormat
from data_pipelines.tokenizer import BOS, EOD, MASK, Tokenizer
from tests.xlnet_jax.random_models import CAUSAL, SMALL, random_model
from xlnet_jax import InputError, score_texts, score_variants
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.inference import log_probs
from xlnet_jax.inference.log_probs import Query, log_probs_PV
from xlnet_jax.inference.variants import correlate, read_mutations
from xlnet_jax.models.inputs import compact_inputs

command = COMMANDS["score"]

REFERENCE = "MKTAYIAKQRQISFVK"
TOKENIZER = Tokenizer.of_symbols([REFERENCE], RecordFormat(("sequence:protein",)))
SIZES = {"vocab_size": TOKENIZER.vocab_size, "mem_len": 0}
PLM = random_model(dataclasses.replace(SMALL, **SIZES), tokenizer=TOKENIZER)
MLM = dataclasses.replace(PLM, objective="mlm")
CLM = random_model(dataclasses.replace(CAUSAL, **SIZES), tokenizer=TOKENIZER)
OF_FIELDS = Tokenizer.of_symbols(["V1\tC"], RecordFormat(("v:word", "cdr3:character")))


def ids_of(sequence):
    return TOKENIZER.encode_lines([sequence])[0]


def mutated(mutant):
    symbols = list(REFERENCE)
    for _, position, symbol in read_mutations(mutant):
        symbols[position - 1] = symbol
    return "".join(symbols)


def joint(model, mutant, positions, order):
    """Return log p of the symbols at these positions in this order, given all others; each is predicted by a pass of
    its own, in which what comes before it is context."""
    row, total = np.array([BOS, *ids_of(mutated(mutant)), EOD], np.int32), 0.0
    for step in range(len(order)):
        hidden = np.array([positions[i] for i in order[step:]])
        total += log_probs_PV(model, Query(row, hidden, np.zeros_like(hidden)))[0, row[hidden[0]]]
    return total


def test_one_mutation_is_the_ratio_of_two_symbols_given_all_others():
    mutants = ["K2R", "K2D", "A7W", "WT", "", "K2K"]
    scores = score_variants(PLM, REFERENCE, mutants)
    row = np.array([BOS, *ids_of(REFERENCE), EOD], np.int32)
    for mutant, score in zip(mutants[:3], scores, strict=False):
        ((_, position, symbol),) = read_mutations(mutant)
        log_probs_V = log_probs_PV(PLM, Query(row, np.array([position]), np.array([0])))[0]
        assert score == pytest.approx(log_probs_V[ids_of(symbol)[0]] - log_probs_V[row[position]], abs=1e-5)
    assert scores[3:].tolist() == [0, 0, 0]
    assert score_variants(PLM, REFERENCE, "k2k:y5f") == pytest.approx(score_variants(PLM, REFERENCE, "Y5F"))


@pytest.mark.parametrize("mutant", ["K2R:Y5F", "K2R,Y5F;Q11E"])
def test_several_mutations_are_joint_likelihoods_averaged_over_the_orders_of_their_positions(mutant):
    positions = [position for _, position, _ in read_mutations(mutant)]
    orders = list(itertools.permutations(range(len(positions))))
    ratios = [joint(PLM, mutant, positions, order) - joint(PLM, "WT", positions, order) for order in orders]
    assert len(ratios) == math.factorial(len(positions))
    assert np.std(ratios) > 1e-3
    assert score_variants(PLM, REFERENCE, mutant)[0] == pytest.approx(np.mean(ratios), abs=1e-4)


def test_joint_probabilities_of_two_positions_sum_to_one():
    row = np.array([BOS, *ids_of(REFERENCE), EOD], np.int32)
    first_V = log_probs_PV(PLM, Query(row, np.array([2, 5]), np.zeros(2, int)))[0]
    total = 0.0
    for i in range(TOKENIZER.vocab_size):
        row[2] = i
        total += np.exp(first_V[i] + log_probs_PV(PLM, Query(row, np.array([5]), np.zeros(1, int)))[0]).sum()
    assert total == pytest.approx(1, abs=1e-4)


def test_masked_marginals_mask_all_mutated_positions_at_once():
    (score,) = score_variants(MLM, REFERENCE, "K2R:Y5F")
    row = np.array([BOS, *ids_of(REFERENCE), EOD], np.int32)
    read = row.copy()
    read[[2, 5]] = MASK
    logits, _ = MLM.network.apply({"params": MLM.params}, compact_inputs(read[None], segment_ids_BL=0 * read[None]))
    log_probs_LV = np.asarray(logits[0] - np.logaddexp.reduce(np.asarray(logits[0]), axis=1, keepdims=True))
    ratios = [log_probs_LV[at, ids_of(new)[0]] - log_probs_LV[at, row[at]] for at, new in ((2, "R"), (5, "F"))]
    assert score == pytest.approx(sum(ratios), abs=1e-4)


@pytest.mark.parametrize(("model", "orders"), [(PLM, "random:3"), (PLM, "left-to-right"), (CLM, "pseudo")])
def test_orders_of_the_whole_sequence_are_those_of_score_for_reference_and_variant(model, orders):
    mutants = ["K2R", "K2R:Y5F", "wt"]
    scores = score_variants(model, REFERENCE, mutants, orders, seed=4)
    word = "left-to-right" if model is CLM else orders
    found = score_texts(model, [REFERENCE, *map(mutated, mutants)], word, seed=4)
    of_reference, *of_variants = (score.log_likelihood for score in found)
    np.testing.assert_allclose(scores, np.array(of_variants) - of_reference, atol=1e-4)
    assert np.abs(scores[:2]).min() > 1e-3


def test_variants_of_one_position_share_a_pass(monkeypatch):
    passes = []

    def counting(pretrained, queries, batch_tokens):
        passes.append(len(queries))
        return original(pretrained, queries, batch_tokens)

    original = log_probs.log_probs_of_vocabulary
    monkeypatch.setattr(log_probs, "log_probs_of_vocabulary", counting)
    singles = [f"{REFERENCE[i]}{i + 1}{symbol}" for i in range(3) for symbol in "ACDEFGHI"]
    score_variants(PLM, REFERENCE, singles)
    # Both hidden; then, for each order, one of them with the variant's and with the reference's symbol at the other.
    score_variants(PLM, REFERENCE, ["K2R:Y5F"])
    assert passes == [3, 1 + 2 * 2]


def test_a_long_reference_is_read_around_the_mutations():
    """The network sees <s> and <eod> only at the ends of the reference."""
    ids_L = ids_of(REFERENCE)
    for mutant, read, at in (
        ("K2R", [BOS, *ids_L[:8]], 2),
        ("R10K", ids_L[5:13], 4),
        ("K16R", [*ids_L[8:], EOD], 7),
    ):
        (score,) = score_variants(PLM, REFERENCE, mutant, max_len=10)
        log_probs_V = log_probs_PV(PLM, Query(np.array(read, np.int32), np.array([at]), np.array([0])))[0]
        expected = log_probs_V[ids_of(mutant[-1])[0]] - log_probs_V[read[at]]
        assert score == pytest.approx(expected, abs=1e-5)
    with pytest.raises(InputError, match=r"`max_len` 10 is less than the 15 symbols from mutation 2 and 16: raise it"):
        score_variants(PLM, REFERENCE, "K2R:K16R", max_len=10)


@pytest.mark.parametrize(
    ("mutant", "said"),
    [
        ("A2R", r"mutants\[1\]: A2R mutates A, but the reference has K at 2"),
        ("K17R", r"mutants\[1\]: K17R is beyond the 16 symbols of the reference"),
        ("K0R", r"mutants\[1\]: K0R is beyond the 16 symbols"),
        ("K2*", r"mutants\[1\]: K2\* has the symbol '\*', which the checkpoint does not know"),
        ("K2R:K2D", r"mutants\[1\]: K2R:K2D mutates position 2 twice"),
        ("deletion", r"mutants\[1\]: 'deletion' is neither a mutation, such as A24P, nor a list of them"),
    ],
)
def test_a_mutation_that_does_not_fit_the_reference_is_named(mutant, said):
    with pytest.raises(InputError, match=said):
        score_variants(PLM, REFERENCE, ["K2R", mutant])


def test_a_checkpoint_of_something_else_is_refused(model):
    for network, said in (
        (model, "reads prose: variants need one that was trained on records of one field"),
        (dataclasses.replace(PLM, tokenizer=OF_FIELDS), "reads records of several fields: variants need one"),
    ):
        with pytest.raises(InputError, match=said):
            score_variants(network, REFERENCE, ["K2R"])
    with pytest.raises(InputError, match="`reference` has no symbols"):
        score_variants(PLM, "", ["WT"], "random:1")


def test_the_interval_of_a_correlation_holds_it_and_rows_without_a_number_do_not_count():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=200)
    measured = scores + rng.normal(size=200)
    measured[:20] = np.nan
    found = correlate(scores, measured)
    assert found.rho == pytest.approx(scipy.stats.spearmanr(scores[20:], measured[20:]).statistic)
    assert found.low < found.rho < found.high
    assert found.high - found.low == pytest.approx(4 * (1 - found.rho**2) / math.sqrt(180), rel=0.3)
    assert found.variants == 180


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("variants")
    xlnet_jax.save(PLM, folder / "plm", "native")
    (folder / "p.fasta").write_text(f">sp|P1|TEST_ECOLI\n{REFERENCE[:9]}\n{REFERENCE[9:]}\n")
    (folder / "two.fasta").write_text(f">one\n{REFERENCE}\n>two\n{REFERENCE}\n")
    (folder / "mutants.csv").write_text("mutant,effect,of\nK2R,0.5,x\nwt,,y\nA7W,-1,z\n\nK2R:Y5F,2.5,\n")
    (folder / "other.tsv").write_text("name\tmutation\tof\nwild\tWT\t1\nfirst\tK2R\t2\n")
    (folder / "none.csv").write_text("name,of\nfirst,1\n")
    (folder / "wrong.csv").write_text("mutant\nK2R\nA2R\n")
    return folder


@pytest.fixture
def score(folder):
    def score(variants, *words, reference="p.fasta"):
        files = ("--reference", str(folder / reference), "--variants", str(folder / variants))
        return command.main([str(folder / "plm"), *files, *map(str, words)])

    return score


def test_the_command_writes_a_score_of_each_variant_and_the_correlation(score, folder, tmp_path, capsys):
    mutants = ["K2R", "wt", "A7W", "K2R:Y5F"]
    expected = score_variants(PLM, REFERENCE, mutants)
    out = tmp_path / "scores.tsv"
    assert score("mutants.csv", "--measured", "effect", "--out", out) == 0
    rows = list(csv.DictReader(io.StringIO(out.read_text()), dialect="excel-tab"))
    assert [row["mutant"] for row in rows] == mutants
    assert [float(row["score"]) for row in rows] == pytest.approx(expected.tolist(), abs=1e-4)
    assert [row["effect"] for row in rows] == ["0.5", "", "-1.0", "2.5"]
    rho = scipy.stats.spearmanr(expected[[0, 2, 3]], [0.5, -1, 2.5]).statistic
    printed = capsys.readouterr().out
    assert f"scores.tsv: 4 variants of a reference of 16 symbols; Spearman's rho with effect {rho:.3f} [" in printed
    assert "] on 3 variants, 1 rows have no number" in printed
    assert score("other.tsv", "--orders", "random:2") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = score_variants(PLM, REFERENCE, ["WT", "K2R"], "random:2")
    assert [line["mutant"] for line in lines] == ["WT", "K2R"]
    assert [line["score"] for line in lines] == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("variants", "words", "said"),
    [
        ("none.csv", (), r"--variants .*none\.csv has no column of mutations such as A24P; its columns are name, of"),
        ("wrong.csv", (), r"wrong\.csv: row 2: A2R mutates A, but the reference has K at 2"),
        ("mutants.csv", ("--measured", "x"), r"--measured x is no column of .*; its columns are mutant, effect, of"),
        ("mutants.csv", ("--measured", "of"), r"--measured of has no numbers in .*mutants\.csv"),
        ("mutants.csv", ("--sentences", "AC"), r"--variants are scored alone: leave --texts, --sentences"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(score, variants, words, said):
    with pytest.raises(InputError, match=said):
        score(variants, *words)


def test_a_reference_is_one_record(score, folder):
    with pytest.raises(InputError, match=r"--reference .*two\.fasta has 2 records: give a file with exactly one"):
        score("mutants.csv", reference="two.fasta")
    with pytest.raises(InputError, match=r"give both --reference, a file with one record, and --variants, a table"):
        command.main([str(folder / "plm"), "--reference", str(folder / "p.fasta")])

"""Scores of texts are log-likelihoods under an order, and do not depend on the other texts; the command writes
them."""

import csv
import dataclasses
import io
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data_pipelines.tokenizer import EOD, MASK
from tests.xlnet_jax.random_models import BERT, HEADS, SMALL, random_model
from xlnet_jax import InputError
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.inference import log_probs
from xlnet_jax.inference import score as scoring
from xlnet_jax.inference.log_probs import Query, log_likelihoods, log_probs_PV
from xlnet_jax.inference.orders import hidden_sets as sampled_sets
from xlnet_jax.inference.orders import permutations
from xlnet_jax.inference.score import score_texts
from xlnet_jax.measurement.factorize import factorize
from xlnet_jax.models.heads import XLNetLM
from xlnet_jax.models.inputs import compact_inputs, dense_inputs, text_inputs

command = COMMANDS["score"]

TEXT = "The list of names is new"
LONGER = "The list of names is new, and the names of the list are old. " * 2


def dense_log_probs(model, ids, targets, sees):
    """Return the log-probabilities of the pieces at some positions by the dense masks of the original. sees: bool
    [L, L], which others each piece sees."""
    inputs = dense_inputs(
        jnp.asarray(ids)[None],
        segment_ids_BL=jnp.zeros((1, len(ids)), jnp.int32),
        perm_mask_BLL=jnp.asarray(~sees[None], jnp.float32),
        target_mapping_BPL=jnp.eye(len(ids))[None, np.array(targets)],
    )
    logits, _ = jax.jit(model.network.apply)({"params": model.params}, inputs)
    return np.asarray(jax.nn.log_softmax(logits[0]))[np.arange(len(targets)), ids[np.array(targets)]]


def test_scores_are_those_of_the_network_with_the_masks_of_the_order(model):
    order = [2, 0, 5, 1, 3, 4]
    (score,) = score_texts(model, [TEXT], " ".join(map(str, order)))
    rank, rest = np.argsort(order), order[1:]  # the first piece of an order sees nothing
    ids = model.tokenizer.encode_lines([TEXT])[0]
    expected = dense_log_probs(model, ids, rest, rank < rank[:, None])
    np.testing.assert_allclose(score.log_probs_OP[0, rest], expected, atol=2e-5)
    assert score.log_likelihood == pytest.approx(score.log_probs_OP.sum(), abs=1e-4)


def diffusion(kind):
    """A network of masked diffusion."""
    return dataclasses.replace(random_model(dataclasses.replace(kind, num_segments=0, mem_len=0)), objective="mdlm")


TWO_STREAMS = random_model(dataclasses.replace(SMALL, vocab_size=12))
DIFFUSION = {"relative": diffusion(SMALL), "learned": diffusion(BERT)}


@pytest.mark.parametrize("network", [TWO_STREAMS, *DIFFUSION.values()], ids=["two streams", *DIFFUSION])
def test_probabilities_of_all_texts_of_two_pieces_sum_to_one(network):
    """The first piece sees nothing; equal ranks predict both pieces independently."""
    pairs = [np.array(pair, np.int32) for pair in itertools.product(range(network.model.vocab_size), repeat=2)]
    for rank in ([0, 1], [1, 0], [0, 0]):
        queries = [Query(pair, np.arange(2), np.array(rank)) for pair in pairs]
        total = np.exp([scores.sum(dtype=np.float64) for scores in log_likelihoods(network, queries, 4096)]).sum()
        assert total == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("diffusion", DIFFUSION.values(), ids=DIFFUSION)
def test_each_group_of_a_masked_network_is_a_pass_in_which_it_and_later_ones_are_masked(diffusion):
    rng = np.random.default_rng(0)
    queries = [
        Query(rng.integers(9, 40, 18).astype(np.int32), np.array([2, 17, 5, 9, 0]), np.array([0, 2, 1, 0, 2])),
        Query(rng.integers(9, 40, 7).astype(np.int32), np.array([3]), np.array([0])),
        Query(rng.integers(9, 40, 5).astype(np.int32), np.arange(5), np.array([4, 0, 3, 1, 2])),
    ]
    apply = jax.jit(diffusion.network.apply)
    for query, found in zip(queries, log_likelihoods(diffusion, queries, 64), strict=True):
        by_hand = np.zeros(len(found))
        for slot, rank in enumerate(query.rank_P):
            ids = query.ids_L.copy()
            ids[query.positions_P[query.rank_P >= rank]] = MASK
            logits, _ = apply({"params": diffusion.params}, compact_inputs(ids[None]))
            position = query.positions_P[slot]
            by_hand[slot] = jax.nn.log_softmax(logits[0, position])[query.ids_L[position]]
        np.testing.assert_allclose(found, by_hand, atol=2e-5)
        of_pieces_PV = log_probs_PV(diffusion, query)
        np.testing.assert_allclose(np.exp(of_pieces_PV).sum(1), 1, atol=1e-5)
        chosen = of_pieces_PV[np.arange(len(found)), query.ids_L[query.positions_P]]
        np.testing.assert_allclose(chosen, found, atol=2e-5)


def test_a_text_longer_than_the_learned_positions_is_refused():
    query = Query(np.full(19, 9, np.int32), np.array([0]), np.array([0]))
    with pytest.raises(InputError, match="a text has 19 pieces, but the checkpoint 18 learned positions: split it"):
        log_likelihoods(DIFFUSION["learned"], [query], 4096)


def test_the_pseudo_log_likelihood_shows_each_piece_all_others(model):
    (score,) = score_texts(model, [TEXT], "pseudo")
    ids = model.tokenizer.encode_lines([TEXT])[0]
    alone = [log_probs_PV(model, Query(ids, np.array([i]), np.array([0])))[0, piece] for i, piece in enumerate(ids)]
    np.testing.assert_allclose(score.log_probs_OP, [alone], atol=1e-5)


def test_scores_depend_neither_on_the_bucket_nor_on_the_batch(model, monkeypatch):
    texts, orders = [LONGER, TEXT, "new"], ["random:2"]
    together = score_texts(model, texts, orders)
    monkeypatch.setattr(log_probs, "SHORTEST", 64)
    alone = score_texts(model, texts, orders, batch_tokens=1)
    assert len(together[0].pieces) > 16 > len(together[1].pieces)
    for ours, other in zip(together, alone, strict=True):
        assert other.pieces == ours.pieces
        np.testing.assert_allclose(other.log_probs_OP, ours.log_probs_OP, atol=1e-5)


@jax.jit
def _dense_logits(params, ids_BL, hides_BLL, mems_ZBMD, is_slot):
    """Return the logits of all pieces, [B, L, V]. hides: bool, which others a piece does not see."""
    batch, length = ids_BL.shape
    network = XLNetLM(dataclasses.replace(SMALL, vocab_size=params["output_bias"].shape[0]))
    inputs = dense_inputs(
        ids_BL,
        segment_ids_BL=jnp.zeros_like(ids_BL),
        perm_mask_BLL=hides_BLL.astype(jnp.float32),
        target_mapping_BPL=jnp.broadcast_to(jnp.eye(length), (batch, length, length)),
        memory_BM=jnp.broadcast_to(~is_slot, mems_ZBMD.shape[1:3]),
        attend_empty_memory=mems_ZBMD.shape[2] > 0,
    )
    logits_BLV, outputs = network.apply({"params": params}, inputs, mems_ZBMD)
    return logits_BLV, outputs.new_mems_ZBMD


def dense_scores(model, ids, sees_OLL, mems=None):
    """Return log p of each piece given those that it sees, [O, L], by the dense masks of the original. mems: [Z, M, D],
    which all pieces see."""
    orders, length = sees_OLL.shape[:2]
    ids_OL, none = jnp.broadcast_to(jnp.asarray(ids), (orders, length)), jnp.zeros((3, 0, 24))
    mems_ZOMD = jnp.repeat((none if mems is None else mems)[:, None], orders, axis=1)
    logits_OLV, _ = _dense_logits(model.params, ids_OL, ~sees_OLL, mems_ZOMD, False)
    log_probs_OL = np.array(jax.nn.log_softmax(logits_OLV))[:, np.arange(length), ids]
    if mems is None:  # a piece that sees nothing reads one slot of zeros
        slot, alone = jnp.zeros((3, 1, 1, 24)), jnp.ones((1, length, length), bool)
        logits_1LV, _ = _dense_logits(model.params, ids_OL[:1], alone, slot, True)
        blind_L = np.asarray(jax.nn.log_softmax(logits_1LV[0]))[np.arange(length), ids]
        log_probs_OL = np.where(sees_OLL.any(-1), log_probs_OL, blind_L)
    return log_probs_OL


def sees_before(orders_OL):
    """Return bool [O, L, L], which pieces come before each piece in each order."""
    rank_OL = np.argsort(orders_OL, axis=1)
    return rank_OL[:, None, :] < rank_OL[:, :, None]


def hidden_sets(length):
    """Return every set of hidden pieces, bool [2^n - 1, n], and its weight in the bound."""
    hidden_OL = np.array(list(itertools.product([False, True], repeat=length))[1:])
    count_O = hidden_OL.sum(1)
    share_O = np.array([1 / length / math.comb(length, count) for count in count_O.tolist()])
    assert share_O.sum() == pytest.approx(1)
    return hidden_OL, share_O * length / count_O


def dense_bound(model, ids, mems=None):
    """Return the masked-diffusion bound, from all sets."""
    hidden_OL, weight_O = hidden_sets(len(ids))
    sees_OLL = np.broadcast_to(~hidden_OL[:, None, :], (len(hidden_OL), len(ids), len(ids)))
    return weight_O @ (dense_scores(model, ids, sees_OLL, mems) * hidden_OL).sum(1, dtype=np.float64)


TEXTS_OF_LENGTHS = {1: "new", 6: TEXT}


@pytest.mark.parametrize("length", TEXTS_OF_LENGTHS)
def test_all_orders_give_the_sums_of_dense_masks_over_every_permutation(model, length):
    ids = model.tokenizer.encode_lines([text := TEXTS_OF_LENGTHS[length]])[0]
    assert len(ids) == length
    orders_OL = np.array(list(itertools.permutations(range(length))))
    expected_O = dense_scores(model, ids, sees_before(orders_OL)).sum(1, dtype=np.float64)
    (score,) = score_texts(model, [text], "all")
    np.testing.assert_allclose(score.log_likelihoods_O, expected_O, rtol=0, atol=5e-5)
    assert score.log_likelihood == pytest.approx(expected_O.mean(), abs=1e-5)
    largest = expected_O.max()
    assert score.log_mean_likelihood == pytest.approx(largest + np.log(np.exp(expected_O - largest).mean()), abs=1e-5)


def test_the_bound_is_that_of_every_set_of_hidden_pieces(model):
    for length, text in TEXTS_OF_LENGTHS.items():
        (score,) = score_texts(model, [text], f"bound:{2**length - 1}")
        ids = model.tokenizer.encode_lines([text])[0]
        assert score.log_likelihood == pytest.approx(dense_bound(model, ids), abs=1e-5)
    exact, sampled = (score_texts(model, [TEXT], f"bound:{n}")[0].log_likelihood for n in (63, 62))
    assert sampled != exact
    assert sampled == pytest.approx(exact, abs=1)
    assert sampled == score_texts(model, ["new", TEXT], "bound:62")[1].log_likelihood
    assert sampled != score_texts(model, [TEXT], "bound:62", seed=1)[0].log_likelihood


def test_samples_of_the_bound_have_all_counts_and_its_weights():
    """On average each piece has the weight 1, whatever the number of samples."""
    counts = [len(hidden_P) for _, hidden_P in sampled_sets(8, 16, (3, 0, 0))]
    assert counts == sorted(counts)
    assert set(counts) == set(range(1, 9))
    for samples in (3, 16):
        weight_8 = np.zeros(8)
        for seed in range(1_000):
            for weight, hidden_P in sampled_sets(8, samples, (seed, 0, 0)):
                weight_8[hidden_P] += weight
        np.testing.assert_allclose(weight_8 / 1_000, 1, atol=0.1)


@pytest.mark.parametrize("orders", [["left-to-right", "random:1"], "pseudo", "bound:99"])
def test_a_long_text_is_read_in_segments_with_the_memory_of_the_whole_ones_before(model, orders):
    """Memory is the hidden states of pieces that all see each other; mem_len is 5, so the third segment sees the second
    and what memory had kept of the first."""
    ids = model.tokenizer.encode_lines([TEXT + " The list"])[0]
    assert len(ids) == 8
    (score,) = score_texts(model, [TEXT + " The list"], orders, max_len=3)
    mems, expected, seen = None, [], jnp.zeros((3, 1, 0, 24))
    for number, segment in enumerate(np.split(ids, [3, 6])):
        n = len(segment)
        if orders == "pseudo":
            others_LLL = np.broadcast_to(~np.eye(n, dtype=bool)[:, None, :], (n, n, n))  # no row sees the piece
            expected.append(np.diagonal(dense_scores(model, segment, others_LLL, mems))[None])
        elif orders == "bound:99":
            expected.append(dense_bound(model, segment, mems)[None, None])
        else:
            places = [np.arange(n), *(permutations("random:1", n, 8, (0, number, 0), ""))]
            expected.append(dense_scores(model, segment, sees_before(np.array(places)), mems))
        _, seen = _dense_logits(model.params, segment[None], jnp.zeros((1, n, n), bool), seen, False)
        mems = seen[:, 0]
        assert mems.shape[1] == min(5, 3 * (number + 1))
    expected_OP = np.concatenate(expected, axis=1)
    if orders != "bound:99":
        np.testing.assert_allclose(score.log_probs_OP, expected_OP, rtol=0, atol=2e-5)
    np.testing.assert_allclose(score.log_likelihoods_O, expected_OP.sum(1), rtol=0, atol=5e-5)
    (forgetting,) = score_texts(model, [TEXT + " The list"], orders, max_len=3, mem_len=0)
    assert np.abs(forgetting.log_probs_OP - score.log_probs_OP).max() > 1e-2


@pytest.mark.parametrize("draw", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_each_seed_segment_and_text_has_orders_of_its_own(draw):
    first, second = (permutations("random:4", 9, 18, each, "") for each in ((0, 0, 0), draw))
    assert not any(np.array_equal(*both) for both in zip(first, second, strict=True))


def test_probabilities_of_texts_in_two_segments_sum_to_one():
    texts = [np.array(pair, np.int32) for pair in itertools.product(range(12), repeat=2)]
    for mem_len in (0, 5):
        scores = scoring.score_ids(
            TWO_STREAMS, texts, ["random:1"], max_len=1, mem_len=mem_len, names=["pair"] * len(texts)
        )
        total = np.exp([scores_OP.sum(dtype=np.float64) for scores_OP in scores]).sum()
        assert total == pytest.approx(1, abs=1e-5)


def test_scores_of_long_texts_depend_neither_on_the_batch_nor_on_other_texts(model, causal):
    texts = [LONGER, "new", TEXT]
    for network, orders in ((model, ["random:2"]), (causal, ["left-to-right"])):
        together = score_texts(network, texts, orders, max_len=16)
        alone = [score_texts(network, [text], orders, max_len=16, batch_tokens=1)[0] for text in texts]
        for ours, other in zip(together, alone, strict=True):
            np.testing.assert_allclose(ours.log_probs_OP, other.log_probs_OP, atol=2e-5)


def test_a_context_can_fill_segments_of_its_own(model):
    """The text is then in one segment, whose memory is the context."""
    (score,) = score_texts(model, ["is new"], ["all"], context="The list of names", max_len=4)
    before, ids = (model.tokenizer.encode_lines([words])[0] for words in ("The list of names", "is new"))
    _, mems = _dense_logits(model.params, before[None], jnp.zeros((1, 4, 4), bool), jnp.zeros((3, 1, 0, 24)), False)
    expected_OP = dense_scores(model, ids, sees_before(np.array([[0, 1], [1, 0]])), mems[:, 0])
    np.testing.assert_allclose(score.log_probs_OP, expected_OP, atol=2e-5)


def test_a_causal_model_reads_a_long_text_with_memory(causal):
    (score,) = score_texts(causal, [LONGER], max_len=8, mem_len=12)
    ids = np.concatenate([[EOD], causal.tokenizer.encode_lines([LONGER])[0]])
    np.testing.assert_array_equal(
        score.log_probs_OP[0], log_probs.causal_beside_likeliest(causal, [ids], 4096, 8, 12)[0][:, 0]
    )


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
        ((), r"`orders`: give one"),
        (["bound:8", "all"], r"`orders` bound:8, all: give one .* or only pseudo or bound:128"),
        ("all", r"`orders` 'all' is for texts of at most 6 pieces, not for the 8"),
        (
            "0 1 1",
            r"`orders` '0 1 1' must have each position of the 6 pieces exactly once in text 0, which reads: ▁The",
        ),
    ],
)
def test_an_order_that_does_not_fit_is_named(model, orders, said):
    with pytest.raises(InputError, match=said):
        score_texts(model, [TEXT, TEXT + " too"], orders)


def test_texts_and_checkpoints_that_cannot_be_scored_are_named(model):
    uni = dataclasses.replace(model, model=dataclasses.replace(model.model, attn_type="uni"))
    for network, texts, said in (
        (random_model(head=HEADS["regression"]), [TEXT], "has a head for regression and no vocabulary scores"),
        (random_model(), [TEXT], "has no tokenizer"),
        (uni, [TEXT], "reads in one direction"),
        (
            dataclasses.replace(model, objective="mlm"),
            [TEXT],
            r"trained with mlm, which has no likelihood: it predicts masked pieces, each by itself",
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
    for orders, name in (("pseudo", '"pseudo_log_likelihood"'), ("bound:16", '"log_likelihood_bound"')):
        score("--sentences", "new", "--orders", orders)
        assert '"log_likelihood"' not in (line := capsys.readouterr().out)
        assert name in line


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
    assert f"per piece, {pieces.count('<unk>') / len(pieces):.2%} of the pieces unknown" in summary
    assert not list(tmp_path.glob(".*"))


def test_a_text_without_pieces_keeps_its_place_with_null_and_is_counted(model, score, tmp_path, capsys):
    texts, out = tmp_path / "texts.txt", tmp_path / "scores.tsv"
    texts.write_text(f"{TEXT}\n\n\u200b\nnew\n")
    assert score("--texts", texts, "--orders", *ORDERS) == 0
    printed = capsys.readouterr()
    lines, expected = [json.loads(line) for line in printed.out.splitlines()], score_texts(model, [TEXT, "new"], ORDERS)
    assert [line["log_likelihood"] for line in lines[::3]] == pytest.approx(
        [s.log_likelihood for s in expected], abs=1e-4
    )
    for line in lines[1:3]:
        assert (line["log_likelihood"], line["perplexity"], line["pieces"], line["log_probs"]) == (None, None, [], [])
    assert f"2 of 4 records have no text and keep their place with null: text {texts}: line 2 is blank; " in printed.err
    assert score("--texts", texts, "--out", out) == 0
    printed = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(out.read_text()), dialect="excel-tab"))
    assert [row["log_likelihood"] == "" for row in rows] == [False, True, True, False]
    assert "4 texts, " in printed.out
    assert "keep their place with an empty score: " in printed.err
    blank = score_texts(model, [TEXT, " "])[1]
    assert np.isnan([blank.log_likelihood, blank.log_mean_likelihood, blank.perplexity]).all()
    assert len(blank.log_probs_P) == 0


def test_a_mistake_is_one_line_that_names_it_and_leaves_no_file(score, folder, tmp_path):
    gap, there = tmp_path / "gap.jsonl", tmp_path / "scores.tsv"
    gap.write_text("".join(f'{{"text": "{text}"}}\n' for text in ("", " ")))
    there.write_text("there\n")
    texts, lines = ("--texts", folder / "texts.txt"), ("--texts", folder / "texts.jsonl")
    for words, said in (
        ((), "give either --texts, names of files, or --sentences"),
        (("--texts", gap, "--out", tmp_path / "new.jsonl"), r"there is no text: .*gap\.jsonl: line 1 is blank"),
        (
            ("--sentences", TEXT, "--max-len", "5", "--orders", "2 0 1 3 5 4"),
            r"--orders '2 0 1 3 5 4' is for texts of one segment, not for the 6 pieces of sentence 1.*: give random:8, "
            r"or raise --max-len",
        ),
        ((*texts, "--max-len", "5", "--mem-len", "-1"), r"--mem-len -1 must be at least 0"),
        ((*lines, "--text-field", "s", "--id-field", "x"), r"name the id field with --id-field"),
        (("--sentences", "x", "--out", there), r"scores\.tsv exists: give another file, or --overwrite"),
        (("--sentences", "x", "--out", "scores.txt"), r"give a name that ends in \.jsonl or \.tsv"),
    ):
        with pytest.raises(InputError, match=said):
            score(*words)
    assert there.read_text() == "there\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["gap.jsonl", "scores.tsv"]

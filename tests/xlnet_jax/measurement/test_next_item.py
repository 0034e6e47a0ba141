"""The next item is ranked among all items and among drawn ones, and no contender sees it or gains by ties."""

import dataclasses
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

import xlnet_jax
from data_pipelines.records import RecordFormat
from data_pipelines.tokenizer import BOS, EOD, MASK, UNK, Tokenizer
from tests.xlnet_jax.random_models import BERT, CAUSAL, SMALL, random_model, strong_params
from xlnet_jax import InputError
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.inference.log_probs import Query, causal_beside_likeliest, log_probs_PV, stack_queries, with_mem_len
from xlnet_jax.measurement import next_item
from xlnet_jax.measurement.next_item import Candidates, measure_next_items, metrics

V = 40
IS_ITEM = np.arange(V) >= 9
NETWORKS = {
    "plm": random_model(SMALL),
    "clm": random_model(CAUSAL),
    "mlm": random_model(dataclasses.replace(BERT, positions="relative")),
    "mdlm": dataclasses.replace(random_model(dataclasses.replace(BERT, positions="relative")), objective="mdlm"),
}


def records_of(count, seed=0, longest=7):
    """Return records of different items."""
    rng = np.random.default_rng(seed)
    return [rng.permutation(np.arange(9, V))[: rng.integers(2, longest)].astype(np.int32) for _ in range(count)]


def counts_by_hand(scores_V, record_E, others):
    own = scores_V[record_E[-1]]
    return [sum(scores_V[i] > own for i in others), sum(scores_V[i] == own for i in others)]


def test_metrics_are_those_of_a_table_by_hand():
    found = metrics(np.array([0, 2, 9, 10, 25]), np.zeros(5, int))  # ranks 1, 3, 10, 11, 26
    assert found["HR@5"].tolist() == [1, 1, 0, 0, 0]
    assert found["HR@10"].tolist() == [1, 1, 1, 0, 0]
    assert found["HR@20"].tolist() == [1, 1, 1, 1, 0]
    assert found["NDCG@10"] == pytest.approx([1, 1 / 2, 1 / math.log2(11), 0, 0])
    assert found["MRR@20"] == pytest.approx([1, 1 / 3, 1 / 10, 1 / 11, 0])
    tied = metrics(np.array([4]), np.array([2]))  # ranks 5, 6 and 7, each as likely
    assert tied["HR@5"] == pytest.approx([1 / 3])
    assert tied["MRR@10"] == pytest.approx([(1 / 5 + 1 / 6 + 1 / 7) / 3])


def test_a_constant_score_has_the_hit_rate_of_chance():
    records = records_of(50)
    candidates = Candidates(records, IS_ITEM, seed=0)
    above_ties = next_item._by_scores(candidates, lambda histories: np.zeros((len(histories), V), np.float32))
    left = np.array([31 - (len(record_E) - 1) for record_E in records])  # the items beside the history
    for place, count in ((0, left), (1, left)):  # there are fewer than 100, so all are drawn
        found = metrics(*above_ties[:, place].T)
        for top in (5, 10, 20):
            assert found[f"HR@{top}"] == pytest.approx(top / count)


def test_a_score_that_is_no_number_misses():
    candidates = Candidates(records_of(5), IS_ITEM, seed=0)
    above_ties = next_item._by_scores(candidates, lambda histories: np.full((len(histories), V), np.nan, np.float32))
    assert not any(values.any() for place in (0, 1) for values in metrics(*above_ties[:, place].T).values())


def test_candidates_are_all_items_or_those_beside_the_history_and_drawn_ones_never_of_the_record():
    rng, different = np.random.default_rng(0), records_of(30)
    twice = [*different, np.array([9, 10, 9, 11], np.int32)]
    items = set(range(9, V))
    for records, leaves_out in ((different, True), (twice, False)):
        candidates = Candidates(records, IS_ITEM, seed=0)
        assert candidates.leaves_out_history == leaves_out
        scores = rng.integers(0, 6, (len(records), V)).astype(np.float32)
        rows = iter(scores)
        above_ties = next_item._by_scores(candidates, lambda histories, rows=rows: np.stack([*rows]))
        for number, (scores_V, record_E) in enumerate(zip(scores, records, strict=True)):
            beside = items - set(record_E.tolist())
            among = beside if leaves_out else items - {record_E[-1]}
            assert above_ties[number, 0].tolist() == counts_by_hand(scores_V, record_E, among)
            assert above_ties[number, 1].tolist() == counts_by_hand(scores_V, record_E, beside)


def test_drawn_items_are_a_hundred_and_depend_only_on_seed_and_record():
    is_item = np.arange(500) >= 9
    records = records_of(20)
    first, again, other = (Candidates(records, is_item, seed)._drawn for seed in (1, 1, 2))
    assert all(len(set(drawn.tolist())) == 100 for drawn in first)
    assert all(map(np.array_equal, first, again))
    assert not any(map(np.array_equal, first, other))


@pytest.mark.parametrize("last", [UNK, 10])
def test_a_target_that_is_no_candidate_counts_as_missed(last):
    """An unknown item, or one of the history where these are no candidates."""
    records = [np.array([9, 10, last], np.int32), np.array([11, 12], np.int32)]
    found = measure_next_items(NETWORKS["plm"], records, None, IS_ITEM, seed=0, max_len=16)
    assert found.facts == {"records": 2, "left_out": 0, "items": 31, "missed": 1}
    assert found.tables["all items"]["HR@20"]["model"].value <= 1 / 2
    assert "missed      50.00% of the last symbols" in "\n".join(found.report)


def test_baselines_on_a_toy():
    train = [np.array(ids, np.int32) for ids in ([9, 10], [9, 10, 11], [12, 11], [12, 12, UNK], [12])]
    count = next_item.popularity(train, V)([train[0], train[1]])
    assert count[:, 9:14].tolist() == [[2, 2, 2, 4, 0]] * 2
    scores = next_item.item_knn(train, V)([np.array([11, 9]), np.array([UNK, 12])])

    def near(both, *each):
        return both / math.sqrt(math.prod(count + next_item.DAMPING for count in each))

    assert scores[0, 9:14] == pytest.approx(
        [near(1, 2, 2) / 2, near(2, 2, 2) + near(1, 2, 2) / 2, near(1, 2, 2), near(1, 3, 2) / 2, 0]
    )
    assert scores[1, 9:14] == pytest.approx([0, 0, near(1, 3, 2), 0, 0])


def last_scores(pretrained, ids_L):
    """Return the scores of the vocabulary at the last item before <eod>."""
    query = Query(np.array(ids_L, np.int32), np.array([len(ids_L) - 2]), np.zeros(1, int))
    ids_BL, *others = stack_queries([query], 1, 8, 1)
    batch = ids_BL, np.zeros_like(ids_BL), *others[:2]
    reads = next_item._reads(pretrained)
    model = with_mem_len(pretrained.model, 0) if reads == "before" else pretrained.model
    return np.asarray(next_item.logits_BV(model, reads, pretrained.params, *map(jnp.asarray, batch))[0])


@pytest.mark.parametrize("name", NETWORKS)
def test_no_network_sees_the_target(name):
    """Even if the text held the target, the scores of the whole vocabulary would not depend on it."""
    assert next_item._query(np.array([9, 21, 33]), 16).ids_L.tolist() == [BOS, 9, 21, 33, MASK, EOD]
    hidden, *others = (last_scores(NETWORKS[name], [BOS, 9, 21, 33, target, EOD]) for target in (MASK, 15, 30))
    for scores_V in others:
        np.testing.assert_array_equal(scores_V, hidden)
    for place in (1, 3):  # but they depend on all of the history
        ids_L = [BOS, 9, 21, 33, MASK, EOD]
        ids_L[place] = 15
        assert abs(last_scores(NETWORKS[name], ids_L) - hidden).max() > 1e-3


@pytest.mark.parametrize("name", NETWORKS)
def test_ranks_are_those_of_the_scores_of_the_last_position(name):
    pretrained, records = NETWORKS[name], records_of(6)
    candidates = Candidates(records, IS_ITEM, seed=0)
    above_ties = next_item._by_network(pretrained, candidates, 16, lambda number, batches: None)
    for record_E, found in zip(records, above_ties[:, 0].tolist(), strict=True):
        if name == "clm":
            texts = [np.array([BOS, *record_E[:-1], item], np.int32) for item in range(V)]
            scores_V = np.array([of_text[-1, 0] for of_text in causal_beside_likeliest(pretrained, texts)])
        else:
            ids_L = np.array([BOS, *record_E, EOD], np.int32)
            (scores_V,) = log_probs_PV(pretrained, Query(ids_L, np.array([len(record_E)]), np.zeros(1, int)))
        assert found == counts_by_hand(scores_V, record_E, set(range(9, V)) - set(record_E.tolist()))


def test_of_several_fields_the_last_one_has_the_items_and_its_segment():
    lines = [f"{'AB'[i % 2]}\t{i} {(i + 7) % 90} {(i + 30) % 90}" for i in range(90)]
    tokenizer = Tokenizer.of_symbols(lines, RecordFormat(("kind:word", "items:item")))
    network = dataclasses.replace(SMALL, vocab_size=tokenizer.vocab_size)
    # With strong weights a wrong segment changes ranks.
    pretrained = dataclasses.replace(random_model(network, tokenizer=tokenizer), params=strong_params(network))
    is_item = np.array([piece.startswith("items:") and not piece.endswith("<unk>") for piece in tokenizer.pieces])
    records = tokenizer.encode_lines(lines)
    candidates = Candidates(records, is_item, seed=0)
    above_ties = next_item._by_network(pretrained, candidates, 16, lambda number, batches: None)
    for record_E, found in zip(records, above_ties[:, 0].tolist(), strict=True):
        ids_L = np.array([BOS, *record_E, EOD], np.int32)
        (scores_V,) = log_probs_PV(pretrained, Query(ids_L, np.array([len(record_E)]), np.zeros(1, int)))
        assert found == counts_by_hand(scores_V, record_E, set(np.flatnonzero(is_item).tolist()) - {*record_E.tolist()})


def test_a_long_history_keeps_the_newest_symbols():
    assert next_item._query(np.arange(9, 30), 8).ids_L.tolist() == [BOS, 25, 26, 27, 28, 29, 6, EOD]
    assert next_item._query(np.arange(9, 12), 8).ids_L.tolist() == [BOS, 9, 10, 11, 6, EOD]


def test_the_tables_have_the_baselines_side_by_side_and_differences_paired_by_record():
    records, train = [*records_of(40), np.array([9], np.int32)], records_of(60, seed=1)
    found = measure_next_items(NETWORKS["clm"], records, train, IS_ITEM, seed=0, max_len=16)
    assert [*found.tables] == ["all items", "100 sampled items"]
    for table in found.tables.values():
        assert [*table] == [f"{name}@{top}" for name in ("HR", "NDCG", "MRR") for top in (5, 10, 20)]
        for row in table.values():
            assert [*row] == ["model", "item-kNN", "popularity", "model minus item-kNN"]
            assert row["model minus item-kNN"].value == pytest.approx(row["model"].value - row["item-kNN"].value)
            assert all(each.low <= each.value <= each.high for each in row.values())
    assert found.facts["left_out"] == 1
    assert "records     40, 1 with fewer than 2 symbols left out" in found.report[0]
    assert "no candidates, because no history holds one twice" in found.report[1]


def test_records_that_are_too_short_are_refused():
    with pytest.raises(InputError, match="none of the 2 records has 2 symbols"):
        measure_next_items(NETWORKS["plm"], [np.array([9])] * 2, None, IS_ITEM, seed=0, max_len=16)


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on sessions that walk a ring of 30 items, each without its last item."""
    rng = np.random.default_rng(0)
    sessions = [[str(100 + (begin + i) % 30) for i in range(length)] for begin, length in rng.integers(2, 12, (200, 2))]
    config = xlnet_jax.preset(
        "demo", workdir=str(tmp_path_factory.mktemp("sessions") / "run"), hold_out="last", steps=2, long="cut",
        model={"num_layers": 1, "d_model": 16, "num_heads": 2, "d_head": 8, "d_ff": 32},
        data={"seq_len": 16, "batch_size": 8},
    )  # fmt: skip
    xlnet_jax.pretrain(config, sequences=sessions)
    return config.workdir, sessions


def test_the_command_ranks_the_items_that_the_run_held_out(run, tmp_path, capsys):
    workdir, sessions = run
    out = tmp_path / "numbers.json"
    assert not COMMANDS["evaluate"].main([workdir, "--next-item", "--out", str(out)])
    printed, numbers = capsys.readouterr().out, json.loads(out.read_text())
    assert numbers["records"] == len(sessions)
    assert f"records     {len(sessions):,}: the last symbol, given all before it" in printed
    assert f"baselines   from {len(sessions):,} training records" in printed
    hits = numbers["all items"]["HR@5"]
    assert [*hits] == ["model", "item-kNN", "popularity", "model minus item-kNN"]
    assert f"{hits['item-kNN']['value']:.4f} [{hits['item-kNN']['low']:.4f}" in printed
    assert hits["item-kNN"]["value"] > hits["popularity"]["value"]


def test_a_text_has_the_numbers_of_the_same_records_in_the_corpus(run, tmp_path):
    workdir, sessions = run
    (tmp_path / "sessions.txt").write_text("".join(f"{' '.join(session)}\n" for session in [["100"], *sessions]))
    own, given = (
        xlnet_jax.evaluate(workdir, next_item=True, **text).measured
        for text in ({}, {"text": str(tmp_path / "sessions.txt")})
    )
    assert given.facts == own.facts | {"left_out": 1}
    for metric, by_contender in own.tables["all items"].items():
        for who in ("model", "item-kNN", "popularity"):
            assert given.tables["all items"][metric][who].value == pytest.approx(by_contender[who].value)


def test_what_cannot_be_ranked_is_named_in_one_line(run):
    for words, says in (
        (["tiny"], "--next-item is for records, but the checkpoint was trained on prose"),
        ([run[0], "--orders", "random:2"], "--orders random:2 measures next items: leave --next-item out"),
        ([run[0], "--max-windows", "2"], "--max-windows is for windows, but --next-item reads whole texts"),
    ):
        with pytest.raises(InputError) as error:
            COMMANDS["evaluate"].main([*words, "--next-item"])
        assert says in str(error.value)

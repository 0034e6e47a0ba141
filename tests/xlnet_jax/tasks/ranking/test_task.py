"""Ranking documents: which stand beside which query, what is learned of them, and how they are ranked."""

import dataclasses
import json
import re
from functools import partial

import jax
import numpy as np
import pytest

from data_pipelines.tokenizer import CLS, SEP
from tests.xlnet_jax.random_models import SMALL, random_params
from tests.xlnet_jax.tasks.task_runs import metrics, outputs_of, trained, write
from xlnet_jax.errors import InputError
from xlnet_jax.models.heads import build_model
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.config import RankingConfig, TaskDataConfig
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.features import collate
from xlnet_jax.tasks.ranking.task import LOSSES_B, Ranking
from xlnet_jax.tasks.ranking.trec import read_run

HEAD = HeadConfig("regression")
MODEL = dataclasses.replace(SMALL, mem_len=0, num_layers=1)
TOPICS = ("wing", "shock", "slab")
DOCUMENTS = {f"{topic}{i}": f"{topic} " * (i + 2) + "flow" for topic in TOPICS for i in range(4)} | {"none": ""}
QUERIES = {f"{i:03}": f"what of {topic}" for i, topic in enumerate(TOPICS, 1)}
QRELS = "001 0 wing0 3\n001 0 wing1 1\n001 0 slab2 0\n002 0 shock0 4\n002 0 shock3 -2\n003 0 slab1 1\n003 0 none 1\n"


class Words:
    """A word, a token."""

    vocabulary = ("flow", "what", "of", *TOPICS)

    def encode_lines(self, lines):
        return [np.array([10 + self.vocabulary.index(w) for w in line.split()], np.int32) for line in lines]


@pytest.fixture
def given(tmp_path):
    def write(text, name="given"):
        (tmp_path / name).write_text(text)
        return (str(tmp_path / name),)

    return write


@pytest.fixture
def collection(given):
    """Makes the task with settings of ranking, over a collection in a folder."""

    def texts(name, of):
        return given("".join(json.dumps({"_id": i, "text": text}) + "\n" for i, text in of.items()), f"{name}.jsonl")

    def make(seq_len=16, documents=DOCUMENTS, queries=QUERIES, seed=0, **settings):
        settings = {"negatives": 2, "others": 3} | settings
        files = {"documents": texts("documents", documents), "queries": texts("queries", queries)}
        data = TaskDataConfig(batch_size=32, seq_len=seq_len, max_query_len=6)
        ranking = RankingConfig(**files, **settings)
        return Ranking(dataclasses.replace(DEFAULTS["ranking"](), seed=seed, data=data, ranking=ranking))

    return make


@pytest.fixture
def built(collection, given):
    """Reads a file in a collection of these settings: (task, examples, features)."""

    def build(text, role="train", epoch=0, training=None, **settings):
        task = collection(**settings)
        examples = task.read(given(text), role)
        training = role == "train" if training is None else training
        return task, examples, task.features(examples, Words(), HEAD, training, epoch)

    return build


def pairs(features, examples):
    """(query, documents) of each item."""
    names = [*DOCUMENTS]
    return [
        (examples[q].id, [names[d] for d in documents])
        for q, documents in zip(features.examples, features.values["document"], strict=True)
    ]


@pytest.fixture
def drawn(built):
    """Draws the items of qrels in a collection of these settings."""

    def draw(qrels=QRELS, training=True, epoch=0, **settings):
        _, examples, features = built(qrels, epoch=epoch, training=training, **settings)
        return pairs(features, examples)

    return draw


def test_a_text_is_document_then_query_and_the_document_gives_way(built):
    _, _, features = built("001 0 wing0 1\n003 0 slab3 1\n", seq_len=12)
    document, query = Words().encode_lines([DOCUMENTS["slab3"], QUERIES["003"]])
    ids, segments = (features.tokens[name][features.texts_per_item] for name in ("input_ids", "segment_ids"))
    assert ids.tolist() == [*document[:6], SEP, *query, SEP, CLS]
    assert segments.tolist() == [0] * 7 + [1] * 4 + [2]


def test_a_group_is_a_relevant_document_and_others_that_are_not(drawn):
    found = drawn(negatives=3)
    # Without the text that is empty: none is neither learned nor drawn.
    assert [(q, d[0]) for q, d in found] == [("001", "wing0"), ("001", "wing1"), ("002", "shock0"), ("003", "slab1")]
    relevant = {"001": {"wing0", "wing1"}, "002": {"shock0"}, "003": {"slab1", "none"}}
    for query, (_, *others) in found:
        assert len(set(others) - {"none"}) == 3
        assert not set(others) & relevant[query]
    judged_so = {"001": "slab2", "002": "shock3"}
    assert all(judged_so[q] == others[0] for q, (_, *others) in found if q in judged_so)


def test_others_are_drawn_anew_each_epoch_and_by_the_seed_and_those_to_rank_never(drawn):
    assert drawn(epoch=1) == drawn(epoch=1)
    assert drawn(epoch=1) != drawn(epoch=2) != drawn(epoch=2, seed=1)
    assert [(q, d[0]) for q, d in drawn(epoch=1)] == [(q, d[0]) for q, d in drawn(epoch=7, seed=5)]
    assert drawn(training=False, seed=0) == drawn(training=False, seed=1)
    of_one = [d for q, (d,) in drawn(training=False) if q == "001"]
    assert of_one[:3] == ["wing0", "wing1", "slab2"]  # judged
    assert len(set(of_one) - {"none"}) == len(of_one) == 6


def test_others_come_from_the_candidates_where_there_are_any(drawn, given):
    run = "".join(f"001 Q0 {d} 1 {s} t\n" for s, d in enumerate(["slab0", "slab3", "wing1", "shock1"]))
    settings = {"qrels": "001 0 wing0 1\n001 0 wing1 1\n", "candidates": given(run, "run"), "depth": 3}
    for _, (_, *others) in drawn(**settings):
        assert set(others) == {"slab3", "shock1"}  # slab0 is fourth of three, wing1 is relevant
    assert drawn(training=False, **settings) == [("001", ["shock1"]), ("001", ["wing1"]), ("001", ["slab3"])]


def test_cranfield_counts_its_queries_by_their_order_and_never_ranks_the_source(built):
    settings = {"judgements": "cranfield", "queries": {"004": "what of wing", "9": "of slab"}, "others": 9}
    qrels = "1 wing0 1 \n1 wing1 4 \n1 wing2 -1\n2 slab0 2 \n2 slab1 -1\n"
    for training in (True, False):
        _, examples, features = built(qrels, training=training, **settings)
        assert [(e.id, e.text, e.grades) for e in examples] == [
            ("1", "what of wing", {"wing0": 4, "wing1": 1}), ("2", "of slab", {"slab0": 3}),
        ]  # fmt: skip
        assert not [q for q, documents in pairs(features, examples) if {"1": "wing2", "2": "slab1"}[q] in documents]


def test_a_run_or_queries_are_ranked_and_written_as_a_run(built, tmp_path):
    run = "003 Q0 slab1 1 0.5 t\n003 Q0 wing0 2 0.4 t\n001 Q0 wing0 1 7 t\n"
    for text, count in ((run, 3), ("q\tof wing\n", len(DOCUMENTS))):
        task, examples, features = built(text, "predict")
        assert len(features) == count
        scores = np.random.default_rng(0).normal(size=count).astype(np.float32)
        (name,) = write(task, tmp_path, examples, features, {"score": scores})
        written = read_run([str(tmp_path / name)])
        expected = [(q, d, s) for (q, (d,)), s in zip(pairs(features, examples), scores, strict=True)]
        assert sorted((q, d, np.float32(s)) for q, of in written.items() for d, s in of.items()) == sorted(expected)


def test_a_document_in_passages_has_the_score_of_its_best(built):
    settings = {"seq_len": 13, "max_passages": 2}  # pieces of four tokens
    run = "001 Q0 wing3 1 1 t\n001 Q0 wing1 2 1 t\n001 Q0 none 3 1 t\n"
    task, examples, features = built(run, "predict", **settings)
    assert [d for _, (d,) in pairs(features, examples)] == ["wing3", "wing3", "wing1", "none"]
    first, second = (features.tokens["input_ids"][i] for i in range(2))
    assert [*first[:4], *second[:2]] == Words().encode_lines([DOCUMENTS["wing3"]])[0].tolist()
    labelled = [dataclasses.replace(examples[0], grades={"wing3": 1})]
    for better, mrr in ((0.5, 1.0), (0.3, 0.5)):
        outputs = {"score": np.array([-2.0, better, 0.1, 0.4], np.float32)}
        assert metrics(task, labelled, features, outputs)["mrr"] == mrr
    groups = [built("001 0 wing3 1\n", epoch=epoch, **settings)[2] for epoch in range(9)]
    assert {len(g.tokens["input_ids"][0]) for g in groups} == {len(first), len(second)}


def test_a_few_steps_put_what_is_relevant_first_whatever_the_padding(collection, given):
    qrels = "".join(f"{q} 0 {topic}{i} 1\n" for q, topic in zip(QUERIES, TOPICS, strict=True) for i in range(4))
    task = collection(seq_len=20, others=8, cutoff=4)
    examples = task.read(given(qrels), "train")
    groups, evaluated = (task.features(examples, Words(), HEAD, training) for training in (True, False))
    model, params = build_model(MODEL, HEAD), random_params(MODEL, HEAD)

    loss = jax.jit(partial(task.losses, model, dropout=None))

    def ndcg(params):
        outputs = outputs_of(task, model, params, evaluated, len(evaluated), 20, "left")
        return metrics(task, examples, evaluated, outputs)[task.metric]

    untrained, items = ndcg(params), np.arange(len(groups))
    ours, theirs = (loss(params, collate(groups, items, *way)) for way in ((16, "left"), (20, "right")))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    params, losses = trained(task, MODEL, HEAD, groups, 60, 3e-3)
    assert losses[-1] < 0.1 * losses[0]
    assert untrained < 0.9 < ndcg(params)


def test_losses_are_their_formulas():
    scores = np.random.default_rng(0).normal(size=(3, 4))
    best, others = scores[:, :1], scores[:, 1:]
    expected = {
        "pairwise": np.log(1 + np.exp(others - best)).mean(1),
        "softmax": -np.log(np.exp(best[:, 0]) / np.exp(scores).sum(1)),
        "pointwise": (np.log(1 + np.exp(-best[:, 0])) + np.log(1 + np.exp(others)).sum(1)) / 4,
    }
    for name, loss_B in LOSSES_B.items():
        np.testing.assert_allclose(loss_B(scores.astype(np.float32)), expected[name], rtol=1e-5)


@pytest.mark.parametrize(
    ("qrels", "settings", "said"),
    [
        ("001 0 wing9 1\n001 0 x 1\n", {}, "2 of 2 documents are unknown, 'wing9' the first; `ranking.documents` has"),
        ("1 0 wing0 1\n", {}, "1 of 1 queries are unknown, '1' the first; `ranking.queries` has 3, '001' the first"),
        ("001 0 none 1\n", {}, "no training document with a text has a grade from 1 on"),
        ("001 0 wing0 1\n", {"negatives": 12}, "001 has 11 documents that are not relevant, and a group takes 12"),
        ("001 0 wing0 1\n", {"seq_len": 9}, "`data.seq_len` 9 leaves no room for a text beside 9"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(drawn, qrels, settings, said):
    with pytest.raises(InputError, match=re.escape(said)):
        drawn(qrels, **settings)


def test_queries_without_candidates_are_counted_and_nothing_to_rank_is_a_mistake(built, given, capsys):
    candidates = given("001 Q0 wing0 1 1 t\n", "run")
    task, examples, features = built("001 0 wing0 1\n002 0 shock0 1\n", "eval", candidates=candidates)
    assert metrics(task, examples, features, {"score": np.ones(1)})["map"] == 0.5
    assert "1 of 2 queries have no candidates, '002' the first" in capsys.readouterr().err
    with pytest.raises(InputError, match="no query has a document to be ranked"):
        task.features(examples[1:], Words(), HEAD, training=False)


def test_examples_tell_collections_apart(built):
    first, again, other = (repr(built(QRELS, documents=DOCUMENTS | more)[1]) for more in ({}, {}, {"wing0": "flow"}))
    assert first == again != other

"""Embeddings: what is read and contrasted, the losses of sentence-transformers, and the scores of vectors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

import xlnet_jax
from tests.xlnet_jax.random_models import random_params
from tests.xlnet_jax.tasks.conftest import BAD, GOOD
from tests.xlnet_jax.tasks.task_runs import json_lines, outputs_of, tiny, trained
from xlnet_jax.errors import InputError
from xlnet_jax.models.heads import build_model
from xlnet_jax.settings.config import HeadConfig, OptimizerConfig
from xlnet_jax.tasks.config import ColumnsConfig, RankingConfig
from xlnet_jax.tasks.defaults import DEFAULTS, make_task, validate_finetuning
from xlnet_jax.tasks.embedding import contrastive_loss_B, cosent_loss
from xlnet_jax.tasks.features import NO_ITEM, collate
from xlnet_jax.training import sharding

HEAD = HeadConfig("embedding", summary="mean", use_projection=False)
PAIRS = [{"anchor": a, "positive": b} for a, b in zip(GOOD, BAD, strict=True)]
TRIPLETS = [row | {"negative": BAD[i - 1], "negative_1": GOOD[i - 2]} for i, row in enumerate(PAIRS)]
SCORED = [{"sentence1": a, "sentence2": b, "score": float(i)} for i, (a, b) in enumerate(zip(GOOD, BAD, strict=True))]
FORMS = {"triplets": TRIPLETS, "scored": SCORED}


def task_of(long_texts="tail", **sections):
    config = DEFAULTS["embedding"]()
    data = dataclasses.replace(config.data, seq_len=24, batch_size=8, long_texts=long_texts)
    return make_task(dataclasses.replace(config, data=data, **sections))


@pytest.fixture
def written(tmp_path):
    return lambda rows, name="rows.jsonl": json_lines(tmp_path / name, rows)


def unit_vectors(*shape, seed=0):
    vectors = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


# ---- losses ----------------------------------------------------------------------------------------------------------


def contrastive_by_hand(unit, text, positive, weights, temperature):
    """The loss of each row, candidate by candidate."""
    rows = [i for i in range(len(unit)) if weights[i]]
    losses = []
    for i in rows:
        others = []
        for j in rows:
            for c in range(1, unit.shape[1]):
                is_same = text[j, c] in (text[i, 0], *positive[i])
                is_positive_of_same_anchor = c == 1 and text[j, 0] == text[i, 0]
                if (i, 1) == (j, c) or not (is_same or is_positive_of_same_anchor):
                    others.append(float(unit[i, 0] @ unit[j, c]) / temperature)
        losses.append(np.log(np.sum(np.exp(others))) - float(unit[i, 0] @ unit[i, 1]) / temperature)
    return losses


@pytest.mark.parametrize("group", [2, 4])
def test_a_positive_is_chosen_among_all_texts_of_the_batch_that_are_not_known_to_be_similar(group):
    rows = 7
    text = np.arange(rows * group, dtype=np.int32).reshape(rows, group)
    text[2, 1] = text[0, 1]  # the same positive twice
    text[3, 0] = text[1, 0]  # an anchor with two positives
    text[4, group - 1] = text[5, 0]  # an anchor among the candidates
    positive = np.stack([text[:, 1], np.full(rows, -1, np.int32)], axis=1)
    positive[5, 1] = text[0, 1]  # known by judgements alone
    unit = unit_vectors(rows, group, 6)
    weights = np.array([1, 1, 1, 1, 1, 1, 0], np.float32)
    expected = contrastive_by_hand(unit, text, positive, weights, 0.5)
    found = contrastive_loss_B(*map(jnp.asarray, (unit, text, positive, weights)), 0.5)
    np.testing.assert_allclose(found[:6], expected, rtol=1e-5)
    # Each of these rules leaves something out, so that the check above fails without it.
    for changed in ({"text": 0}, {"positive": 0}, {"weights": 0}):
        plain = {"text": np.arange(text.size).reshape(text.shape), "positive": np.full_like(positive, -1)}
        given = {"text": text, "positive": positive, "weights": weights} | {
            name: plain.get(name, np.ones_like(weights)) for name in changed
        }
        other = contrastive_by_hand(unit, given["text"], given["positive"], given["weights"], 0.5)
        assert not np.allclose(other[:6], expected, rtol=1e-3)


def test_without_duplicates_the_loss_is_that_of_sentence_transformers():
    """MultipleNegativesRankingLoss with its defaults: scale 20, cross-entropy over [B, B x (1 + negatives)] cosines."""
    torch = pytest.importorskip("torch", reason="no PyTorch: pip install -e '.[bench]'")
    raw = np.random.default_rng(1).normal(size=(5, 3, 8)).astype(np.float32)
    text = np.arange(15, dtype=np.int32).reshape(5, 3)
    unit = raw / np.linalg.norm(raw, axis=-1, keepdims=True)
    anchors, positives, negatives = (torch.nn.functional.normalize(torch.tensor(raw[:, c]), dim=1) for c in range(3))
    scores = 20.0 * anchors @ torch.cat([positives, negatives]).T
    theirs = torch.nn.functional.cross_entropy(scores, torch.arange(5))
    ours = contrastive_loss_B(*map(jnp.asarray, (unit, text, text[:, 1:2], np.ones(5, np.float32))), 0.05).mean()
    assert float(ours) == pytest.approx(float(theirs), rel=1e-5)


def test_scores_are_learned_by_cosent_of_sentence_transformers():
    torch = pytest.importorskip("torch", reason="no PyTorch: pip install -e '.[bench]'")
    unit, score = unit_vectors(6, 2, 8), np.array([1, 5, 3, 3, 0, 9], np.float32)
    weights = np.array([1, 1, 1, 1, 1, 0], np.float32)
    cosines = torch.tensor((unit[:5, 0] * unit[:5, 1]).sum(-1)) * 20
    labels = torch.tensor(score[:5])
    excess = cosines[:, None] - cosines[None, :]  # as in CoSENTLoss.forward
    excess = excess - (1 - (labels[:, None] < labels[None, :]).float()) * 1e12
    theirs = torch.logsumexp(torch.cat((torch.zeros(1), excess.view(-1))), dim=0)
    ours = cosent_loss(*map(jnp.asarray, (unit, score, weights)), 0.05)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-5)
    equal = cosent_loss(jnp.asarray(unit), jnp.ones(6), jnp.asarray(weights), 0.05)
    assert float(equal) == 0.0  # nothing to order


# ---- tables ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=FORMS)
def learned(request, english, written):
    """A task, its examples and features, and a network."""
    task = task_of()
    examples = task.read(written(FORMS[request.param]), "train")
    features = task.features(examples, english, HEAD, training=True)
    return task, examples, features, tiny(english.vocab_size)


def test_the_loss_and_its_gradient_are_those_of_the_real_rows_on_any_mesh(learned):
    task, _, features, network = learned
    model, params = build_model(network, HEAD), random_params(network, HEAD)
    params, longest = jax.tree.map(jnp.asarray, params), int(features.lengths.max())

    mesh = sharding.make_mesh(task.config, jax.devices()[:4])
    by_row, everywhere = sharding.over_batch(mesh), sharding.replicated(mesh)

    def loss(params, batch):
        with sharding.axes_of(mesh):
            weights = batch["target_weights"]
            return (task.losses(model, params, batch, None) * weights).sum() / weights.sum()

    measure, items = jax.value_and_grad(loss), np.arange(5)
    one, gradient = jax.jit(measure)(params, collate(features, items, longest, "left"))
    padded = collate(features, np.append(items, [NO_ITEM] * 3), longest + 8, "right")
    divided = jax.jit(measure, in_shardings=(everywhere, by_row), out_shardings=everywhere)
    found, of_batch = divided(params, padded)
    assert float(found) == pytest.approx(float(one), rel=2e-5)
    for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(of_batch), strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(theirs, ours, atol=2e-4)
    if "text" in features.values:
        np.testing.assert_array_equal(features.values["positive"], features.values["text"][:, 1:2])


def test_a_few_updates_teach_a_few_examples(learned, english, tmp_path):
    task, examples, features, network = learned
    params, losses = trained(task, network, HEAD, features, 150)
    assert losses[-1] < 0.3 * losses[0]
    of_eval = task.features(examples, english, HEAD, training=False)
    assert of_eval.texts_per_item == 1
    model = build_model(network, HEAD)
    answers = [
        task.answers(examples, of_eval, outputs_of(task, model, params, of_eval, rows, length, side))
        for rows, length, side in ((1, 22, "left"), (4, 24, "right"))
    ]
    for text, vector in answers[0].items():
        np.testing.assert_allclose(answers[1][text], vector, atol=1e-5)
    scores = task.metrics(examples, answers[0])
    assert scores[task.metric] == pytest.approx(1.0)
    assert [*scores] == (["spearman", "pearson"] if examples[0].label is not None else ["mrr", "recall@1"])
    assert task.write(epath.Path(tmp_path), examples, answers[0]) == ["predictions.tsv"]
    header, *lines = (tmp_path / "predictions.tsv").read_text().splitlines()
    cosines = [prediction.value for prediction in task.predictions(examples, answers[0])]
    assert header == "id\tcosine"
    assert [line.split("\t")[0] for line in lines] == [str(i) for i in range(len(examples))]
    assert [float(line.split("\t")[1]) for line in lines] == pytest.approx(cosines, abs=1e-5)


def test_ranks_count_all_texts_but_those_known_to_be_similar(written):
    task = task_of()
    rows = [("a", "p", "n"), ("a", "q", "m"), ("b", "r", "a")]
    examples = task.read(
        written([dict(zip(("anchor", "positive", "negative"), row, strict=True)) for row in rows]), "eval"
    )
    angles = {"a": 0, "p": 40, "q": 20, "n": 30, "m": 50, "r": 60, "b": 59}
    vectors = {text: np.array([np.cos(a), np.sin(a)]) for text, a in ((t, np.radians(d)) for t, d in angles.items())}
    # a: q 20, n 30, p 40, m 50, r 60; p is second among n, m, r (without q). b: r is 1 away and first.
    assert task.metrics(examples, vectors) == {
        "mrr": pytest.approx((1 / 2 + 1 + 1) / 3),
        "recall@1": pytest.approx(2 / 3),
    }
    same = dict.fromkeys(vectors, np.ones(2))
    assert task.metrics(examples, same)["recall@1"] == 0  # equal cosines are no success
    assert task.metrics(examples, dict.fromkeys(vectors, np.full(2, np.nan)))["recall@1"] == 0
    (drawn,) = task.trivial_answers(examples, examples).values()
    assert len(drawn) == 10
    assert 0.2 < np.mean([task.metrics(examples, answers)["mrr"] for answers in drawn]) < 0.8


def test_stsb_is_read_as_published_and_columns_can_be_named(tmp_path, written):
    header = "index genre filename year old_index source1 source2 sentence1 sentence2 score"
    (tmp_path / "dev.tsv").write_text(
        "\t".join(header.split()) + '\n7\tx\tx\tx\tx\tx\tx\ta "plane\tan air plane\t4.5\n'
    )
    task = task_of()
    (example,) = task.read([str(tmp_path)], "eval")
    assert (example.id, example.texts, example.label) == ("0", ('a "plane', "an air plane"), 4.5)
    assert task.metric == "spearman"
    columns = ColumnsConfig("q", "d", id="name", negatives=("x", "y"))
    row = {"q": "1", "d": "2", "x": "3", "y": "4", "name": "n"}
    (example,) = task_of(columns=columns).read(written([row]), "train")
    assert (example.id, example.texts, example.label) == ("n", ("1", "2", "3", "4"), None)
    found = task.examples_of([("a", "b"), {"anchor": "c", "positive": "d"}])
    assert [e.texts for e in found] == [("a", "b"), ("c", "d")]


def test_bad_input_is_refused_in_one_line(written):
    task = task_of()
    for rows, message in (
        ([{"anchor": "a"}], "line 1: there is no column 'positive' or 'answer' or 'sentence2' or 'text_pair', only 'a"),
        ([{"anchor": "a", "positive": " "}], r"there is no text: .*line 1 is blank"),
        ([TRIPLETS[1] | {"negative": None}], r"there is no text: .*line 1 is blank"),
        ([TRIPLETS[0], PAIRS[1]], r"line 2 has 2 texts, and .*line 1 4 texts: give all examples of `train` the same"),
        ([SCORED[0], PAIRS[1]], r"line 2 has 2 texts, and .*line 1 2 texts and a score"),
        ([TRIPLETS[0] | {"score": 1}], r"line 1 has a score and negative: leave one of these columns out"),
        ([SCORED[0] | {"score": "high"}], r"line 1: the label 'high' is not a number \("),
    ):
        with pytest.raises(InputError, match=message):
            task.read(written(rows), "train")
    with pytest.raises(InputError, match="input 0 is not a pair of texts, but 'a'; `encode` returns the vector"):
        task.examples_of(["a"])
    config = dataclasses.replace(DEFAULTS["embedding"](), init="tiny", train=("x",))
    head = config.head
    for changed, message in (
        ({"temperature": 0.0}, r"`temperature` 0\.0 must be above 0"),
        ({"head": dataclasses.replace(head, summary="attn")}, r"`head\.summary` attn: the head of task embedding has"),
        ({"head": dataclasses.replace(head, use_projection=True)}, r"`head\.use_projection` True: the head of task"),
        ({"optimizer": OptimizerConfig(accumulate=2)}, r"`optimizer\.accumulate` 2: `task` embedding compares all"),
    ):
        with pytest.raises(InputError, match=message):
            validate_finetuning(dataclasses.replace(config, **changed))
    with pytest.raises(InputError, match=r"`data\.long_texts` memory: embedding cuts long texts; leave it at tail"):
        task_of("memory")


# ---- documents -------------------------------------------------------------------------------------------------------


@pytest.fixture
def collection(tmp_path, written):
    documents = {f"d{i}": text for i, text in enumerate(GOOD + BAD)}
    queries = {"1": "a walk", "2": "days", "3": "him"}
    files = {
        name: tuple(written([{"id": i, "text": text} for i, text in of.items()], f"{name}.jsonl"))
        for name, of in (("documents", documents), ("queries", queries))
    }
    (tmp_path / "qrels").write_text("1 0 d0 2\n1 0 d3 1\n1 0 d5 0\n2 0 d1 1\n2 0 d6 1\n2 0 d0 1\n3 0 d2 1\n3 0 d7 1\n")
    settings = RankingConfig(**files, negatives=2)
    return task_of(ranking=settings), [str(tmp_path / "qrels")]


def test_judged_documents_are_positives_of_their_query_wherever_they_are_in_the_batch(collection, english):
    task, qrels = collection
    examples = task.read(qrels, "train")
    features = task.features(examples, english, HEAD, training=True, epoch=0)
    text, positive = features.values["text"], features.values["positive"]
    assert text.shape == (7, 4)  # a query, a relevant document, two others
    assert task.draws_anew
    for row in range(7):
        assert text[row, 1] in positive[row]
        assert not {*text[row, 2:]} & {*positive[row]}
    of_query_1, of_query_2 = positive[0], positive[2]
    assert {*of_query_1} & {*of_query_2} == {text[0, 1]}  # d0 is relevant for both
    other = task.features(examples, english, HEAD, training=True, epoch=1).values["text"]
    assert not np.array_equal(other, text)


def test_all_documents_are_ranked_by_their_cosine(collection, english, tmp_path):
    task, qrels = collection
    examples = task.read(qrels, "eval")
    features = task.features(examples, english, HEAD, training=False)
    assert len(features) == 13  # three queries and ten documents
    network = tiny(english.vocab_size)
    params, losses = trained(task, network, HEAD, task.features(examples, english, HEAD, training=True), 120)
    assert losses[-1] < 0.3 * losses[0]
    outputs = outputs_of(task, build_model(network, HEAD), params, features, 4, 24, "left")
    run = task.answers(examples, features, outputs)
    assert {query: len(scores) for query, scores in run.items()} == {"1": 10, "2": 10, "3": 10}
    assert run["1"]["d4"] == pytest.approx(float(outputs["vector"][0] @ outputs["vector"][1 + 4]))
    scores = task.metrics(examples, run)
    assert scores["ndcg@20"] > 0.95
    (drawn,) = task.trivial_answers(examples, examples).values()
    assert np.mean([task.metrics(examples, answers)["ndcg@20"] for answers in drawn]) < 0.9
    assert task.write(epath.Path(tmp_path), examples, run) == ["run.trec"]


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_pretrained_network_is_measured_and_a_finetuned_one_remembers_its_pooling(
    pretrained, written, tmp_path, capsys
):
    data = {"seq_len": 24, "batch_size": 8, "buckets": (24,)}
    settings = {"task": "embedding", "eval": written(SCORED), "data": data}
    frozen = xlnet_jax.finetune(init=pretrained, workdir=tmp_path / "frozen", **settings)
    model = xlnet_jax.load(pretrained)
    a, b = (xlnet_jax.embed_texts(model, texts, normalize=True) for texts in (GOOD, BAD))
    expected = xlnet_jax.tasks.embedding.regression_scores((a * b).sum(1), np.arange(5.0))
    assert frozen.metrics == pytest.approx({"spearman": expected["spearman"], "pearson": expected["pearson"]}, abs=1e-5)
    settings |= {"train": settings["eval"], "steps": 3, "head": {"summary": "last"}}
    run = xlnet_jax.finetune(init=pretrained, workdir=tmp_path / "run", **settings)
    printed = capsys.readouterr().out
    assert "python -m xlnet_jax.embed" in printed
    assert ".encode([...])" in printed
    finetuned = xlnet_jax.load(run.checkpoint)
    assert finetuned.head == HeadConfig("embedding", summary="last", use_projection=False)
    vectors = xlnet_jax.embed_texts(finetuned, GOOD)
    np.testing.assert_array_equal(vectors, xlnet_jax.embed_texts(finetuned, GOOD, "last"))
    assert not np.allclose(vectors, xlnet_jax.embed_texts(finetuned, GOOD, "mean"), atol=1e-3)
    (found,) = finetuned.predict([(GOOD[0], BAD[0])])
    unit = xlnet_jax.embed_texts(finetuned, [GOOD[0], BAD[0]], normalize=True)
    assert found.value == pytest.approx(float(unit[0] @ unit[1]), abs=1e-5)


def test_encode_is_called_as_sentence_transformers_and_mteb_call_it(pretrained):
    model = xlnet_jax.load(pretrained)
    expected = xlnet_jax.embed_texts(model, GOOD)
    np.testing.assert_allclose(model.encode(GOOD, batch_size=1, show_progress_bar=False), expected, atol=1e-5)
    single = model.encode(GOOD[0], convert_to_numpy=True, device="cpu")
    assert (single.shape, single.dtype) == ((16,), np.float32)
    np.testing.assert_allclose(single, expected[0], atol=1e-5)
    batches = ({"text": GOOD[i : i + 2], "id": ["x"] * 2} for i in (0, 2, 4))  # a DataLoader of MTEB
    found = model.encode(batches, task_metadata=object(), hf_split="test", hf_subset="default", prompt_type=None)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    unit = model.encode(GOOD, normalize_embeddings=True, prompt="she ")
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-5)
    with_prompt = xlnet_jax.embed_texts(model, [f"she {text}" for text in GOOD], normalize=True)
    np.testing.assert_allclose(unit, with_prompt, atol=1e-5)
    assert model.encode([]).shape == (0, 16)
    with pytest.raises(InputError, match="`convert_to_tensor` True is not supported, only False"):
        model.encode(GOOD, convert_to_tensor=True)

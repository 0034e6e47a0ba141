"""A finetuned checkpoint predicts in Python what its command writes, for every family of tasks."""

import csv
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import random_model
from tests.xlnet_jax.tasks.conftest import BAD, GOOD
from xlnet_jax import InputError
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.model import Model, _compiled
from xlnet_jax.tasks.readers import rows_of


def finetuned(pretrained, table, workdir, **changes):
    settings = {
        "init": pretrained, "train": table, "eval": table, "workdir": workdir, "steps": 2,
        "data": {"seq_len": 16, "batch_size": 8},
    }  # fmt: skip
    return xlnet_jax.finetune(**settings | changes)


@pytest.fixture(scope="module")
def result(pretrained, table, tmp_path_factory):
    return finetuned(pretrained, table, tmp_path_factory.mktemp("runs") / "run", predict=table)


@pytest.fixture(scope="module")
def model(result):
    return xlnet_jax.load(result.checkpoint)


def of_head(pretrained, head, **kept):
    """Return the network with a random head of this kind."""
    start = xlnet_jax.load(pretrained)
    drawn = random_model(start.model, head, start.tokenizer)
    return Model(drawn.model, drawn.params, start.objective, head, start.tokenizer, **kept)


def test_finetuning_returns_its_metrics_and_its_checkpoint(result, model):
    assert result.metric == "accuracy"
    assert 0 <= result.metrics["accuracy"] <= 1
    assert set(result.predictions) == {
        f"{result.workdir}/predictions/{of}/predictions.tsv" for of in ("eval", "predict")
    }
    assert model.finetuning.task == "classification"
    assert model.head.labels == ("bad", "good")


def test_predictions_are_those_that_the_run_wrote(result, model):
    with open(f"{result.workdir}/predictions/predict/predictions.tsv") as file:
        written = list(csv.DictReader(file, delimiter="\t"))
    found = model.predict(GOOD + BAD)
    assert [p.value for p in found] == [row["label"] for row in written]
    for p, row in zip(found, written, strict=True):
        assert p.probabilities == pytest.approx(
            {label: float(row[f"p({label})"]) for label in ("bad", "good")}, rel=1e-4
        )


def test_a_prediction_does_not_depend_on_the_others(model, result):
    (alone,) = xlnet_jax.load(result.workdir).predict(GOOD[:1])
    together = model.predict([" ".join(GOOD), GOOD[0], (GOOD[0], BAD[0])], batch_size=2)
    assert together[1].probabilities == pytest.approx(alone.probabilities, rel=1e-6)
    assert together[2].probabilities != pytest.approx(alone.probabilities, rel=1e-5)
    assert model.predict([]) == []


def test_predictions_compile_for_few_numbers_of_inputs_and_do_not_depend_on_them(model):
    """Rows are rounded up to powers of two, as far as a batch goes."""
    texts, longest = [(GOOD[0] if i % 3 else BAD[0]) for i in range(20)], {"batch_size": 32, "seq_len": 64}
    alone = {text: model.predict([text], **longest)[0] for text in (GOOD[0], BAD[0])}
    run = _compiled(model.settings(**longest))
    run.clear_cache()
    for count in range(1, 21):
        for text, found in zip(texts, model.predict(texts[:count], **longest), strict=False):
            assert found.value == alone[text].value
            assert found.probabilities == pytest.approx(alone[text].probabilities, abs=1e-5)
    assert run._cache_size() == 5  # 2, 4, 8, 16 and 32 rows, of one length


class Table(list):
    """Rows, given as a table of pandas gives them."""

    columns = ("text", "label")

    def to_dict(self, orient):
        assert orient == "records"
        return list(self)


def test_rows_of_python_train_as_the_file_of_them_does(pretrained, table, result, model, tmp_path):
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for _ in range(2):  # the second call resumes the run of the first
        done = finetuned(pretrained, Table(rows), tmp_path / "run", eval=rows, predict=tuple(rows))
        assert done.metrics == result.metrics
    assert len(list((tmp_path / "run" / "examples").iterdir())) == 3
    assert model.predict([{"text": row["text"]} for row in rows]) == model.predict([row["text"] for row in rows])


def test_rows_are_those_of_a_table_of_pandas_or_of_a_list(tmp_path):
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    rows = [{"words": ["a", "b"], "label": 1.0}, {"words": ["c"], "label": float("nan")}]
    expected = [{"words": ["a", "b"], "label": 1.0}, {"words": ["c"], "label": None}]
    arrays = [{"words": np.array(row["words"]), "label": np.float32(row["label"])} for row in rows]
    for given in (rows, tuple(rows), pandas.DataFrame(rows), arrays):
        assert rows_of(given) == expected
    assert rows_of("a.tsv") is rows_of(["a.tsv", "b.tsv"]) is rows_of([]) is None


def test_every_family_takes_its_values_of_python(pretrained):
    number = of_head(pretrained, HeadConfig("regression")).predict([("a lovely walk", "a dreadful rain")])
    assert isinstance(number[0].value, float)
    words = GOOD[0].split()
    tagger = of_head(pretrained, HeadConfig("token_classification", 3, labels=("O", "B-X", "I-X")))
    assert [len(found.value) for found in tagger.predict([words, {"words": words[:1]}])] == [3, 1]
    question = {"question": "what was it", "context": "it was delightful and lovely"}
    (answer,) = of_head(pretrained, HeadConfig("question_answering")).predict([question], seq_len=80)
    assert answer.value in question["context"]
    assert sum(answer.probabilities.values()) == pytest.approx(1)
    options = question | {"options": ["tedious", "lovely"]}
    (choice,) = of_head(pretrained, HeadConfig("multiple_choice", 3)).predict([options], seq_len=140)
    assert set(choice.probabilities) == {"tedious", "lovely"}
    assert choice.probabilities[choice.value] == max(choice.probabilities.values())


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("ner", [{"words": ["a", "b"], "labels": ["O"]}], "`train`: row 0 has 2 words and 1 labels: give each word"),
        ("ner", [{"words": ["a b\nc"], "labels": ["O"]}], "`train`: row 0: words are a list of words, and"),
        ("squad", [{"question": "Who?"}], "`train`: row 0 has no 'context', only 'question'"),
        (
            "squad",
            [{"question": "Who?", "context": "a", "answers": "a"}],
            "`train`: row 0: 'answers' is not a list, but",
        ),
        ("ranking", [{"text": "a"}], "`train` holds rows, and `task` ranking reads files of its own form: name those"),
        ("classification", [{"text": "a", "label": object()}], "is neither text, a number nor a list"),
    ],
)
def test_rows_of_another_form_are_refused_before_anything_is_written(pretrained, tmp_path, task, rows, message):
    with pytest.raises(InputError, match=message):
        finetuned(pretrained, rows, tmp_path / "run", eval=(), task=task, data={"seq_len": 160})
    assert not (tmp_path / "run").exists()


def test_inputs_of_another_form_are_refused_by_their_number(model, pretrained):
    tagger = of_head(pretrained, HeadConfig("token_classification", 2))
    asker = of_head(pretrained, HeadConfig("question_answering"))
    for of, inputs, message in (
        (model, "a lovely walk", "`inputs` is a list of inputs"),
        (model, ["fine", 3], "input 1 is neither a text nor a pair of texts, but 3"),
        (model, [("a", "b", "c")], "input 0 is neither a text nor a pair"),
        (model, [" "], "input 0: its text is empty"),
        (tagger, ["a walk"], "input 0 is not an object, but"),
        (asker, [{"question": "what"}], "input 0 has no 'context', only 'question'"),
        (xlnet_jax.load(pretrained), ["a"], "vocabulary scores and no head: finetune it for a task first"),
    ):
        with pytest.raises(InputError, match=message):
            of.predict(inputs)


def test_a_function_under_jit_closes_over_the_weights(pretrained):
    model = xlnet_jax.load(pretrained)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(model.params))
    texts = text_inputs(*map(jnp.asarray, model.encode(GOOD[:1])))

    def logits_BLV(params):
        return model.network.apply({"params": params}, texts)[0]

    closed, given = jax.jit(lambda: logits_BLV(model.params))(), jax.jit(logits_BLV)(model.params)
    np.testing.assert_allclose(closed, given, atol=1e-6)


def test_keywords_that_are_no_settings_are_refused(pretrained, table, tmp_path):
    for changes, message in (
        ({"task": "sst2"}, "`task` sst2 must be one of"),
        ({"step": 3}, "there is no setting `step`: did you mean steps"),
        ({"optimizer": {"learning_rat": 1}}, "no setting `optimizer.learning_rat`: did you mean learning_rate"),
        ({"optimizer": 3}, "`optimizer` is a section: give a dictionary"),
        ({"steps": "many"}, "steps"),
        ({"train": [], "eval": []}, "nothing to do: give `train`"),
    ):
        with pytest.raises(InputError, match=message):
            finetuned(pretrained, table, tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_a_stopped_run_is_no_result(pretrained, table, tmp_path, monkeypatch):
    monkeypatch.setattr("xlnet_jax.tasks.finetune.run", lambda config: (None, 143))
    with pytest.raises(KeyboardInterrupt, match="the same call goes on"):
        xlnet_jax.finetune(init=str(pretrained), train=str(table), workdir=str(tmp_path / "run"))


def test_paths_may_be_text_or_paths(pretrained, table, result, model, tmp_path):
    text = [GOOD[0]]
    folder = Path(result.checkpoint)
    assert xlnet_jax.load(folder).predict(text) == xlnet_jax.load(str(folder)).predict(text) == model.predict(text)
    files = (table, str(table), [table])
    for n, names in enumerate(files):
        done = xlnet_jax.finetune(init=folder, predict=names, workdir=tmp_path / str(n))
        assert done.predictions == (f"{tmp_path}/{n}/predictions/predict/predictions.tsv",)
    drawn = [
        xlnet_jax.generate(start, "A walk", max_new_tokens=2)[0].text for start in (Path(pretrained), str(pretrained))
    ]
    assert drawn[0] == drawn[1]
    (tmp_path / "lines.txt").write_text("A lovely walk\n")
    for kind in (str, Path):
        settings = xlnet_jax.EmbedSettings(
            kind(pretrained), (kind(tmp_path / "lines.txt"),), kind(tmp_path / f"{kind.__name__}.npy"), seq_len=16
        )
        assert xlnet_jax.embed_files(settings) == (1, 16)

"""A finetuned checkpoint predicts in Python what its command writes, for every family of tasks."""

import csv
import dataclasses

import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import random_model
from tests.xlnet_jax.tasks.conftest import BAD, GOOD
from xlnet_jax import InputError
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.tasks.defaults import make_task
from xlnet_jax.tasks.model import Model, _compiled
from xlnet_jax.tasks.readers import rows_of


def finetuned(pretrained, table, workdir, **changes):
    settings = {"init": pretrained, "train": table, "eval": table, "workdir": workdir, "steps": 2}
    return xlnet_jax.finetune(**settings | changes)


def of_head(pretrained, head, **kept):
    """Return the network with a random head of this kind."""
    start = xlnet_jax.load(pretrained)
    drawn = random_model(start.model, head, start.tokenizer)
    return Model(drawn.model, drawn.params, start.objective, head, start.tokenizer, **kept)


@pytest.fixture(scope="module")
def folder(pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier") / "checkpoint"
    xlnet_jax.save(of_head(pretrained, HeadConfig("classification", 2, labels=("bad", "good"))), folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return xlnet_jax.load(folder)


def test_predictions_are_those_that_the_command_writes(folder, model, table, tmp_path):
    data = {"seq_len": 16, "batch_size": 8, "buckets": (16,)}
    result = xlnet_jax.finetune(init=folder, eval=table, predict=table, workdir=tmp_path, data=data)
    assert 0 <= result.metrics["accuracy"] <= 1
    assert set(result.predictions) == {f"{tmp_path}/predictions/{of}/predictions.tsv" for of in ("eval", "predict")}
    with open(result.predictions[1], newline="") as file:
        written = list(csv.DictReader(file, delimiter="\t"))
    found = model.predict(GOOD + BAD, seq_len=16)
    assert [p.value for p in found] == [row["label"] for row in written]
    for p, row in zip(found, written, strict=True):
        expected = {label: float(row[f"p({label})"]) for label in ("bad", "good")}
        assert p.probabilities == pytest.approx(expected, rel=1e-4)


def test_predictions_compile_for_few_numbers_of_inputs_and_do_not_depend_on_them(model):
    # Rows are rounded up to powers of two, as far as a batch goes.
    texts, longest = [(GOOD[0] if i % 3 else BAD[0]) for i in range(20)], {"batch_size": 8, "seq_len": 64}
    alone = {text: model.predict([text], **longest)[0] for text in (GOOD[0], BAD[0])}
    for count in (2, 3, 5, 8, 9, 20):
        for text, found in zip(texts, model.predict(texts[:count], **longest), strict=False):
            assert found.value == alone[text].value
            assert found.probabilities == pytest.approx(alone[text].probabilities, abs=1e-5)
    assert model.predict([]) == []
    assert _compiled(model.settings(**longest))._cache_size() == 3  # 2, 4 and 8 rows, of one length


def test_a_loaded_model_resolves_its_settings_once(folder, monkeypatch):
    resolved = []
    of = Resolution.of
    monkeypatch.setattr(Resolution, "of", lambda *args: resolved.append(args) or of(*args))
    model = xlnet_jax.load(folder)
    predictions = [model.predict([GOOD[0]]), model.predict([GOOD[0]], seq_len=32, batch_size=4), model.predict(GOOD)]
    assert len(resolved) == 1
    assert len({found[0].value for found in predictions}) == 1
    assert (model.settings(seq_len=32).data.seq_len, model.settings().data.seq_len) == (32, 128)
    other = dataclasses.replace(model, head=dataclasses.replace(model.head, labels=("b", "g")))
    assert other.predict([GOOD[0]])[0].value in ("b", "g")
    assert len(resolved) == 2


class Table(list):
    """Rows, given as a table of pandas gives them."""

    columns = ("text", "label")

    def to_dict(self, orient):
        assert orient == "records"
        return list(self)


@pytest.fixture
def handed(monkeypatch):
    """Return the settings that `finetune` hands to a run, which is not made."""
    configs = []
    monkeypatch.setattr(
        "xlnet_jax.tasks.finetune.finetune_as", lambda _, config, __: configs.append(config) or "a result"
    )
    return configs


def test_rows_of_python_are_read_as_the_file_of_them_is(table, model, handed, tmp_path):
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for _ in range(2):  # the second call goes on with the run of the first
        finetuned("tiny", Table(rows), tmp_path / "run", eval=rows, predict=tuple(rows))
    assert handed[0] == handed[1]
    assert len(list((tmp_path / "run" / "examples").iterdir())) == 3
    task = make_task(handed[0])
    for files in (handed[0].train, handed[0].eval, handed[0].predict):
        assert repr(task.read(files, "train")) == repr(task.read([str(table)], "train"))
    assert model.predict([{"text": row["text"]} for row in rows]) == model.predict([row["text"] for row in rows])


def test_rows_are_those_of_a_table_of_pandas_or_of_a_list():
    rows = [{"words": ["a", "b"], "label": 1.0}, {"words": ["c"], "label": float("nan")}]
    expected = [{"words": ["a", "b"], "label": 1.0}, {"words": ["c"], "label": None}]
    arrays = [{"words": np.array(row["words"]), "label": np.float32(row["label"])} for row in rows]
    for given in (tuple(rows), Table(arrays), arrays):
        assert rows_of(given) == expected
    assert rows_of("a.tsv") is rows_of(["a.tsv", "b.tsv"]) is rows_of([]) is None


def test_rows_and_inputs_of_another_form_are_refused_by_their_number(model, pretrained, tmp_path):
    rows = [{"words": ["a"], "labels": ["O"]}, {"words": ["a", "b"], "labels": ["O"]}]
    with pytest.raises(InputError, match="line 2 has 2 words and 1 labels"):
        finetuned(pretrained, rows, tmp_path / "run", eval=(), task="ner")
    with pytest.raises(InputError, match="`inputs` must be a list, not "):
        model.predict("a lovely walk")
    with pytest.raises(InputError, match="input 1"):
        model.predict(["fine", 3])
    with pytest.raises(InputError, match="vocabulary scores and no head: finetune it for a task first"):
        xlnet_jax.load(pretrained).predict(["a"])


def test_keywords_that_are_no_settings_are_refused(pretrained, table, tmp_path):
    for changes, message in (
        ({"task": "sst2"}, "`task` sst2 must be one of"),
        ({"optimizer": {"learning_rat": 1}}, "learning_rat` is not a setting: did you mean optimizer.learning_rate"),
        ({"optimizer": 3}, "`optimizer` is not a setting: it is a section: give a dictionary"),
        ({"train": [], "eval": []}, "nothing to do: give `train`"),
    ):
        with pytest.raises(InputError, match=message):
            finetuned(pretrained, table, tmp_path / "run", **changes)

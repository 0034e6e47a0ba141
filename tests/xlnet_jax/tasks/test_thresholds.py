"""Checkpoints keep the decision threshold that finetuning tuned or was given, through conversion too."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import xlnet_jax
from tests.xlnet_jax.tasks.conftest import GOOD
from xlnet_jax import InputError
from xlnet_jax.checkpoints.native import THRESHOLDS
from xlnet_jax.interop.contents import LABEL_THRESHOLD, NULL_THRESHOLD
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.question_answering.answers import Answers, Candidate
from xlnet_jax.tasks.run import run as run_finetuning

CONTEXTS = [
    f"{who} {how} {what}"
    for who, what in (("she", "lovely days"), ("he", "dreadful rain"), ("lady", "charming man"))
    for how in ("smiled at", "frowned at", "was wrong and tedious at")
]
SQUAD2 = {
    "task": "squad2", "steps": 1, "data": {"seq_len": 48, "batch_size": 8, "buckets": (48,)},
    "qa": {"max_query_len": 16, "doc_stride": 16}, "optimizer": {"learning_rate": 1e-12},
}  # fmt: skip


def squad(path, answers=None):
    """A file of SQuAD 2.0 that asks for these answers, by number of the text; the other questions have none."""
    answers = dict(enumerate(CONTEXTS)) if answers is None else answers
    paragraphs = []
    for i, text in enumerate(CONTEXTS):
        found = [{"text": answers[i], "answer_start": text.index(answers[i])}] if i in answers else []
        question = {"id": f"{i}", "question": "which word", "is_impossible": not found, "answers": found}
        paragraphs.append({"context": text, "qas": [question]})
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return str(path)


def finetune(pretrained, workdir, **settings):
    """Finetune with a rate that changes no weight: the null odds of two runs are the same."""
    return xlnet_jax.finetune(init=str(pretrained), workdir=str(workdir), **{**SQUAD2, **settings})


def written(workdir, name, split="eval"):
    return json.loads((Path(workdir) / "predictions" / split / name).read_text())


@pytest.fixture(scope="module")
def run(pretrained, tmp_path_factory):
    """A run whose best threshold leaves half of its questions unanswered, and is not 0."""
    folder = tmp_path_factory.mktemp("squad2")
    questions = squad(folder / "all.json")
    before = finetune(pretrained, folder / "before", train=questions, eval=questions).workdir
    odds, answers = written(before, "null_odds.json"), written(before, "nbest_predictions.json")
    below = sorted(odds, key=odds.get)[: len(odds) // 2]
    labelled = squad(folder / "dev.json", {int(id): answers[id][0]["text"] for id in below})
    return finetune(pretrained, folder / "run", train=labelled, eval=labelled, predict=questions)


@pytest.fixture(scope="module")
def asked():
    return [{"question": "which word", "context": text} for text in CONTEXTS]


def test_python_answers_as_the_run_that_tuned_the_threshold(run, asked):
    expected = written(run.workdir, "predictions.json")
    assert sorted({not text for text in expected.values()}) == [False, True]
    for place in (run.workdir, run.checkpoint):
        model = xlnet_jax.load(place)
        assert model.thresholds[NULL_THRESHOLD] != 0
        assert {str(i): p.value for i, p in enumerate(model.predict(asked))} == expected


def test_the_command_answers_as_the_run_that_tuned_the_threshold(run, tmp_path, capfd):
    again = squad(tmp_path / "again.json")
    xlnet_jax.finetune(task="squad2", init=run.workdir, predict=again, workdir=tmp_path / "out")
    assert written(tmp_path / "out", "predictions.json", "predict") == written(run.workdir, "predictions.json")
    assert "thresholds  of the checkpoint: qa.null_threshold" in capfd.readouterr().out


def test_a_threshold_that_is_given_wins(run, tmp_path):
    told = replace(
        DEFAULTS["squad2"](), init=run.workdir, predict=(squad(tmp_path / "again.json"),),
        workdir=str(tmp_path / "out"), qa=replace(DEFAULTS["squad2"]().qa, null_threshold=1e5),
    )  # fmt: skip
    assert run_finetuning(told)[1] == 0
    assert all(written(tmp_path / "out", "predictions.json", "predict").values())


@pytest.mark.parametrize("to", ["native", "hf"])
def test_a_converted_checkpoint_keeps_the_threshold(run, asked, tmp_path, to):
    model = xlnet_jax.load(run.checkpoint)
    notes = xlnet_jax.save(model, tmp_path / "there", to)
    again = xlnet_jax.load(tmp_path / "there")
    assert again.thresholds == model.thresholds
    found = again.predict(asked, seq_len=48 + 48)  # the default question takes 64 tokens of it
    expected = written(run.workdir, "predictions.json")
    assert {str(i): not p.value for i, p in enumerate(found)} == {id: not text for id, text in expected.items()}
    if to == "hf":
        assert any("qa.null_threshold" in note and "cls_logits" in note for note in notes)


def test_a_format_without_a_place_for_the_threshold_says_so(run, tmp_path):
    notes = xlnet_jax.save(xlnet_jax.load(run.checkpoint), tmp_path / "tf1", "tf1")
    assert any(
        note.startswith("the thresholds of its predictions are not written: qa.null_threshold") for note in notes
    )


def test_questions_may_be_unanswerable_where_no_threshold_was_tuned(pretrained, run, asked, tmp_path):
    untuned = finetune(pretrained, tmp_path / "run", train=squad(tmp_path / "all.json"))
    model = xlnet_jax.load(untuned.checkpoint)
    assert model.thresholds == {NULL_THRESHOLD: None}
    xlnet_jax.save(model, tmp_path / "hf", "hf")
    again = xlnet_jax.load(tmp_path / "hf")
    assert again.settings().task == "squad2"
    odds = written(run.workdir, "null_odds.json")
    assert [not p.value for p in again.predict(asked, seq_len=96)] == [odd > 0 for odd in odds.values()]


def test_a_converted_multilabel_model_keeps_its_threshold(pretrained, table, tmp_path):
    result = xlnet_jax.finetune(
        init=str(pretrained), task="multilabel", train=str(table), workdir=str(tmp_path / "run"), steps=1,
        data={"seq_len": 16, "batch_size": 8}, multilabel={"threshold": 0.501},
    )  # fmt: skip
    model = xlnet_jax.load(result.checkpoint)
    assert model.thresholds == {LABEL_THRESHOLD: 0.501}
    models = [model]
    for to in ("native", "hf"):
        xlnet_jax.save(model, tmp_path / to, to)
        models.append(xlnet_jax.load(tmp_path / to))
    for one in models:
        for value, probabilities in one.predict(GOOD):
            assert value == tuple(name for name, p in probabilities.items() if p >= 0.501)


@pytest.mark.parametrize("content", ["[1]", '{"qa.null_threshold": "x"}', '{"multilabel.threshold": 2}', '{"a": 1}'])
def test_thresholds_that_are_none_are_refused(run, tmp_path, content):
    xlnet_jax.save(xlnet_jax.load(run.checkpoint), tmp_path / "there")
    (tmp_path / "there" / THRESHOLDS).write_text(content)
    with pytest.raises(InputError, match=r"thresholds\.json"):
        xlnet_jax.load(tmp_path / "there")


def test_a_threshold_amid_two_odds_gives_the_same_answers():
    n_best = {id: [Candidate("x", 1, 0, 0)] for id in "abc"}
    answers = Answers(n_best, {"a": -2.0, "b": 1.0, "c": 4.0})
    for threshold, amid in ((-2.0, -0.5), (1.0, 2.5), (4.0, 5.0), (0.0, 0.0)):
        assert answers.amid(threshold) == amid
        assert answers.above(amid) == answers.above(threshold)

"""Checkpoints keep the decision threshold that finetuning tuned or was given, through conversion too."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import random_model
from tests.xlnet_jax.tasks.conftest import GOOD
from tests.xlnet_jax.tasks.task_runs import asked
from xlnet_jax import InputError
from xlnet_jax.checkpoints.native import CONFIG
from xlnet_jax.interop.contents import LABEL_THRESHOLD, NULL_THRESHOLD
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.settings.fields import to_dict
from xlnet_jax.storage.reading import with_version, write_checksums
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.question_answering.task import Answers, Candidate

CONTEXTS = [
    f"{who} {how} {what}"
    for who, what in (("she", "lovely days"), ("he", "dreadful rain"), ("lady", "charming man"))
    for how in ("smiled at", "frowned at", "was wrong and tedious at")
]
ASKED = [{"question": "which word", "context": text} for text in CONTEXTS]
SQUAD2 = {
    "task": "squad2", "data": {"seq_len": 48, "batch_size": 8, "buckets": (48,), "max_query_len": 16},
    "qa": {"doc_stride": 16},
}  # fmt: skip


def squad(answers=None):
    """Questions with these answers, by number of the text; the others have none."""
    answers = dict(enumerate(CONTEXTS)) if answers is None else answers
    found = [[answers[i]] if i in answers else [] for i in range(len(CONTEXTS))]
    return [asked("which word", c, *a) | {"id": f"{i}"} for i, (c, a) in enumerate(zip(CONTEXTS, found, strict=True))]


def written(workdir, name, split="eval"):
    return json.loads((Path(workdir) / "predictions" / split / name).read_text())


@pytest.fixture(scope="module")
def run(pretrained, tmp_path_factory):
    """A run whose best threshold leaves half of its questions unanswered, and is not 0. Its rate changes no weight: the
    null odds are those of the checkpoint that it starts from."""
    folder = tmp_path_factory.mktemp("squad2")
    start = xlnet_jax.load(pretrained)
    xlnet_jax.save(random_model(start.model, HeadConfig("question_answering"), start.tokenizer), folder / "asker")
    shared, questions = {"init": str(folder / "asker"), **SQUAD2}, squad()
    before = xlnet_jax.finetune(**shared, eval=questions, workdir=str(folder / "before")).workdir
    odds, answers = written(before, "null_odds.json"), written(before, "nbest_predictions.json")
    below = sorted(odds, key=odds.get)[: len(odds) // 2]
    labelled = squad({int(id): answers[id][0]["text"] for id in below})
    return xlnet_jax.finetune(
        **shared, train=labelled, eval=labelled, predict=questions, workdir=str(folder / "run"), steps=1,
        optimizer={"learning_rate": 1e-12},
    )  # fmt: skip


def test_python_answers_as_the_run_that_tuned_the_threshold(run):
    assert run.metric == "best_f1"
    assert xlnet_jax.load(run.workdir).finetuning.task == run.task == "squad2"
    expected = written(run.workdir, "predictions.json")
    assert sorted({not text for text in expected.values()}) == [False, True]
    for place in (run.workdir, run.checkpoint):
        model = xlnet_jax.load(place)
        assert model.thresholds[NULL_THRESHOLD] != 0
        assert {str(i): p.value for i, p in enumerate(model.predict(ASKED))} == expected


def test_the_command_answers_as_the_run_that_tuned_the_threshold_unless_one_is_given(run, tmp_path, capfd):
    for name, given in (("tuned", {}), ("given", {"qa": {"null_threshold": 1e5}})):
        xlnet_jax.finetune(task="squad2", init=run.workdir, predict=squad(), workdir=tmp_path / name, **given)
        printed = capfd.readouterr().out
        assert ("chosen      --qa.null-threshold " in printed) == (name == "tuned")
    assert written(tmp_path / "tuned", "predictions.json", "predict") == written(run.workdir, "predictions.json")
    assert all(written(tmp_path / "given", "predictions.json", "predict").values())


def test_a_converted_checkpoint_keeps_the_threshold_and_that_questions_may_be_unanswerable(run, tmp_path):
    model = xlnet_jax.load(run.checkpoint)
    expected, odds = written(run.workdir, "predictions.json"), written(run.workdir, "null_odds.json")

    def unanswered(model, to):
        notes = xlnet_jax.save(model, tmp_path / to, "hf")
        again = xlnet_jax.load(tmp_path / to)
        assert again.settings().task == "squad2"
        assert again.thresholds == model.thresholds
        # The default question takes 64 tokens of the longest input.
        return notes, [not p.value for p in again.predict(ASKED, seq_len=96)]

    notes, found = unanswered(model, "tuned")
    assert any("qa.null_threshold" in note and "cls_logits" in note for note in notes)
    assert found == [not text for text in expected.values()]
    _, found = unanswered(replace(model, thresholds={NULL_THRESHOLD: None}), "untuned")
    assert found == [odd > 0 for odd in odds.values()]


@pytest.mark.parametrize(
    ("task", "head", "thresholds"),
    [
        ("multilabel", HeadConfig("multilabel", 2, labels=("bad", "good")), {LABEL_THRESHOLD: 0.501}),
        ("squad2", HeadConfig("question_answering"), {NULL_THRESHOLD: None}),
    ],
)
def test_a_checkpoint_has_the_threshold_that_its_finetuning_was_given(pretrained, tmp_path, task, head, thresholds):
    start = xlnet_jax.load(pretrained)
    xlnet_jax.save(random_model(start.model, head, start.tokenizer), tmp_path / "run")
    config = replace(DEFAULTS[task](), model=start.model, head=head, objective="plm", label_threshold=0.501)
    (tmp_path / "run" / CONFIG).write_text(json.dumps(with_version("checkpoint", to_dict(config))))
    write_checksums(tmp_path / "run")
    model = xlnet_jax.load(tmp_path / "run")
    assert model.thresholds == thresholds
    for to in ("native", "hf"):
        xlnet_jax.save(model, tmp_path / to, to)
        again = xlnet_jax.load(tmp_path / to)
        assert (again.thresholds, again.head.labels) == (thresholds, head.labels)
    if task == "multilabel":
        there = json.loads((tmp_path / "hf" / "config.json").read_text())
        assert there["problem_type"] == "multi_label_classification"
        for value, probabilities in again.predict(GOOD, seq_len=16):
            assert value == tuple(name for name, p in probabilities.items() if p >= 0.501)
        with pytest.raises(InputError, match="the 2019 code has no head for multilabel"):
            xlnet_jax.save(model, tmp_path / "tf1", "tf1")


def test_a_threshold_amid_two_odds_gives_the_same_answers():
    answers = Answers({id: [Candidate("x", 1, 0, 0)] for id in "abc"}, {"a": -2.0, "b": 1.0, "c": 4.0})
    for threshold, amid in ((-2.0, -0.5), (1.0, 2.5), (4.0, 5.0), (0.0, 0.0)):
        assert answers.amid(threshold) == amid
        assert answers.above(amid) == answers.above(threshold)

"""Checkpoints keep the decision threshold that finetuning tuned or was given, through conversion too."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import random_model
from tests.xlnet_jax.tasks.conftest import GOOD
from xlnet_jax import InputError
from xlnet_jax.checkpoints.native import CONFIG, THRESHOLDS
from xlnet_jax.interop.contents import LABEL_THRESHOLD, NULL_THRESHOLD
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.settings.files import to_dict
from xlnet_jax.storage.reading import write_checksums
from xlnet_jax.storage.versions import with_version
from xlnet_jax.tasks.config import MultilabelConfig
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.question_answering.task import Answers, Candidate

CONTEXTS = [
    f"{who} {how} {what}"
    for who, what in (("she", "lovely days"), ("he", "dreadful rain"), ("lady", "charming man"))
    for how in ("smiled at", "frowned at", "was wrong and tedious at")
]
SQUAD2 = {
    "task": "squad2", "data": {"seq_len": 48, "batch_size": 8, "buckets": (48,)},
    "qa": {"max_query_len": 16, "doc_stride": 16},
}  # fmt: skip


def squad(answers=None):
    """Questions with these answers, by number of the text; the others have none."""
    answers = dict(enumerate(CONTEXTS)) if answers is None else answers
    rows = []
    for i, text in enumerate(CONTEXTS):
        found = [answers[i]] if i in answers else []
        places = {"text": found, "answer_start": [text.index(answer) for answer in found]}
        rows.append({"id": f"{i}", "question": "which word", "context": text, "answers": places})
    return rows


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


@pytest.fixture(scope="module")
def asked():
    return [{"question": "which word", "context": text} for text in CONTEXTS]


def test_python_answers_as_the_run_that_tuned_the_threshold(run, asked):
    assert run.metric == "best_f1"
    assert xlnet_jax.load(run.workdir).finetuning.task == run.task == "squad2"
    expected = written(run.workdir, "predictions.json")
    assert sorted({not text for text in expected.values()}) == [False, True]
    for place in (run.workdir, run.checkpoint):
        model = xlnet_jax.load(place)
        assert model.thresholds[NULL_THRESHOLD] != 0
        assert {str(i): p.value for i, p in enumerate(model.predict(asked))} == expected


def test_the_command_answers_as_the_run_that_tuned_the_threshold_unless_one_is_given(run, tmp_path, capfd):
    for name, given in (("tuned", {}), ("given", {"qa": {"null_threshold": 1e5}})):
        xlnet_jax.finetune(task="squad2", init=run.workdir, predict=squad(), workdir=tmp_path / name, **given)
        printed = capfd.readouterr().out
        assert ("thresholds  of the checkpoint: qa.null_threshold" in printed) == (name == "tuned")
    assert written(tmp_path / "tuned", "predictions.json", "predict") == written(run.workdir, "predictions.json")
    assert all(written(tmp_path / "given", "predictions.json", "predict").values())


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


def test_questions_may_be_unanswerable_where_no_threshold_was_tuned(run, asked, tmp_path):
    tuned = xlnet_jax.load(run.checkpoint)
    assert tuned.settings().task == "squad2"
    xlnet_jax.save(replace(tuned, thresholds={NULL_THRESHOLD: None}), tmp_path / "hf", "hf")
    again = xlnet_jax.load(tmp_path / "hf")
    assert again.settings().task == "squad2"
    odds = written(run.workdir, "null_odds.json")
    assert [not p.value for p in again.predict(asked, seq_len=96)] == [odd > 0 for odd in odds.values()]


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
    config = replace(
        DEFAULTS[task](), model=start.model, head=head, objective="plm", multilabel=MultilabelConfig(0.501)
    )
    (tmp_path / "run" / CONFIG).write_text(json.dumps(with_version("checkpoint", to_dict(config))))
    write_checksums(tmp_path / "run")
    for to in ("native", "hf"):
        model = xlnet_jax.load(tmp_path / "run")
        assert model.thresholds == thresholds
        xlnet_jax.save(model, tmp_path / to, to)
        assert xlnet_jax.load(tmp_path / to).thresholds == thresholds
    if task == "multilabel":
        for value, probabilities in xlnet_jax.load(tmp_path / "hf").predict(GOOD, seq_len=16):
            assert value == tuple(name for name, p in probabilities.items() if p >= 0.501)


def test_thresholds_that_are_none_are_refused(run, tmp_path):
    xlnet_jax.save(xlnet_jax.load(run.checkpoint), tmp_path / "there")
    for content in ("[1]", '{"qa.null_threshold": "x"}', '{"multilabel.threshold": 2}', '{"a": 1}'):
        (tmp_path / "there" / THRESHOLDS).write_text(content)
        with pytest.raises(InputError, match=r"thresholds\.json"):
            xlnet_jax.load(tmp_path / "there")


def test_a_threshold_amid_two_odds_gives_the_same_answers():
    n_best = {id: [Candidate("x", 1, 0, 0)] for id in "abc"}
    answers = Answers(n_best, {"a": -2.0, "b": 1.0, "c": 4.0})
    for threshold, amid in ((-2.0, -0.5), (1.0, 2.5), (4.0, 5.0), (0.0, 0.0)):
        assert answers.amid(threshold) == amid
        assert answers.above(amid) == answers.above(threshold)

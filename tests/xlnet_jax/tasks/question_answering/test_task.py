"""Question answering against the original's conversion and predictions, and on a tiny network."""

import dataclasses
import json

import numpy as np
import pytest
from etils import epath

from data_pipelines.tokenizer import CLS, SEP, Tokenizer
from tests.xlnet_jax.random_models import SMALL, random_params
from tests.xlnet_jax.tasks.task_runs import metrics, outputs_and_loss, write
from xlnet_jax.errors import InputError
from xlnet_jax.models.heads import build_model
from xlnet_jax.tasks.config import QuestionAnsweringConfig, TaskDataConfig
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.question_answering.files import Question
from xlnet_jax.tasks.question_answering.scores import best_threshold, raw_scores
from xlnet_jax.tasks.question_answering.task import HEAD, NO_PLACE, DocumentWindow, QuestionAnswering, candidates


def task(name="squad2", seq_len=64, max_query_len=14, **qa):
    data, settings = (
        TaskDataConfig(batch_size=32, seq_len=seq_len, max_query_len=max_query_len),
        {"doc_stride": 24} | qa,
    )
    config = dataclasses.replace(DEFAULTS[name](), data=data, qa=QuestionAnsweringConfig(**settings))
    return QuestionAnswering(config)


@pytest.fixture(scope="module")
def converted(reference, tmp_path_factory):
    """The original's features, and our task, questions and features of the same."""
    theirs = json.loads((reference / "finetune_data" / "squad.json").read_text())
    path = tmp_path_factory.mktemp("squad") / "squad.json"
    path.write_text(json.dumps(theirs["dataset"]))
    ours = task()
    questions = ours.read([str(path)], "train")
    english = Tokenizer.load(reference / "data" / "spiece.model")
    features = {training: ours.features(questions, english, HEAD, training) for training in (True, False)}
    return theirs, ours, questions, features


@pytest.mark.parametrize("training", [True, False])
def test_features_are_the_originals(converted, training):
    theirs, _, _, of_kind = converted
    expected = theirs["train_features" if training else "predict_features"]
    features = of_kind[training]
    assert len(features) == len(expected)
    for i, feature in enumerate(expected):
        length = features.lengths[i]
        assert length == 64 - sum(feature["input_mask"])
        for name, tokens in (("input_ids", "input_ids"), ("segment_ids", "segment_ids"), ("p_mask", "excluded")):
            assert features.tokens[tokens][i].tolist() == feature[name][:length]
        assert features.positions["cls_index"][i] == feature["cls_index"]
        window = features.windows[i]
        assert window.starts_E.tolist() == feature["tok_start_to_orig_index"]
        assert window.ends_E.tolist() == feature["tok_end_to_orig_index"]
        assert window.is_widest_E.tolist() == [bool(w) for w in feature["token_is_max_context"]]
        if training:
            assert features.positions["start"][i] == feature["start_position"]
            assert features.positions["end"][i] == feature["end_position"]
            assert features.values["is_impossible"][i] == feature["is_impossible"]
        else:
            assert features.examples[i] == feature["example_index"]


def test_predictions_and_their_best_thresholds_are_the_originals(reference, converted, tmp_path):
    _, ours, questions, features = converted
    theirs = json.loads((reference / "finetune_data" / "squad_predictions.json").read_text())
    results = theirs["raw_results"]
    shape = (-1, theirs["start_n_top"], theirs["end_n_top"])
    outputs = {
        "start_log_probs": np.array([r["start_top_log_probs"] for r in results]),
        "start_index": np.array([r["start_top_index"] for r in results]),
        "end_log_probs": np.array([r["end_top_log_probs"] for r in results]).reshape(shape),
        "end_index": np.array([r["end_top_index"] for r in results]).reshape(shape),
        "unanswerable": np.array([r["cls_logits"] for r in results]),
    }
    names = write(ours, tmp_path, questions, features[False], outputs)
    assert names == ["predictions.json", "nbest_predictions.json", "null_odds.json"]
    predictions, n_best, null_odds = (json.loads((tmp_path / name).read_text(encoding="utf-8")) for name in names)
    assert null_odds == theirs["null_odds"]
    assert n_best.keys() == theirs["nbest"].keys()
    for id, candidates_ in theirs["nbest"].items():
        assert [c["text"] for c in n_best[id]] == [c["text"] for c in candidates_]
        for name in ("probability", "start_log_prob", "end_log_prob"):
            assert [c[name] for c in n_best[id]] == pytest.approx([c[name] for c in candidates_], abs=1e-12)
    evaluation = theirs["evaluation"]
    scores = raw_scores(questions, theirs["predictions"])
    for name, of_questions in scores.items():
        found = best_threshold(questions, theirs["predictions"], of_questions, null_odds)
        assert found == (evaluation[f"best_{name}"], evaluation[f"best_{name}_thresh"])
    above = {id for id, odds in null_odds.items() if odds > evaluation["best_f1_thresh"]}
    assert predictions == {id: "" if id in above else text for id, text in theirs["predictions"].items()}
    scores_found = metrics(ours, questions, features[False], outputs)
    common = evaluation.keys() & scores_found.keys()
    assert {name: scores_found[name] for name in common} == {name: evaluation[name] for name in common}
    assert scores_found["exact"] == evaluation["best_exact"]


QUESTIONS = [
    Question("a", "Who had tea?", "Emma had tea.", ("Emma",), (0,)),
    Question("b", "What had Emma?", "Emma had tea.", ("tea",), (9,)),
]


def test_a_beam_wider_than_the_text_is_filled_up(english):
    config = dataclasses.replace(SMALL, vocab_size=english.vocab_size, mem_len=0, num_layers=1)
    ours = task(n_best=90)
    features = ours.features(QUESTIONS[:1], english, HEAD, False)
    length, params = int(features.lengths[0]), random_params(config, HEAD)
    outputs, _ = outputs_and_loss(ours, build_model(config, HEAD), params, features, 1, length, "left")
    assert outputs["start_index"].shape == (1, 90)
    assert outputs["end_log_probs"].shape == (1, 90, 90)
    assert sorted(outputs["start_index"][0].tolist()) == [NO_PLACE] * (90 - length) + [*range(length)]
    assert metrics(ours, QUESTIONS[:1], features, outputs)["total"] == 1


def beam(*spans):
    """start, end, score"""
    starts, ends, scores = map(np.array, zip(*spans, strict=True))
    ends_of = {"end_log_probs": np.zeros((len(spans), 1)), "end_index": ends[:, None]}
    return {"start_log_probs": scores, "start_index": starts, **ends_of}


def test_only_possible_spans_are_candidates_and_equal_texts_count_once():
    context = "aa bb aa cc dd"
    at = np.arange(0, 15, 3)
    window = DocumentWindow(at, at + 1, np.array([True, True, True, False, True]))
    spans = beam((0, 0, -1), (2, 2, -2), (1, 0, 0), (-1, 1, 0), (3, 3, 0), (0, 4, 0), (0, 2, 0), (1, 1, -3))
    found = candidates(context, [window], [spans], 5, max_answer_len=2)
    assert [c.text for c in found] == ["aa", "bb"]
    assert found[0].start_log_prob == -1
    assert sum(c.probability for c in found) == pytest.approx(1)
    assert found[0].probability == pytest.approx(1 / (1 + np.exp(-2)))
    assert [c.text for c in candidates("text", [], [], 5, 9)] == [""]  # without windows


def test_long_questions_are_cut_and_answers_that_do_not_occur_are_not_learned(english, capsys):
    lost = Question("a", "why " * 40, "Emma had tea.", ("coffee",), (-1,))
    found = dataclasses.replace(lost, id="b", answers=("coffee", "tea"), starts=(-1, 9))
    ours = task(max_query_len=5)
    assert ours.features([lost, found], english, HEAD, True).examples.tolist() == [1]
    features = ours.features([lost, found], english, HEAD, False)
    assert features.examples.tolist() == [0, 1]
    ids = features.tokens["input_ids"][0].tolist()
    assert [i for i, id in enumerate(ids) if id == SEP] == [len(ids) - 8, len(ids) - 2]
    assert ids[-1] == CLS
    with pytest.raises(InputError, match="no answer occurs in its text"):
        ours.features([lost], english, HEAD, True)
    odd = Question("a", "why?", "½⅓¼⅕⅙", ("½",), (0,))
    assert ours.features([odd, found], english, HEAD, True).examples.tolist() == [1]
    assert "1 of 2 texts are skipped" in capsys.readouterr().err  # whose characters are not those of its tokens


def test_each_task_has_its_official_scores(english, tmp_path):
    outputs = {name: np.repeat(value[None], 2, axis=0) for name, value in beam((0, 0, -1)).items()}
    for name, metric, scores in (
        ("squad", "f1", {"exact", "f1"}),
        ("squad2", "best_f1", {"exact", "HasAns_f1", "best_exact", "best_f1_thresh"}),
        ("cmrc2018", "f1", {"em", "f1", "average"}),
        ("drcd", "f1", {"em", "f1", "average"}),
    ):
        ours = task(name)
        features = ours.features(QUESTIONS, english, HEAD, False)
        answers = ours.answers(QUESTIONS, features, outputs | {"unanswerable": np.zeros(2)})
        assert ours.metric == metric
        assert scores <= ours.metrics(QUESTIONS, answers).keys()
        assert ("null_odds.json" in ours.write(epath.Path(tmp_path), QUESTIONS, answers)) == (name == "squad2")


CONTEXT = "The tea was cold. The tea of Bath was warm."


def squad(*questions):
    return {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": list(questions)}]}]}


def asked(id="q", *answers, **more):
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id, "question": "Which tea?", "answers": found, **more}


@pytest.fixture
def read(tmp_path):
    def read(content):
        (tmp_path / "data.json").write_text(json.dumps(content))
        return task().read([str(tmp_path / "data.json")], "train")

    return read


def test_squad_form_is_read_with_its_unanswerable_questions(read):
    first, second = read(squad(asked("a", ("cold", 12), ("was cold", 8)), asked("b", is_impossible=True)))
    assert (first.id, first.question, first.context) == ("a", "Which tea?", CONTEXT)
    assert (first.answers, first.starts) == (("cold", "was cold"), (12, 8))
    assert (first.is_impossible, second.is_impossible, second.answers) == (False, True, ())


def test_cmrc_form_is_read_with_the_first_place_of_its_answers(read, capsys):
    question = {"query_id": "Q0", "query_text": "什么茶？", "answers": ["茶", "没有"]}
    (found,) = read([{"context_id": "C0", "context_text": "热茶和冷茶", "qas": [question], "title": "茶"}])
    assert (found.id, found.question, found.context) == ("Q0", "什么茶？", "热茶和冷茶")
    assert (found.answers, found.starts) == (("茶", "没有"), (1, -1))
    assert found.answer == ("茶", 1)
    assert capsys.readouterr().err == ""


def test_answers_are_moved_to_the_nearest_place_where_they_occur_and_counted(read, capsys):
    near, far, lost, both = read(
        squad(asked("a", ("tea", 1)), asked("b", ("tea", 30)), asked("c", ("milk", 3)), asked("d", ("x", 0), ("of", 0)))
    )
    assert (near.starts[0], far.starts[0]) == (4, 22)
    assert lost.answer is None
    assert both.answer == ("of", both.starts[1])
    (line,) = capsys.readouterr().err.splitlines()
    assert "3 answers were not at their answer_start and were moved" in line
    assert "1 questions are skipped in training, as no answer of theirs occurs in its text (c)" in line


def test_published_cmrc_is_mended_and_converted(published, capsys):
    path = published("finetune/cmrc2018/cmrc2018_trial.json")
    found = task("cmrc2018").read([str(path)], "train")
    assert len(found) == 1002
    assert all(q.context.startswith(*answer) for q in found for answer in zip(q.answers, q.starts, strict=True))
    assert "5 answers were not at their answer_start" in capsys.readouterr().err
    found = found[:40]
    chinese = Tokenizer.train(sorted({q.context for q in found}), 1_200, "auto")
    features = task("cmrc2018", seq_len=128).features(found, chinese, HEAD, True)
    shown = set()
    for i, example in enumerate(features.examples):
        start, end, window = features.positions["start"][i], features.positions["end"][i], features.windows[i]
        if start < len(window.starts_E):
            answer = found[example].answer[0]
            text = found[example].context[window.starts_E[start] : window.ends_E[end] + 1]
            assert answer in text
            assert len(text) <= len(answer) + 8
            shown.add(example)
    assert len(shown) >= 30

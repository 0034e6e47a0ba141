"""Baselines: what each family's trivial answer scores, and the lines that a run prints beside it."""

import math

import pytest

from tests.xlnet_jax.tasks.task_runs import asked, json_lines
from xlnet_jax.errors import InputError
from xlnet_jax.settings.fields import with_values
from xlnet_jax.tasks.baseline import Baseline, measure_baseline
from xlnet_jax.tasks.defaults import DEFAULTS, make_task


def labelled(*labels):
    return [{"text": f"text {i}", "label": label} for i, label in enumerate(labels)]


def baseline_of(task, train, held_out, tokenizer, folder, metric):
    """The baseline of rows to learn from and rows to evaluate."""
    made = make_task(with_values(DEFAULTS[task](), {"selection.metric": metric}))
    train, held_out = (
        made.read(json_lines(folder / f"{name}.jsonl", rows), name)
        for name, rows in (("train", train), ("eval", held_out))
    )
    made.features(held_out, tokenizer, made.head(train), training=False)
    return measure_baseline(made, train, held_out)


def choices(*answers):
    """Questions with options, by their right letters."""
    return [{"context": "c", "question": "q", "options": list("xyz"), "answer": a} for a in answers]


def questions(*answers):
    """Questions about a text, by their answers; "" = unanswerable."""
    return [asked("when?", "she walked on monday and on friday", *filter(None, [answer])) for answer in answers]


BINARY, MONDAYS = labelled("0", "0", "1"), questions("monday", "monday", "friday")
WORDS = [{"words": ["she", "met", "Ann"], "labels": ["O", "O", "B-PER"]}]


@pytest.mark.parametrize(
    ("task", "train", "held_out", "metric", "described"),
    [
        ("classification", labelled("a", "b", "b"), labelled("a", "a", "a", "b"), None,
         '0.25 accuracy: always answers "b", the most frequent label'),
        ("classification", BINARY, BINARY, "f1", '0.5 f1: always answers "1", the label that F1 counts'),
        ("multilabel", labelled(["a"], ["b", "a"], ["a", "b"], []), labelled(["a", "b"], ["b"]), None,
         "0.8571 micro_f1: always answers a,b, the most frequent set of labels"),
        ("multilabel", labelled([], [], ["a"], ["b"]), labelled(["a"], []), None,
         "0.6667 micro_f1: always answers a, the most frequent label"),
        ("regression", labelled(1.0, 2.0, 6.0), labelled(1.0, 2.0), None,
         "0 pearson: always answers 3, the mean, which correlates with nothing"),
        ("multiple_choice", choices("C", "B", "B"), choices("B", "A", "B"), None,
         "0.6667 accuracy: always answers B, the option that is right most often"),
        ("multiple_choice", choices("B"), choices("A", "A", "C", "C"), None,
         "0.3333 accuracy: guesses one of the options"),
        ("ner", WORDS, WORDS, None, "0.5 f1: labels every word B-PER, the most frequent label of an entity"),
        ("ner", WORDS, WORDS, "accuracy", "0.6667 accuracy: labels every word O, the most frequent label"),
        ("squad", MONDAYS, questions("monday", "friday"), None,
         '50 f1: always answers "monday", the most frequent answer'),
        ("cmrc2018", MONDAYS, questions("friday"), None, "0 f1: never answers"),
        ("squad2", MONDAYS, questions("monday", "", ""), None, "66.67 best_f1: never answers"),
    ],
)  # fmt: skip
def test_a_baseline_is_the_best_answer_without_the_text(task, train, held_out, metric, described, tokenizer, tmp_path):
    assert baseline_of(task, train, held_out, tokenizer, tmp_path, metric).describe() == described


def test_documents_are_in_random_order(tokenizer, tmp_path):
    documents = json_lines(tmp_path / "documents.jsonl", [{"id": f"d{i}", "text": f"text {i}"} for i in range(50)])
    queries = json_lines(tmp_path / "queries.jsonl", [{"id": f"q{i}", "text": f"query {i}"} for i in range(40)])
    qrels = tmp_path / "qrels"
    qrels.write_text("".join(f"q{i} 0 d{i} 1\n" for i in range(40)))
    values = {"ranking.documents": (*documents,), "ranking.queries": (*queries,)}
    task = make_task(with_values(DEFAULTS["ranking"](), values))
    found = measure_baseline(task, (), task.read([str(qrels)], "eval"))
    assert found.answer == "ranks the same documents in random order, the mean of 20"
    # One relevant document of 50 has each rank equally often.
    assert found.metrics["mrr"] == pytest.approx(sum(1 / rank for rank in range(1, 51)) / 50, abs=0.02)
    assert found.value == pytest.approx(sum(1 / math.log2(rank + 1) for rank in range(1, 21)) / 50, abs=0.03)


def test_a_metric_that_the_task_lacks_is_refused_before_training(tokenizer, tmp_path):
    with pytest.raises(InputError, match=r"`selection\.metric` f2: the task has accuracy, f1"):
        baseline_of("ner", WORDS, WORDS, tokenizer, tmp_path, "f2")


@pytest.mark.parametrize(
    ("value", "examples", "lines"),
    [
        (0.8, 100, ["accuracy 0.8, 0.3 above the baseline 0.5"]),
        (0.5, 100, ["not above the baseline: accuracy 0.5, baseline 0.5 (always answers a); try"]),
        (math.nan, 9, ["not above the baseline: accuracy nan, baseline 0.5 (always answers a); try"]),
        (0.54, 50, ["accuracy 0.54, 0.04 above", "not above the baseline beyond chance: on 50 examples, the diff"]),
        (1.0, 4, ["accuracy 1, 0.5 above the baseline 0.5"]),
    ],
)
def test_a_score_stands_beside_its_baseline(value, examples, lines):
    found = Baseline("always answers a", "accuracy", {"accuracy": 0.5}, examples, 1.0).compare({"accuracy": value})
    assert len(found) == len(lines)
    assert all(line.startswith(start) for line, start in zip(found, lines, strict=True))
    assert all("--steps" in line for line in found if line.startswith("not"))


def test_a_small_correlation_is_chance():
    baseline = Baseline("the mean", "pearson", {"pearson": 0.0}, 100, 1.0)
    assert [len(baseline.compare({"pearson": value})) for value in (0.1, 0.5)] == [2, 1]

"""Baselines: what each family's trivial answer scores, and the lines that a run prints beside it."""

import json
import math

import pytest

from tests.xlnet_jax.tasks.test_run import words
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError
from xlnet_jax.settings.fields import with_values
from xlnet_jax.tasks.baseline import Baseline, measure_baseline
from xlnet_jax.tasks.defaults import DEFAULTS, make_task
from xlnet_jax.training.metrics import read_records

finetune = COMMANDS["finetune"]


def written(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def labelled(*labels):
    return [{"text": f"text {i}", "label": label} for i, label in enumerate(labels)]


def baseline_of(task, train, held_out, tokenizer, folder, **values):
    """The baseline of rows to learn from and rows to evaluate."""
    made = make_task(with_values(DEFAULTS[task](), values))
    train, held_out = (
        made.read([written(folder / f"{name}.jsonl", rows)], name)
        for name, rows in (("train", train), ("eval", held_out))
    )
    made.features(held_out, tokenizer, made.head(train), training=False)
    return measure_baseline(made, train, held_out)


def test_a_label_is_the_most_frequent_one_of_the_training_examples(tokenizer, tmp_path):
    found = baseline_of("classification", labelled("a", "b", "b"), labelled("a", "a", "a", "b"), tokenizer, tmp_path)
    assert found.describe() == '0.25 accuracy: always answers "b", the most frequent label'
    assert found.metrics["f1"] == pytest.approx(0.4)
    assert found.metrics["mcc"] == 0.0


def test_a_label_is_the_one_that_f1_counts_if_that_scores_more(tokenizer, tmp_path):
    rows = labelled("0", "0", "1")
    found = baseline_of("classification", rows, rows, tokenizer, tmp_path, **{"selection.metric": "f1"})
    assert found.describe() == '0.5 f1: always answers "1", the label that F1 counts'


def test_several_labels_are_the_most_frequent_set_or_label(tokenizer, tmp_path):
    train = labelled(["a"], ["b", "a"], ["a", "b"], [])
    found = baseline_of("multilabel", train, labelled(["a", "b"], ["b"]), tokenizer, tmp_path)
    assert found.describe() == "0.8571 micro_f1: always answers a,b, the most frequent set of labels"
    found = baseline_of("multilabel", labelled([], [], ["a"], ["b"]), labelled(["a"], []), tokenizer, tmp_path)
    assert found.describe() == "0.6667 micro_f1: always answers a, the most frequent label"


def test_a_number_is_the_mean_and_correlates_with_nothing(tokenizer, tmp_path):
    found = baseline_of("regression", labelled(1.0, 2.0, 6.0), labelled(1.0, 2.0), tokenizer, tmp_path)
    assert found.describe() == "0 pearson: always answers 3, the mean, which correlates with nothing"
    assert found.metrics["spearman"] == 0


def test_an_option_is_the_one_that_is_right_most_often_or_a_guess(tokenizer, tmp_path):
    def asked(*answers):
        return [{"context": "c", "question": "q", "options": list("xyz"), "answer": a} for a in answers]

    found = baseline_of("multiple_choice", asked("C", "B", "B"), asked("B", "A", "B"), tokenizer, tmp_path)
    assert found.describe() == "0.6667 accuracy: always answers B, the option that is right most often"
    found = baseline_of("multiple_choice", asked("B"), asked("A", "A", "C", "C"), tokenizer, tmp_path)
    assert found.describe() == "0.3333 accuracy: guesses one of the options"


def test_words_have_the_most_frequent_label(tokenizer, tmp_path):
    rows = [{"words": ["she", "met", "Ann"], "labels": ["O", "O", "B-PER"]}]
    found = baseline_of("ner", rows, rows, tokenizer, tmp_path)
    assert found.describe() == "0.5 f1: labels every word B-PER, the most frequent label of an entity"
    found = baseline_of("ner", rows, rows, tokenizer, tmp_path, **{"selection.metric": "accuracy"})
    assert found.describe() == "0.6667 accuracy: labels every word O, the most frequent label"


def questions(*answers):
    context = "she walked on monday and on friday"
    return [
        {
            "id": str(i), "context": context, "question": "when?",
            "answers": {"text": [a] * bool(a), "answer_start": [context.find(a)] * bool(a)},
        }
        for i, a in enumerate(answers)
    ]  # fmt: skip


def test_a_question_has_no_answer_or_the_most_frequent_one(tokenizer, tmp_path):
    train, held_out = questions("monday", "monday", "friday"), questions("monday", "friday")
    found = baseline_of("squad", train, held_out, tokenizer, tmp_path)
    assert found.describe() == '50 f1: always answers "monday", the most frequent answer'
    found = baseline_of("cmrc2018", train, questions("friday"), tokenizer, tmp_path)
    assert found.describe() == "0 f1: never answers"
    found = baseline_of("squad2", train, questions("monday", "", ""), tokenizer, tmp_path)
    assert found.describe() == "66.67 best_f1: never answers"


def test_documents_are_in_random_order(tokenizer, tmp_path):
    written(tmp_path / "documents.jsonl", [{"id": f"d{i}", "title": "", "text": f"text {i}"} for i in range(50)])
    written(tmp_path / "queries.jsonl", [{"id": f"q{i}", "text": f"query {i}"} for i in range(40)])
    qrels = tmp_path / "qrels"
    qrels.write_text("".join(f"q{i} 0 d{i} 1\n" for i in range(40)))
    values = {"ranking.documents": (f"{tmp_path}/documents.jsonl",), "ranking.queries": (f"{tmp_path}/queries.jsonl",)}
    task = make_task(with_values(DEFAULTS["ranking"](), values))
    found = measure_baseline(task, (), task.read([str(qrels)], "eval"))
    assert found.answer == "ranks the same documents in random order, the mean of 20"
    # One relevant document of 50 has each rank equally often.
    assert found.metrics["mrr"] == pytest.approx(sum(1 / rank for rank in range(1, 51)) / 50, abs=0.02)
    assert found.value == pytest.approx(sum(1 / math.log2(rank + 1) for rank in range(1, 21)) / 50, abs=0.03)


def test_a_metric_that_the_task_lacks_is_refused_before_training(tokenizer, tmp_path):
    rows = [{"words": ["she"], "labels": ["O"]}]
    with pytest.raises(InputError, match=r"`selection\.metric` f2: the task has accuracy, f1"):
        baseline_of("ner", rows, rows, tokenizer, tmp_path, **{"selection.metric": "f2"})


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


def test_a_run_at_chance_says_so_and_keeps_its_baseline(pretrained, table, tmp_path, capsys):
    argv = words(pretrained, table, tmp_path / "run", "--optimizer.learning-rate", "1e-12", "--seeds", "0", "1")
    assert finetune.main(argv) == 0
    printed = capsys.readouterr().out
    assert 'baseline    0.5 accuracy: always answers "bad", the most frequent label\n' in printed
    assert "not above the baseline" in printed.partition("mean of the seeds:")[2]
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert results["baseline"]["metrics"]["accuracy"] == 0.5
    assert json.loads((tmp_path / "run/seed-0/results.json").read_text())["baseline"] == results["baseline"]
    records = [r for r in read_records(tmp_path / "run/seed-0/metrics.jsonl") if r["split"] == "validation"]
    assert {r["baseline"] for r in records} == {0.5}

"""The published tasks by name: their columns, the order of their labels, their metrics, by their definitions, and
GLUE's submissions."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.xlnet_jax.tasks.task_runs import metrics, write
from xlnet_jax.tasks.classification.glue import classification_scores, multilabel_scores, regression_scores
from xlnet_jax.tasks.classification.task import TextExample
from xlnet_jax.tasks.defaults import DEFAULTS, make_task
from xlnet_jax.tasks.features import Features

# header of the published TSV (CoLA and Yelp have none), a line, its text, second text and label, and the same line as
# TFDS and Hugging Face have it.
MNLI_HEADER = "index promptID pairID genre s1_binary s2_binary s1_parse s2_parse sentence1 sentence2 label1 gold_label"
PAIR = {"sentence1": "A b", "sentence2": "C"}
CASES = {
    "cola": ("", "gj04|0|*|A b", "A b", None, "0", {"sentence": "A b", "label": 0}),
    "sst-2": ("sentence label", "A b|1", "A b", None, "1", {"sentence": "A b", "label": 1}),
    "mrpc": ("Quality|#1 ID|#2 ID|#1 String|#2 String", "1|7|8|A b|C", "A b", "C", "1", {**PAIR, "label": 1}),
    "qqp": (
        "id qid1 qid2 question1 question2 is_duplicate", "3|1|2|A b|C|0", "A b", "C", "0",
        {"question1": "A b", "question2": "C", "label": 0},
    ),
    "sts-b": (
        "index genre filename year old_index source1 source2 sentence1 sentence2 score", "0|n|n|n|n|n|n|A b|C|4.75",
        "A b", "C", 4.75, {**PAIR, "label": 4.75},
    ),
    "mnli": (
        MNLI_HEADER, "0|1|2|f|x|x|x|x|A b|C|neutral|contradiction", "A b", "C", "contradiction",
        {"premise": "A b", "hypothesis": "C", "label": 2},
    ),
    "qnli": (
        "index question sentence label", "0|A b|C|not_entailment", "A b", "C", "not_entailment",
        {"question": "A b", "sentence": "C", "label": 1},
    ),
    "rte": ("index sentence1 sentence2 label", "0|A b|C|entailment", "A b", "C", "entailment", {**PAIR, "label": 0}),
    "ax": (
        "Lexical Semantics|Domain|Premise|Hypothesis|Label", "|News|A b|C|neutral", "A b", "C", "neutral",
        {"premise": "A b", "hypothesis": "C", "label": 1},
    ),
}  # fmt: skip


def task(name):
    return make_task(DEFAULTS[name]())


def tabbed(line):
    return line.replace("|", "\t") if "|" in line else line.replace(" ", "\t")


@pytest.mark.parametrize("name", CASES)
def test_a_task_is_read_from_its_published_files_and_from_the_hubs(tmp_path, name):
    header, line, text, pair, label, of_hub = CASES[name]
    (tmp_path / "dev.tsv").write_text("".join(tabbed(x) + "\n" for x in (header, line) if x))
    pq.write_table(pa.Table.from_pylist([of_hub]), tmp_path / "dev.parquet")
    for file in ("dev.tsv", "dev.parquet"):
        (example,) = task(name).read([str(tmp_path / file)], "eval")
        assert (example.texts, example.label) == ((text,) if pair is None else (text, pair), label)


@pytest.mark.parametrize(
    ("name", "header", "line", "file"),
    [
        ("mrpc", "index|#1 ID|#2 ID|#1 String|#2 String", "7|1|2|A b|C", "MRPC.tsv"),
        ("ax", "index sentence1 sentence2", "7|A b|C", "AX.tsv"),
        ("sts-b", "index sentence1 sentence2", "7|A b|C", "STS-B.tsv"),
    ],
)
def test_predictions_for_a_test_file_are_a_submission_to_glue(tmp_path, name, header, line, file):
    (tmp_path / "test.tsv").write_text(tabbed(header) + "\n" + tabbed(line) + "\n")
    glue = task(name)
    examples = glue.read([str(tmp_path / "test.tsv")], "predict")
    glue.features([], NoTokenizer, glue.head([]), False)
    labels = glue.head([]).labels
    outputs = {"scores": np.array([5.5])} if name == "sts-b" else {"log_probs": np.log(np.eye(len(labels))[-1:] + 1e-9)}
    written = write(glue, tmp_path, examples, items(1), outputs)
    assert written == ["predictions.tsv", file]
    answer = "5.000" if name == "sts-b" else labels[-1]
    assert (tmp_path / file).read_text() == f"index\tprediction\n7\t{answer}\n"


class NoTokenizer:
    """For examples that are none."""

    encode_lines = staticmethod(list)


def items(number):
    return Features({}, {}, np.arange(number))


def test_labels_have_the_originals_order():
    assert {name: task(name).head([]).labels for name in CASES if name != "sts-b"} == {
        **dict.fromkeys(("cola", "sst-2", "mrpc", "qqp"), ("0", "1")),
        **dict.fromkeys(("mnli", "ax"), ("contradiction", "entailment", "neutral")),
        **dict.fromkeys(("qnli", "rte"), ("entailment", "not_entailment")),
    }


def test_mnli_is_read_and_measured_in_its_two_parts(tmp_path):
    for part, labels in (("matched", ["neutral"] * 3), ("mismatched", ["entailment", "neutral"])):
        lines = [f"{i}|1|2|f|x|x|x|x|A|B|{label}|{label}" for i, label in enumerate(labels)]
        text = "\n".join(tabbed(x) for x in (MNLI_HEADER, *lines)) + "\n"
        (tmp_path / f"dev_{part}.tsv").write_text(text)
        (tmp_path / f"test_{part}.tsv").write_text(text)
    mnli, here = task("mnli"), [str(tmp_path)]
    mnli.features([], NoTokenizer, mnli.head([]), False)
    all_neutral = {"log_probs": np.log(np.array([[0.1, 0.2, 0.7]] * 5))}
    found = metrics(mnli, mnli.read(here, "eval"), items(5), all_neutral)
    assert (found["accuracy"], found["accuracy_m"], found["accuracy_mm"]) == (0.8, 1.0, 0.5)
    unlabelled = mnli.read(here, "predict")
    assert write(mnli, tmp_path, unlabelled, items(5), all_neutral)[1:] == ["MNLI-m.tsv", "MNLI-mm.tsv"]
    assert (tmp_path / "MNLI-mm.tsv").read_text() == "index\tprediction\n0\tneutral\n1\tneutral\n"


def test_tasks_of_two_metrics_are_chosen_by_their_mean():
    mrpc = task("mrpc")
    mrpc.features([], NoTokenizer, mrpc.head([]), False)
    examples = [TextExample("0", ("a",), label, "a.tsv: line 2") for label in "1100"]
    found = metrics(mrpc, examples, items(4), {"log_probs": np.log(np.array([[0.1, 0.9]] * 4))})
    assert found["average"] == pytest.approx((0.5 + 2 / 3) / 2)
    assert {name: task(name).metric for name in (*CASES, "imdb")} == {
        **dict.fromkeys(("cola", "ax"), "mcc"),
        **dict.fromkeys(("mrpc", "qqp", "sts-b"), "average"),
        **dict.fromkeys(("sst-2", "mnli", "qnli", "rte", "imdb"), "accuracy"),
    }


def test_quora_lines_that_are_published_incomplete_are_left_out(tmp_path, capsys):
    header = tabbed("id qid1 qid2 question1 question2 is_duplicate")
    (tmp_path / "train.tsv").write_text(f"{header}\n1\t1\t2\ta\tb\t0\n2\t3\t4\ta\n3\t5\t6\ta\t\t1\n")
    first, second = task("qqp").read([str(tmp_path / "train.tsv")], "train")
    assert (first.texts, second.texts) == (("a", "b"), ("a",))  # as the original, to which an empty text is none
    assert "1 incomplete lines left out" in capsys.readouterr().err


def test_reviews_are_read_as_they_are_published(tmp_path):
    (tmp_path / "train.csv").write_text('"5","It was ""so"" \\""good\\"".\\nYes."\n')
    (yelp,) = task("yelp-5").read([str(tmp_path / "train.csv")], "train")
    assert (*yelp.texts, yelp.label) == ('It was "so" "good".\nYes.', "5")
    for place in ("train/neg/0_1.txt", "train/pos/0_9.txt", "train/unsup/0.txt", "test/pos/8.txt", "test/neg/1.txt"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(f"{place}<br />")
    (tmp_path / "train.csv").unlink()
    examples = task("imdb").read([str(tmp_path)], "train")
    assert [(*e.texts, e.label) for e in examples] == [
        (f"train/{x}<br />", x[:3]) for x in ("neg/0_1.txt", "pos/0_9.txt")
    ]
    assert [e.label for e in task("imdb").read([str(tmp_path)], "eval")] == ["neg", "pos"]


def test_each_task_starts_from_the_settings_of_the_paper_or_the_original():
    for name, expected in (
        ("mnli", (128, 128, 2e-5, 10_000)),
        ("yelp-5", (512, 128, 1e-5, 10_000)),
        ("sts-b", (128, 32, 5e-5, 1_200)),
        ("imdb", (512, 32, 2e-5, 4_000)),
    ):
        c = DEFAULTS[name]()
        assert (c.data.seq_len, c.data.batch_size, c.optimizer.learning_rate, c.steps) == expected
        o, m = c.optimizer, c.model
        assert (o.eps, o.weight_decay, o.layer_decay, m.dropout, m.attention_dropout) == (1e-6, 0.01, 1.0, 0.1, 0.1)


def pearson(x, y):
    dx, dy = x - x.mean(0), y - y.mean(0)
    return (dx * dy).sum() / math.sqrt((dx**2).sum() * (dy**2).sum())


def f1(predicted, true, label):
    right = ((predicted == label) & (true == label)).sum()
    return 2 * right / ((predicted == label).sum() + (true == label).sum())


def test_scores_of_labels_are_those_of_their_definitions():
    predicted, true = np.random.default_rng(0).integers(0, 2, (2, 40))
    accuracy = (predicted == true).mean()
    expected = {"accuracy": accuracy, "f1": f1(predicted, true, 1), "mcc": pearson(predicted, true)}
    assert classification_scores(predicted, true, 2) == pytest.approx(expected)
    predicted, true = np.random.default_rng(0).integers(0, 4, (2, 50))
    scores = classification_scores(predicted, true, 6)  # two labels are neither there nor predicted
    assert scores["f1"] == pytest.approx(np.mean([f1(predicted, true, label) for label in range(4)]))
    # As the correlation of all pairs of indicators (Gorodkin 2004, equation 8).
    assert scores["mcc"] == pytest.approx(pearson(*(np.eye(4)[labels] for labels in (predicted, true))))


def test_a_constant_answer_has_no_correlation():
    true = np.array([0, 1, 1, 0])
    assert classification_scores(np.ones(4, int), true, 2)["mcc"] == 0
    for predicted in (np.ones(4), np.array([1.0, np.nan, 2.0, 3.0])):
        assert regression_scores(predicted, true.astype(float)) == {"pearson": 0, "spearman": 0}


def test_scores_of_several_labels_are_those_counted_by_hand():
    # F1 of the labels: 1, 1/2, and 0 for one that never occurs; all decisions: 3 hits of 4 given and 4 predicted.
    true = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0]], bool)
    predicted = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 1, 0]], bool)
    assert multilabel_scores(predicted, true) == pytest.approx({"micro_f1": 0.75, "macro_f1": 0.5, "accuracy": 0.5})

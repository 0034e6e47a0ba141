"""Labels of different frequency: weights in the loss, balanced batches, and where there is nothing to balance."""

import os
import signal
from collections import Counter

import numpy as np
import pytest
from rich.console import Console

import xlnet_jax
from tests.xlnet_jax.tasks.conftest import BAD, GOOD, finetune, words
from tests.xlnet_jax.tasks.task_runs import json_lines
from xlnet_jax.errors import RESTART, InputError
from xlnet_jax.interop.weights import flatten
from xlnet_jax.tasks.config import TaskDataConfig
from xlnet_jax.tasks.defaults import DEFAULTS, parse_finetuning
from xlnet_jax.tasks.features import Features, TrainingBatches, weigh_labels
from xlnet_jax.tasks.prepare import prepare
from xlnet_jax.training.callbacks import ProgressBar
from xlnet_jax.training.workdir import Workdir

DATA = TaskDataConfig(batch_size=8, seq_len=64)
SKEWED = np.repeat([0, 1, 3], [170, 25, 5]).astype(np.int32)  # no example of label 2


def features_of(labels, **values):
    tokens = [np.full(5, 9, np.int32) for _ in labels]
    return Features({"input_ids": tokens}, {"labels": labels, **values}, np.arange(len(labels)))


def test_weights_are_those_that_scikit_learn_calls_balanced():
    counts = Counter(SKEWED.tolist())
    expected = [len(SKEWED) / (len(counts) * counts[label]) for label in SKEWED.tolist()]
    np.testing.assert_allclose(weigh_labels(features_of(SKEWED)), expected, rtol=1e-6)
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.utils import class_weight as utils

    np.testing.assert_allclose(expected, utils.compute_sample_weight("balanced", SKEWED))


def test_words_without_a_label_have_no_weight_and_count_for_none():
    labels, mask = np.array([[0, 0, 1, 0], [0, 0, 0, 0]], np.int32), np.float32([[1, 1, 1, 0], [1, 0, 0, 0]])
    weights = weigh_labels(features_of(labels, target_weights=mask))
    np.testing.assert_allclose(weights, [[2 / 3, 2 / 3, 2, 0], [2 / 3, 0, 0, 0]], rtol=1e-6)


def sampled(start, stop, seed=0):
    batches = TrainingBatches(lambda _: features_of(SKEWED), DATA, seed, sampled=True)
    return [b["labels"][b["target_weights"] > 0].tolist() for b in batches.iterate(start, stop, np.arange(8))]


def test_balanced_batches_have_each_label_about_equally_often_and_depend_on_seed_and_step_alone():
    straight = sampled(0, 500)
    shares = np.bincount(np.concatenate(straight), minlength=4) / sum(map(len, straight))
    np.testing.assert_allclose(shares, [1 / 3, 1 / 3, 0, 1 / 3], atol=0.03)
    assert sampled(137, 260) == straight[137:260]
    assert sampled(0, 10, seed=1) != straight[:10]
    assert {len(batch) for batch in straight} == {8}


def test_sentences_are_drawn_by_the_mean_weight_of_their_words():
    labels = np.zeros((100, 2), np.int32)
    labels[:10, 0] = 1
    tokens = {"input_ids": [np.full(5, 9, np.int32)] * 100}
    features = Features(tokens, {"labels": labels, "target_weights": np.ones((100, 2), np.float32)}, np.arange(100))
    batches = TrainingBatches(lambda _: features, DATA, 0, sampled=True).iterate(0, 650, np.arange(8))
    with_rare = np.concatenate([b["labels"][:, 0][b["target_weights"][:, 0] > 0] for b in batches]).mean()
    rare, frequent = 200 / (2 * 10), 200 / (2 * 190)
    assert with_rare == pytest.approx(10 * (rare + frequent) / (10 * (rare + frequent) + 90 * 2 * frequent), abs=0.03)


@pytest.fixture
def skewed(tmp_path):
    rows = [f"{label}\t{text}" for texts, label in ((GOOD, "good"), (BAD[:1], "bad")) for text in texts]
    (tmp_path / "skewed.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    return tmp_path / "skewed.tsv"


@pytest.mark.parametrize("balance", ["weights", "sampling"])
def test_a_balanced_run_that_is_stopped_goes_on_bit_for_bit(pretrained, skewed, tmp_path, monkeypatch, balance):
    on_step, argv = ProgressBar.on_step, words(pretrained, skewed, tmp_path / "run", "--balance", balance)

    def stopped_after_five(bar, loop, step, numbers):
        on_step(bar, loop, step, numbers)
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(ProgressBar, "on_step", stopped_after_five)
        assert finetune.main(argv) == RESTART
    assert finetune.main(argv) == 0
    others = {}
    for name in (balance, "none"):
        others[name] = tmp_path / name
        assert finetune.main(words(pretrained, skewed, others[name], "--balance", name)) == 0
    ours, straight, plain = (
        flatten(xlnet_jax.load(folder / "checkpoints" / "12").params) for folder in (tmp_path / "run", *others.values())
    )
    assert all(np.array_equal(ours[path], straight[path]) for path in straight)
    assert not all(np.array_equal(ours[path], plain[path]) for path in plain)


@pytest.mark.parametrize("task", ["classification", "ner"])
def test_training_is_weighted_and_evaluation_is_not(task, pretrained, skewed, tmp_path):
    sentences = [{"words": text.split(), "labels": ["O"] * (len(text.split()) - 1) + ["B-X"]} for text in GOOD]
    names = [str(skewed)] if task == "classification" else json_lines(tmp_path / "words.jsonl", sentences)
    argv = f"--task {task} --init {pretrained} --balance weights --data.seq-len 32 --train {names[0]} --eval {names[0]}"
    config = parse_finetuning([*argv.split(), "--workdir", str(tmp_path / "run")], "finetune", "")
    prepared = prepare(config, 0, [Workdir(tmp_path / "run")], Console(quiet=True))
    assert len(np.unique(prepared.training_features(0).values["target_weights"])) >= 2
    of_eval = prepared.splits["eval"].features.values
    assert "target_weights" not in of_eval or set(np.unique(of_eval["target_weights"])) <= {0, 1}


@pytest.mark.parametrize("task", sorted(set(DEFAULTS) - {"classification", "ner", "token_classification"}))
def test_only_classification_and_tagging_have_classes_to_balance(task):
    if DEFAULTS[task]().head.task == "classification":
        return
    argv = f"--task {task} --init tiny --train x.tsv --balance weights".split()
    with pytest.raises(InputError, match=rf"`balance` weights: `task` {task} has no classes to balance: leave it out"):
        parse_finetuning(argv, "finetune", "")

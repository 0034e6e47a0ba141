"""The head of a checkpoint is taken over by the names of its labels."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.xlnet_jax.random_models import SMALL, random_model
from xlnet_jax.interop.weights import abstract_params, nest
from xlnet_jax.models.heads import build_model
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.prepare import weights_of

LABELS = ("contradiction", "entailment", "neutral")
IDS = np.random.default_rng(0).integers(9, SMALL.vocab_size, (2, 6)).astype(np.int32)


def taken_over(start, head):
    return weights_of(start, head, nest(abstract_params(start.model, head)))


def scores_by_label(model, params, head):
    mask = () if head.task == "token_classification" else (np.ones_like(IDS),)
    scores = build_model(model, head).apply({"params": params}, text_inputs(IDS), *mask)
    return {label: np.asarray(scores)[..., i] for i, label in enumerate(head.labels)}


@pytest.mark.parametrize("task", ["classification", "multilabel", "token_classification"])
@pytest.mark.parametrize("order", [LABELS, LABELS[::-1], (LABELS[1], LABELS[2], LABELS[0])])
def test_each_label_keeps_its_scores_in_whatever_order_the_labels_come(task, order):
    head = HeadConfig(task, 3, labels=LABELS)
    start = random_model(SMALL, head)
    wanted = dataclasses.replace(head, labels=order)
    params, drawn = taken_over(start, wanted)
    assert not drawn
    before, after = scores_by_label(SMALL, start.params, head), scores_by_label(SMALL, params, wanted)
    for label in LABELS:
        np.testing.assert_array_equal(after[label], before[label])


@pytest.mark.parametrize("labels", [("a", "b", "c"), (), ("contradiction", "entailment", "other")])
def test_a_head_of_other_labels_is_drawn_afresh(labels):
    head = HeadConfig("classification", 3, labels=LABELS)
    params, drawn = taken_over(random_model(SMALL, head), dataclasses.replace(head, labels=labels))
    assert drawn == ["logits", "summary"]
    assert params.keys() == {"backbone"}


def test_a_head_of_another_kind_is_drawn_afresh():
    head = HeadConfig("classification", 3, labels=LABELS)
    _, drawn = taken_over(random_model(SMALL, head), dataclasses.replace(head, task="multilabel"))
    assert drawn == ["logits", "summary"]


@pytest.mark.parametrize(
    "head", [HeadConfig("regression"), HeadConfig("classification", 4), HeadConfig("question_answering")]
)
def test_a_head_without_names_is_taken_over_as_it_is(head):
    start = random_model(SMALL, head)
    params, drawn = taken_over(start, head)
    assert not drawn
    jax.tree.map(np.testing.assert_array_equal, params, start.params)

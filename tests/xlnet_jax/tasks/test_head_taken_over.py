"""The head of a checkpoint is taken over by the names of its labels."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.xlnet_jax.random_models import SMALL, random_model
from xlnet_jax.interop.weights import abstract_params, nest, optional_params
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.prepare import weights_of

LABELS = ("contradiction", "entailment", "neutral")
HEAD = HeadConfig("classification", 3, labels=LABELS)


def taken_over(start, head):
    return weights_of(start, head, nest(abstract_params(start.model, head)))


@pytest.mark.parametrize("task", ["classification", "multilabel", "token_classification"])
@pytest.mark.parametrize("order", [LABELS, LABELS[::-1], (LABELS[1], LABELS[2], LABELS[0])])
def test_each_label_keeps_its_weights_in_whatever_order_the_labels_come(task, order):
    start = random_model(SMALL, dataclasses.replace(HEAD, task=task))
    params, drawn = taken_over(start, dataclasses.replace(HEAD, task=task, labels=order))
    assert not drawn
    before, after = start.params.copy(), params.copy()
    weights, ours = before.pop("logits"), after.pop("logits")
    jax.tree.map(np.testing.assert_array_equal, before, after)
    for name in ("kernel", "bias"):
        for i, label in enumerate(order):
            np.testing.assert_array_equal(ours[name][..., i], weights[name][..., LABELS.index(label)])


@pytest.mark.parametrize(
    "head",
    [
        *(dataclasses.replace(HEAD, labels=labels) for labels in (("a", "b", "c"), (), (*LABELS[:2], "other"))),
        dataclasses.replace(HEAD, task="multilabel"),
    ],
)
def test_a_head_of_other_labels_or_of_another_kind_is_drawn_afresh(head):
    params, drawn = taken_over(random_model(SMALL, HEAD), head)
    assert drawn == ["logits", "summary"]
    assert params.keys() == {"backbone"}


@pytest.mark.parametrize(
    "head", [HeadConfig("regression"), HeadConfig("classification", 4), HeadConfig("question_answering")]
)
def test_a_head_without_names_is_taken_over_as_it_is(head):
    start = random_model(SMALL, head)
    params, drawn = taken_over(start, head)
    assert not drawn
    jax.tree.map(np.testing.assert_array_equal, params, start.params)


@pytest.mark.parametrize(
    ("summary", "drawn"), [("last", ["logits"]), ("first", ["logits"]), ("mean", ["logits", "summary"])]
)
def test_a_summary_of_cls_starts_from_the_pooler_that_pretraining_read_pairs_with(summary, drawn):
    start = random_model(SMALL)
    shapes = optional_params(SMALL, None).items()
    start.params.update(
        nest({path: np.ones(s.shape, np.float32) for path, s in shapes if path.startswith("pair_head/")})
    )
    params, found = taken_over(start, HeadConfig("classification", 3, summary))
    assert found == drawn
    if "summary" not in drawn:
        jax.tree.map(
            np.testing.assert_array_equal, params["summary"]["projection"], start.params["pair_head"]["pooler"]
        )

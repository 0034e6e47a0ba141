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
def test_each_label_keeps_its_weights_in_whatever_order_the_labels_come(task):
    start, order = random_model(SMALL, dataclasses.replace(HEAD, task=task)), (LABELS[1], LABELS[2], LABELS[0])
    params, drawn = taken_over(start, dataclasses.replace(HEAD, task=task, labels=order))
    assert not drawn
    before, after = start.params.copy(), params.copy()
    weights, ours = before.pop("logits"), after.pop("logits")
    jax.tree.map(np.testing.assert_array_equal, before, after)
    for name in ("kernel", "bias"):
        for i, label in enumerate(order):
            np.testing.assert_array_equal(ours[name][..., i], weights[name][..., LABELS.index(label)])


def test_a_head_of_other_labels_or_of_another_kind_is_drawn_afresh():
    start = random_model(SMALL, HEAD)
    others = [dataclasses.replace(HEAD, labels=labels) for labels in (("a", "b", "c"), (), (*LABELS[:2], "other"))]
    for head in (*others, dataclasses.replace(HEAD, task="multilabel")):
        params, drawn = taken_over(start, head)
        assert drawn == ["logits", "summary"]
        assert params.keys() == {"backbone"}


def test_a_head_without_names_is_taken_over_as_it_is():
    start = random_model(SMALL, HeadConfig("classification", 4))
    params, drawn = taken_over(start, start.head)
    assert not drawn
    jax.tree.map(np.testing.assert_array_equal, params, start.params)


@pytest.mark.parametrize(("summary", "drawn"), [("last", ["logits"]), ("mean", ["logits", "summary"])])
def test_a_summary_of_cls_starts_from_the_pooler_that_pretraining_read_pairs_with(summary, drawn):
    start, shapes = random_model(SMALL), optional_params(SMALL, None).items()
    pooler = nest({path: np.ones(s.shape, np.float32) for path, s in shapes if path.startswith("pair_head/")})
    start.params.update(pooler)
    params, found = taken_over(start, HeadConfig("classification", 3, summary))
    assert found == drawn
    if summary == "last":
        ours, theirs = params["summary"]["projection"], pooler["pair_head"]["pooler"]
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)

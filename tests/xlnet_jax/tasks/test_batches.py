"""Batch t is a pure function of (features, settings, seed, t); every item comes once an epoch, with little padding."""

import numpy as np
import pytest

from xlnet_jax.tasks.config import TaskDataConfig
from xlnet_jax.tasks.features import NO_ITEM, Features, TrainingBatches, batch_by_length

DATA = TaskDataConfig(batch_size=8, seq_len=64)
ALL = np.arange(DATA.batch_size)


@pytest.fixture(scope="module")
def features():
    """Item i has its number for a label."""
    lengths = np.random.default_rng(0).integers(3, 65, 1003)
    tokens = {"input_ids": [np.full(n, 9, np.int32) for n in lengths]}
    return Features(tokens, {"labels": np.arange(1003, dtype=np.int32)}, np.arange(1003))


def batches(features, start, stop, seed=0, rows=ALL, data=DATA):
    return list(TrainingBatches(lambda _: features, data, seed).iterate(start, stop, rows))


def labels(found):
    return [i for b in found for i in b["labels"][b["target_weights"] > 0].tolist()]


def test_an_epoch_has_every_item_once_and_the_next_another_order(features):
    steps = TrainingBatches(lambda _: features, DATA, 0).steps_per_epoch
    assert steps == -(-1003 // 8)
    first, second = labels(batches(features, 0, steps)), labels(batches(features, steps, 2 * steps))
    assert sorted(first) == sorted(second) == list(range(1003))
    assert first != second


def test_a_batch_depends_on_its_step_alone(features):
    straight = batches(features, 0, 300)
    for start in (1, 125, 126, 260):
        for ours, theirs in zip(batches(features, start, start + 3), straight[start:], strict=False):
            assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert labels(batches(features, 0, 5, seed=1)) != labels(straight[:5])


def test_processes_build_their_rows_of_the_same_batch(features):
    whole = batches(features, 100, 130)
    for rows in (np.array([0, 1, 4, 5]), np.array([2, 3, 6, 7])):
        for part, of_all in zip(batches(features, 100, 130, rows=rows), whole, strict=True):
            assert all(np.array_equal(part[name], of_all[name][rows]) for name in of_all)


def test_texts_of_about_equal_length_share_a_batch(features):
    # In any order, batches of eight would nearly all have the longest bucket.
    found = batches(features, 0, 126)
    tokens = sum(b["attention_mask"].sum() for b in found)
    places = sum(b["input_ids"].size for b in found)
    assert {b["input_ids"].shape[1] for b in found} == {8, 16, 32, 64}
    assert tokens / places > 0.7


def test_predicting_reads_every_item_once_the_longest_first(features):
    found = list(batch_by_length(features, DATA, ALL))
    items = np.concatenate([items for items, _ in found])
    assert sorted(items[items != NO_ITEM]) == list(range(1003))
    lengths = [batch["input_ids"].shape[1] for _, batch in found]
    assert lengths == sorted(lengths, reverse=True)

"""Batches with a prefix: which lengths it has, and what its ranks let a row see."""

import dataclasses

import numpy as np

from data_pipelines.objectives import prefix


def test_a_prefix_of_every_length_is_drawn_alike_and_afresh(source):
    data = dataclasses.replace(
        source.data, seq_len=16, window="text", reuse_len=0, num_predict=None, bidirectional=False
    )
    batches = dataclasses.replace(source, filling=prefix.FILLING, data=data, mem_len=0)
    drawn = [batches.batch_at(step) for step in range(200)]
    lengths = np.concatenate([(batch["perm_rank"] == 0).sum(1) for batch in drawn])
    counts = np.bincount(lengths, minlength=16)
    assert counts[0] == 0
    assert len(counts) == 16
    mean = len(lengths) / 15
    assert (np.abs(counts[1:] - mean) < 5 * np.sqrt(mean)).all()
    assert not np.array_equal((drawn[0]["perm_rank"] == 0).sum(1), (drawn[1]["perm_rank"] == 0).sum(1))


def test_ranks_rise_behind_the_prefix_and_targets_begin_at_its_end(source):
    data = dataclasses.replace(source.data, window="text", reuse_len=0, num_predict=None, bidirectional=False)
    batch = dataclasses.replace(source, filling=prefix.FILLING, data=data, mem_len=0).batch_at(3)
    for rank, weight in zip(batch["perm_rank"], batch["target_weights"], strict=True):
        last = int((rank == 0).sum()) - 1
        np.testing.assert_array_equal(rank[last:], np.arange(len(rank) - last))
        np.testing.assert_array_equal(weight, np.arange(len(rank)) >= last)

"""Masked batches: number and choice of targets, and their replacements."""

import dataclasses

import numpy as np
import pytest

from data_pipelines.objectives import mlm, plm
from data_pipelines.stateless import Purpose
from data_pipelines.tokenizer import CLS, EOD, MASK, SEP, SPECIAL_PIECES, UNK

TEXT = np.arange(len(SPECIAL_PIECES), 600)


@pytest.fixture(scope="module", params=["without memory", "with memory"])
def masked(source, request):
    """Batches of masked language modelling, 15 % of the pieces."""
    lengths = {"reuse_len": 0, "num_predict": 10} if request.param == "without memory" else {"num_predict": 9}
    data = dataclasses.replace(source.data, batch_size=48, targets="pieces", bidirectional=False, **lengths)
    mem_len = 0 if request.param == "without memory" else source.mem_len
    return dataclasses.replace(source, filling=mlm.FILLING, data=data, mem_len=mem_len)


def with_data(source, **changes):
    return dataclasses.replace(source, data=dataclasses.replace(source.data, **changes))


def reads(source, steps=40):
    """(what the network reads at its targets, what they are), int [T] each."""
    read, meant = [], []
    for batch in map(source.batch_at, range(steps)):
        real = batch["target_weights"] > 0
        read.append(np.take_along_axis(batch["input_ids"], batch["target_positions"], axis=1)[real])
        meant.append(batch["target_ids"][real])
    return np.concatenate(read), np.concatenate(meant)


def is_share(hits, trials, share):
    """Return whether `hits` is within five standard deviations of its expectation."""
    return abs(hits - trials * share) < 5 * np.sqrt(trials * share * (1 - share))


@pytest.mark.parametrize("targets", ["pieces", "spans"])
def test_every_window_has_exactly_the_targets_that_are_asked_for_half_of_them_in_each_part(masked, targets):
    source = with_data(masked, targets=targets)
    reuse, goal = source.data.reuse_len, source.data.num_predict
    for batch in map(source.batch_at, range(10)):
        positions = batch["target_positions"]
        assert (batch["target_weights"] == 1).all()
        assert (np.diff(positions, axis=1) > 0).all()
        assert ((positions < reuse).sum(1) == (-(-goal // 2) if reuse else 0)).all()


def test_eight_of_ten_targets_are_masked_one_is_another_piece_and_one_stays(masked):
    read, meant = reads(masked)
    total, same = len(read), (read == meant).sum()
    other = (read != meant) & (read != MASK)
    assert total > 15_000
    assert is_share((read == MASK).sum(), total, 0.8)
    by_chance = 0.1 / len(TEXT)  # a random piece can be the right one
    assert is_share(same, total, 0.1 + by_chance)
    assert is_share(other.sum(), total, 0.1 - by_chance)


def test_random_pieces_are_any_of_the_vocabulary_but_special_symbols(masked):
    read, _ = reads(with_data(masked, mask_share=0.0, random_share=1.0))
    counts = np.bincount(read, minlength=600)
    assert counts[: len(SPECIAL_PIECES)].sum() == 0
    expected = len(read) / len(TEXT)
    chi_square = ((counts[TEXT] - expected) ** 2 / expected).sum()
    assert abs(chi_square - len(TEXT)) < 5 * np.sqrt(2 * len(TEXT))


@pytest.mark.parametrize("shares", [(1.0, 0.0), (0.0, 0.0)], ids=str)
def test_the_shares_are_settings(masked, shares):
    read, meant = reads(with_data(masked, mask_share=shares[0], random_share=shares[1]), steps=4)
    assert (read == (MASK if shares[0] else meant)).all()


@pytest.mark.parametrize("targets", ["pieces", "words", "spans"])
@pytest.mark.parametrize("window", ["pairs", "sentences"])
def test_only_text_is_a_target_and_only_targets_are_altered(masked, targets, window):
    """Compare the unmasked windows with permutation language modelling's, from the same draws."""
    source = with_data(masked, targets=targets, window=window)
    special = 0
    for step in range(12):
        batch, plain = source.batch_at(step), dataclasses.replace(source, filling=plm.FILLING).batch_at(step)
        text, real = plain["input_ids"], batch["target_weights"] > 0
        is_target = np.zeros(text.shape, bool)
        is_target[np.nonzero(real)[0], batch["target_positions"][real]] = True
        np.testing.assert_array_equal(batch["input_ids"][~is_target], text[~is_target])
        np.testing.assert_array_equal(text[is_target], batch["target_ids"][real])
        assert ((text[is_target] >= len(SPECIAL_PIECES)) | (text[is_target] == UNK)).all()
        special += np.isin(text, (SEP, CLS, EOD)).sum()
    assert special > 12 * 48 * 2


def test_ranks_are_equal_without_memory_and_with_it_the_reused_part_does_not_see_the_rest(masked):
    rank = masked.batch_at(3)["perm_rank"]
    assert rank.dtype == np.int32
    assert (rank == (np.arange(64) >= 32) * (masked.mem_len > 0)).all()
    none = dataclasses.replace(masked, mem_len=0).batch_at(3)["perm_rank"]
    assert (none == 0).all()


@pytest.mark.parametrize("targets", ["pieces", "words", "spans"])
def test_without_a_number_of_targets_every_position_has_a_slot_and_a_seventh_of_the_text_is_a_target(masked, targets):
    source = with_data(masked, targets=targets, num_predict=None)
    weights = np.concatenate([source.batch_at(step)["target_weights"] for step in range(20)])
    assert weights.shape[1] == 64
    assert 0.10 < weights.mean() < 0.15
    assert len(set(weights.sum(1))) > 5


def test_replacements_are_drawn_apart_from_the_targets(masked):
    """Mask the same positions, whatever replaces them."""
    one, other = (with_data(masked, random_share=share).batch_at(2) for share in (0.0, 0.2))
    np.testing.assert_array_equal(one["target_positions"], other["target_positions"])
    assert (one["input_ids"] != other["input_ids"]).any()
    assert len(set(Purpose)) == len(Purpose)

"""Batches of objectives: number and choice of masked targets, their replacements; lengths and ranks of prefixes."""

import dataclasses
import math

import numpy as np
import pytest

from data_pipelines.objectives import mdlm, mlm, plm, prefix
from data_pipelines.tokenizer import CLS, EOD, MASK, SEP, SPECIAL_PIECES, UNK

TEXT = np.arange(len(SPECIAL_PIECES), 600)


@pytest.fixture(scope="module", params=["without memory", "with memory"])
def masked(source, request):
    """Batches of masked language modeling, 15 % of the pieces."""
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


@pytest.mark.parametrize("targets", ["pieces", "words", "spans"])
@pytest.mark.parametrize("window", ["pairs", "sentences"])
def test_only_text_is_a_target_and_only_targets_are_altered(masked, targets, window):
    """Compare the unmasked windows with permutation language modeling's, from the same draws."""
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


# ---- batches with groups -------------------------------------------------------------------------------------------


def in_groups(rank_L, targets, size, reuse):
    """Return ranks with groups of `size` targets, by hand."""
    grouped = rank_L.copy()
    for part in (targets[targets < reuse], targets[targets >= reuse]):
        order = part[rank_L[part].argsort()]
        for begin in range(0, len(order), size):
            grouped[order[begin : begin + size]] = rank_L[order[begin]]
    return grouped


@pytest.mark.parametrize("form", [{}, {"num_predict": None}, {"profile": "tf2"}, {"reuse_len": 0, "targets": "pieces"}])
def test_groups_are_consecutive_targets_of_one_part_and_nothing_else_changes(source, form):
    alone = with_data(source, **form)
    for size, step in ((1, 0), (2, 1), (4, 2), (11, 3)):
        ours, theirs = (with_data(alone, group_sizes=sizes).batch_at(step) for sizes in ((size,), (1,)))
        expected = [
            in_groups(rank, positions[weights > 0], size, alone.data.reuse_len)
            for rank, positions, weights in zip(
                theirs["perm_rank"], theirs["target_positions"], theirs["target_weights"], strict=True
            )
        ]
        np.testing.assert_array_equal(ours.pop("perm_rank"), expected)
        for name, values in ours.items():
            np.testing.assert_array_equal(values, theirs[name], err_msg=name)


def test_each_window_draws_one_of_the_sizes_alike_and_afresh(source):
    drawn, seen = with_data(source, group_sizes=(1, 3, 5), batch_size=48), []
    for step in range(20):
        batch = drawn.batch_at(step)
        of_size = [with_data(drawn, group_sizes=(size,)).batch_at(step)["perm_rank"] for size in (1, 3, 5)]
        is_size = (batch["perm_rank"] == np.array(of_size)).all(-1)
        assert (is_size.sum(0) == 1).all()
        seen.append(is_size.argmax(0))
    counts = np.bincount(np.concatenate(seen))
    assert (np.abs(counts - 320) < 5 * np.sqrt(320 * 2 / 3)).all()
    assert (seen[0] != seen[1]).any()


# ---- batches with a prefix ------------------------------------------------------------------------------------------


def with_prefix(source, seq_len):
    data = dataclasses.replace(
        source.data, seq_len=seq_len, window="text", reuse_len=0, num_predict=None, bidirectional=False
    )
    return dataclasses.replace(source, filling=prefix.FILLING, data=data, mem_len=0)


def test_a_prefix_of_every_length_is_drawn_alike_and_afresh(source):
    batches = with_prefix(source, 16)
    lengths = np.stack([(batches.batch_at(step)["perm_rank"] == 0).sum(1) for step in range(200)])
    counts = np.bincount(lengths.ravel(), minlength=16)
    assert (counts[0], len(counts)) == (0, 16)
    mean = lengths.size / 15
    assert (np.abs(counts[1:] - mean) < 5 * np.sqrt(mean)).all()
    assert (lengths[0] != lengths[1]).any()


def test_ranks_rise_after_the_prefix_and_targets_begin_at_its_end(source):
    batch = with_prefix(source, 64).batch_at(3)
    for rank, weight in zip(batch["perm_rank"], batch["target_weights"], strict=True):
        last = int((rank == 0).sum()) - 1
        np.testing.assert_array_equal(rank[last:], np.arange(len(rank) - last))
        np.testing.assert_array_equal(weight, np.arange(len(rank)) >= last)


# ---- batches of masked diffusion ------------------------------------------------------------------------------------


def diffused(source, seq_len):
    return dataclasses.replace(with_prefix(source, seq_len), filling=mdlm.FILLING)


@pytest.mark.parametrize(("split", "bound_weights"), [("train", False), ("train", True), ("validation", False)])
def test_targets_are_masked_and_the_weights_of_the_bound_sum_to_the_length_of_the_window(source, split, bound_weights):
    length, special = 64, 0
    source = with_data(dataclasses.replace(source, split=split), bound_weights=bound_weights)
    for step in range(8):
        batch = diffused(source, length).batch_at(step)
        has_block = batch.get("row_weights", np.ones(source.data.batch_size)) > 0
        batch = {name: array[has_block] for name, array in batch.items()}
        text = with_prefix(source, length).batch_at(step)["input_ids"][has_block]
        is_target = batch["target_weights"] > 0
        np.testing.assert_array_equal(batch["input_ids"], np.where(is_target, MASK, text))
        np.testing.assert_array_equal(batch["target_ids"], text)
        if bound_weights or split == "validation":
            count = is_target.sum(1)
            np.testing.assert_allclose(batch["target_weights"][is_target], np.repeat(length / count, count))
            np.testing.assert_allclose(batch["target_weights"].sum(1), length, rtol=1e-6)
        else:
            assert (batch["target_weights"][is_target] == 1).all()
        assert (batch["perm_rank"] == 0).all()
        special += (text[is_target] == EOD).sum()
    assert special > 0 or split == "validation"


def test_every_number_of_targets_is_drawn_alike_and_then_every_set_of_them(source):
    batches = diffused(source, 4)
    batches = with_data(batches, batch_size=96)
    sets = np.concatenate([batches.batch_at(step)["target_weights"] > 0 for step in range(100)]) @ (1 << np.arange(4))
    counts = np.bincount(sets, minlength=16)
    assert counts[0] == 0
    for chosen in range(1, 16):
        of_size = chosen.bit_count()
        assert is_share(counts[chosen], len(sets), 1 / 4 / math.comb(4, of_size))


@pytest.mark.parametrize("masking", ["dynamic", "static"])
def test_the_masked_shares_of_a_training_batch_are_spread_evenly(source, masking):
    """Each row has a share from another interval at every step, whichever process makes it. Static masks belong to the
    texts, so their shares are independent."""
    length, rows = 64, 16
    batches = with_data(diffused(source, length), batch_size=rows, masking=masking)
    counts = np.array([(batches.batch_at(step)["target_weights"] > 0).sum(1) for step in range(rows)])
    strata = (counts - 1) * rows // length
    is_spread = [sorted(of_batch) == [*range(rows)] for of_batch in strata.tolist()]
    if masking == "dynamic":
        assert all(is_spread)
        assert {len(set(of_row)) for of_row in strata.T.tolist()} == {rows}
        part = batches.batch(batches.read_visit(0, range(4, 8)), 0, range(4, 8))
        np.testing.assert_array_equal((part["target_weights"] > 0).sum(1), counts[0, 4:8])
    else:
        assert not any(is_spread)


# ---- blocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reuse_len", [0, 32])
@pytest.mark.parametrize("group", [1, 16])
def test_blocks_are_predicted_from_left_to_right_and_each_in_any_order(source, reuse_len, group):
    """Every token is a target but one, or one group, of the first block: it would see nothing."""
    data = {"seq_len": 64, "reuse_len": reuse_len, "bidirectional": False, "window": "text", "num_predict": None}
    source = with_data(source, **data, targets="all", perm_size=16, group_sizes=(group,))
    orders = set()
    for batch in map(source.batch_at, range(4)):
        rank, is_target = batch["perm_rank"], batch["target_weights"] > 0
        for rank_L, is_target_L in zip(rank, is_target, strict=True):
            blocks = rank_L.reshape(-1, 16)
            assert (blocks.max(1)[:-1] < blocks.min(1)[1:]).all()
            seen = [(rank_L < rank_L[place]).sum() for place in np.flatnonzero(is_target_L)]
            assert min(seen) == group
            assert (~is_target_L).sum() == group
            assert (~is_target_L[:16]).sum() == group
            assert len(set(blocks[-1])) == (16 if group == 1 else 1)
            orders.add(tuple(np.argsort(blocks[1]).tolist()))
    assert len(orders) > 1 or group > 1

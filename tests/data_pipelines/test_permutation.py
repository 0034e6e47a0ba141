"""Ranks give exactly the masks that the original computes."""

import dataclasses

import numpy as np
import pytest

from data_pipelines.permutation import perm_rank, permuted_places, target_slots, to_dense
from xlnet_jax.settings.config import DataConfig

SEP, CLS = 4, 3
LOCAL_PERM = "inputs targets is_masked row_perm index perm_mask new_targets target_mask inputs_k inputs_q".split()


def draws_that_shuffle_to(row_perm):
    """Return uniforms whose order is the given permutation."""
    row_perm = np.atleast_2d(row_perm)
    uniform = np.empty(row_perm.shape)
    np.put_along_axis(uniform, row_perm, (np.arange(row_perm.shape[1]) + 0.5) / row_perm.shape[1], axis=1)
    return uniform


def compact_of(ids, drawn, reused_draws, new_draws, data):
    """Return a batch of windows with the given masks and permutations."""
    functional = (ids == SEP) | (ids == CLS)
    reused = permuted_places(data.reuse_len, data.perm_size, reused_draws)
    new = permuted_places(data.seq_len - data.reuse_len, data.perm_size, new_draws)
    hidden = drawn & ~functional if data.profile == "tf2" else drawn | functional
    return {
        "input_ids": ids,
        "perm_rank": perm_rank(hidden, reused, new, data),
        **target_slots(drawn & ~functional, ids, data.num_predict),
    }


@pytest.mark.parametrize(("length", "perm_size"), [(32, 32), (32, 16), (32, 8), (12, 3), (16, 1)])
def test_each_part_of_a_window_is_permuted_by_local_perm(reference, length, perm_size):
    """Put one case into both parts of a window: inside each part, masks and targets are the original's."""
    cases = np.load(reference / "data" / "local_perm.npz")
    case = {name: cases[f"L{length}_P{perm_size}/{name}"] for name in LOCAL_PERM}
    draws = draws_that_shuffle_to(case["row_perm"])
    np.testing.assert_array_equal(permuted_places(length, perm_size, draws), case["index"])

    data = DataConfig(seq_len=2 * length, reuse_len=length, perm_size=perm_size, num_predict=None)
    twice = {name: np.concatenate([case[name]] * 2, axis=1) for name in ("inputs", "is_masked")}
    # Some cases name random tokens as targets; in windows made of text a target is the token itself.
    of_text = (case["targets"][:, :-1] == case["inputs"][:, 1:]).all(1, keepdims=True)
    assert of_text.sum() == 7
    dense = to_dense(compact_of(twice["inputs"], twice["is_masked"].astype(bool), draws, draws, data))
    for part in (slice(length), slice(length, None)):
        np.testing.assert_array_equal(dense["perm_mask"][:, part, part], case["perm_mask"].astype(bool))
        np.testing.assert_array_equal(dense["target_weights"][:, part], case["target_mask"])
        np.testing.assert_array_equal(dense["target_weights"][:, part], case["inputs_q"])
        np.testing.assert_array_equal(dense["input_ids"][:, part], case["inputs_k"])
        at_targets = (case["target_mask"] > 0) & of_text
        np.testing.assert_array_equal(dense["target_ids"][:, part][at_targets], case["new_targets"][at_targets])
    assert dense["perm_mask"][:, :length, length:].all()
    assert not dense["perm_mask"][:, length:, :length].any()


def parser_case(reference, name):
    """Return (what the original's parser gave, our dense batch of the same records)."""
    case = np.load(reference / "data" / f"{name}.npz")
    rows, perm_size = len(case["records/input"]), len(case["row_perm_0"])
    num_predict = case["features/target_mapping"].shape[1] if "features/target_mapping" in case else None
    data = DataConfig(seq_len=64, reuse_len=32, perm_size=perm_size, num_predict=num_predict)
    draws = [np.repeat(draws_that_shuffle_to(case[f"row_perm_{i}"]), rows, axis=0) for i in range(2)]
    return case, to_dense(compact_of(case["records/input"], case["records/is_masked"].astype(bool), *draws, data))


@pytest.mark.parametrize("name", ["parser_np10_perm32", "parser_np10_perm8", "parser_npNone_perm16"])
def test_windows_get_the_masks_and_targets_of_the_originals_parser(reference, name):
    case, dense = parser_case(reference, name)
    np.testing.assert_array_equal(dense["input_ids"], case["features/input_k"])
    np.testing.assert_array_equal(dense["perm_mask"], case["features/perm_mask"].astype(bool))
    np.testing.assert_array_equal(dense["target_weights"], case["features/target_mask"])
    np.testing.assert_array_equal(dense["target_mapping"].max(1), case["features/input_q"])
    if "features/target_mapping" in case:
        np.testing.assert_array_equal(dense["target_mapping"], case["features/target_mapping"])
        np.testing.assert_array_equal(dense["target_ids"], case["features/target"])
    else:  # The original writes tokens where nothing is predicted, too (after A, the next one of its text).
        is_target = case["features/target_mask"] > 0
        np.testing.assert_array_equal(dense["target_mapping"], np.eye(64) * is_target[:, :, None])
        np.testing.assert_array_equal(dense["target_ids"][is_target], case["features/target"][is_target])


def test_the_tf2_profile_shows_functional_tokens_to_their_part_and_changes_nothing_else():
    rng = np.random.default_rng(0)
    ids, drawn = rng.integers(9, 50, (6, 32)), rng.random((6, 32)) < 0.2
    ids[:, 24], ids[:, 30], ids[:, 31] = SEP, SEP, CLS
    functional = np.zeros(32, bool)
    functional[[24, 30, 31]] = True
    data = DataConfig(seq_len=32, reuse_len=16, perm_size=16, num_predict=12)
    draws = rng.random((2, 6, 16))
    ours = to_dense(compact_of(ids, drawn, *draws, data))
    tf2 = to_dense(compact_of(ids, drawn, *draws, dataclasses.replace(data, profile="tf2")))
    is_target = drawn & ~functional
    for name in ("input_ids", "target_ids", "target_weights", "target_mapping"):
        np.testing.assert_array_equal(tf2[name], ours[name])
    text_only = np.ix_(range(6), ~functional, ~functional)
    np.testing.assert_array_equal(tf2["perm_mask"][text_only], ours["perm_mask"][text_only])
    seen = ~tf2["perm_mask"]
    assert seen[:, 16:][:, :, functional].all()  # by every row of their part
    assert not seen[:, :16][:, :, functional].any()  # and by no row of the part before
    targets_of_the_part = np.broadcast_to((is_target & (np.arange(32) >= 16))[:, None], seen.shape)
    assert not (seen & targets_of_the_part)[:, functional].any()  # and they see none of its targets
    visible = ~drawn[:, 16:24]
    assert ours["perm_mask"][:, 16:24, 24][visible].all()  # by default they are hidden

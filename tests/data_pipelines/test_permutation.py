"""Ranks stand for exactly the masks that the original computes."""

import numpy as np
import pytest

from data_pipelines.permutation import perm_rank, permuted_places, target_slots, to_dense
from xlnet_jax.config import DataConfig

SEP, CLS = 4, 3


def draws_that_shuffle_to(row_perm):
    """Uniforms whose order is the given permutation."""
    row_perm = np.atleast_2d(row_perm)
    uniform = np.empty(row_perm.shape)
    np.put_along_axis(uniform, row_perm, (np.arange(row_perm.shape[1]) + 0.5) / row_perm.shape[1], axis=1)
    return uniform


@pytest.mark.parametrize(("length", "perm_size"), [(32, 32), (32, 16), (32, 8), (12, 3), (16, 1)])
def test_places_are_those_of_local_perm(reference, length, perm_size):
    cases = np.load(reference / "data" / "local_perm.npz")
    group = f"L{length}_P{perm_size}/"
    places = permuted_places(length, perm_size, draws_that_shuffle_to(cases[group + "row_perm"]))
    np.testing.assert_array_equal(places, cases[group + "index"])


@pytest.mark.parametrize("name", ["parser_np10_perm32", "parser_np10_perm8"])
def test_windows_get_the_masks_and_targets_of_the_originals_parser(reference, name):
    case = np.load(reference / "data" / f"{name}.npz")
    ids, drawn = case["records/input"], case["records/is_masked"].astype(bool)
    rows = len(ids)
    perm_size = len(case["row_perm_0"])
    data = DataConfig(batch_size=rows, seq_len=64, reuse_len=32, perm_size=perm_size, num_predict=10)
    functional = (ids == SEP) | (ids == CLS)
    reused, new = (
        np.repeat(permuted_places(32, perm_size, draws_that_shuffle_to(case[f"row_perm_{i}"])), rows, axis=0)
        for i in range(2)
    )
    compact = {
        "input_ids": ids,
        "perm_rank": perm_rank(drawn | functional, reused, new, data),
        **target_slots(drawn & ~functional, ids, data.num_predict),
    }
    dense = to_dense(compact)
    np.testing.assert_array_equal(dense["perm_mask"], case["features/perm_mask"].astype(bool))
    np.testing.assert_array_equal(dense["target_mapping"], case["features/target_mapping"])
    np.testing.assert_array_equal(dense["target_weights"], case["features/target_mask"])
    np.testing.assert_array_equal(dense["target_ids"], case["features/target"])


def test_missing_targets_are_padding_at_the_last_position():
    ids = np.arange(9, 17)[None]
    slots = target_slots(np.array([[0, 1, 0, 0, 1, 0, 0, 0]], bool), ids, 4)
    assert slots["target_positions"].tolist() == [[1, 4, 7, 7]]
    assert slots["target_ids"].tolist() == [[10, 13, 0, 0]]
    assert slots["target_weights"].tolist() == [[1, 1, 0, 0]]

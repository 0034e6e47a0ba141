"""The fused kernel on windows that do not fit the chip, against plain attention: blocks of 128 rows and 128 keys."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from tests.xlnet_jax.kernels.attention_cases import (
    Case,
    assert_a_mesh_computes_what_one_device_does,
    assert_rows_depend_on_what_they_see,
    compare,
    error,
    inputs_of,
    pulled_back,
)
from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import AttentionInputs
from xlnet_jax.kernels.implementations import fused_attention_BNTH
from xlnet_jax.kernels.mesh import interpret_kernels
from xlnet_jax.kernels.tpu.operands import sizes_of
from xlnet_jax.kernels.tpu.tiles import GENERATIONS

CASES = {
    "two streams with all terms": Case(length=300, targets=40, memory=90, rate=0.1),
    "more tiles of queries than one": Case(batch=1, heads=1, length=200, targets=150, memory=130, segments=False),
    "ranks within a span, as v3 computes them": Case(
        batch=1, heads=1, length=150, targets=6, memory=120, reach=60, rate=0.1
    ),
    "a content stream, three heads that fill no group": Case(
        heads=3, width=32, length=290, targets=0, memory=0, positions=False, biases=False, rate=0.5
    ),
    "few rows and a long memory": Case(batch=1, heads=1, length=20, targets=4, memory=400),
}


@pytest.fixture(autouse=True)
def small_chips(monkeypatch):
    """Chips that hold so little that a few hundred keys are many."""
    blocks = {"reach": 256, "row_block": 128, "key_block": 128}
    monkeypatch.setitem(GENERATIONS, "small", GENERATIONS["v5e"]._replace(**blocks))
    monkeypatch.setitem(GENERATIONS, "small v3", GENERATIONS["v3"]._replace(**blocks))


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_plain(name):
    case, generation = CASES[name], "small v3" if "v3" in name else "small"
    assert not sizes_of(inputs_of(case), GENERATIONS[generation]).fits
    compare(generation, case, 5e-6, 5e-6)


def test_bfloat16_differs_by_rounding_alone():
    case = Case(batch=1, heads=1, length=300, targets=20, memory=10, rate=0.3, dtype="bfloat16")
    compare("small", case, 0.015, 0.03)


@pytest.mark.parametrize(
    ("case", "generation"),
    [(Case(heads=1, batch=1, rate=0.3), "v5e"), (Case(heads=1, batch=1, length=400, targets=130, memory=0), "small")],
    ids=["a short window", "a long window"],
)
def test_no_memory_of_a_tpu_is_read_before_it_is_written(case, generation):
    """Memory starts as NaN: on the chip, and in outputs. Of a long window, tiles without a row at a block of positions
    stay so."""
    nan = pltpu.InterpretParams(uninitialized_memory="nan")
    compare(generation, case, 5e-6, 5e-6, interpret=nan)


def test_a_row_depends_on_the_keys_that_it_sees_and_on_no_others():
    """Also in blocks in which it sees nothing."""
    case = Case(batch=1, heads=1, length=260, targets=9, memory=30)
    assert_rows_depend_on_what_they_see(case, [1, 100, 200, 259, 260, 268], "small")


def test_blocks_that_no_row_sees_are_not_computed():
    """Not even multiplied by 0: in reading order the last block of keys is NaN, and rows of earlier blocks do not show
    it."""
    inputs = inputs_of(Case(batch=1, heads=1, length=384, targets=0, memory=0, segments=False))
    key_BK, last = inputs.relations.key_position_BK, slice(256, 384)
    in_order = inputs.relations._replace(row_rank_BT=2 * key_BK, key_rank_BK=2 * key_BK)
    inputs = inputs._replace(relations=in_order)
    spoilt = inputs._replace(
        key_BNKH=inputs.key_BNKH.at[:, :, last].set(jnp.nan), value_BNKH=inputs.value_BNKH.at[:, :, last].set(jnp.nan)
    )
    grad_BNTH = jnp.ones_like(inputs.query_BNTH).at[:, :, last].set(0)
    with interpret_kernels("small"):
        read, grads = pulled_back(fused_attention_BNTH, inputs)(grad_BNTH)
        spoilt_read, spoilt_grads = pulled_back(fused_attention_BNTH, spoilt)(grad_BNTH)
    assert jnp.isnan(spoilt_read[:, :, last]).all()
    np.testing.assert_array_equal(spoilt_read[:, :, :256], read[:, :, :256])
    np.testing.assert_array_equal(spoilt_grads["query_BNTH"][:, :, :256], grads["query_BNTH"][:, :, :256])


def test_rows_of_a_window_may_be_computed_in_several_calls():
    """Content rows from a later position on, with the position keys of their distances, and the query rows alone, as
    devices that share a window compute them: with the masks of the whole call."""
    case = Case(batch=1, length=256, targets=30, memory=100, rate=0.3)
    inputs, half = inputs_of(case), 128
    keys = case.length + case.memory
    row_T = jnp.arange(case.length + case.targets)

    def some(rows: slice, distances: slice) -> AttentionInputs:
        relations = inputs.relations.of_rows(lambda x_BT: x_BT[:, rows])
        if rows.stop is not None:
            relations = relations._replace(query_position_BP=None)
        return inputs._replace(
            query_BNTH=inputs.query_BNTH[:, :, rows],
            relations=relations,
            position_key_2NRH=inputs.position_key_2NRH[:, :, distances],
            dropout=inputs.dropout._replace(row_T=row_T[rows], key_K=jnp.arange(keys)),
        )

    parts = [
        some(slice(0, half), slice(half, None)),
        some(slice(half, 256), slice(0, half + keys)),
        some(slice(256, None), slice(None)),
    ]
    whole = plain.attention_BNTH(inputs)
    for attend, as_on_the_device in (
        (plain.attention_BNTH, contextlib.nullcontext()),
        (fused_attention_BNTH, interpret_kernels("small")),
        (fused_attention_BNTH, interpret_kernels("gpu")),
    ):
        with as_on_the_device:
            together = jax.jit(lambda attend=attend: jnp.concatenate([attend(part) for part in parts], axis=2))()
        assert error(together, whole) < 5e-6


def test_a_mesh_computes_what_one_device_does():
    assert_a_mesh_computes_what_one_device_does(Case(batch=4, length=200, targets=10, memory=60, rate=0.3), "small")

"""The fused kernel on windows that do not fit the chip, against plain attention: blocks of 128 rows and 128 keys."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from tests.xlnet_jax.kernels.attention_cases import Case, compare, error, inputs_of, pulled_back
from xlnet_jax.kernels import plain
from xlnet_jax.kernels.arguments import (
    AttentionInputs,
    Positions,
    Ranks,
    Visibility,
    numbers_of,
    visible_BTK,
    with_numbers,
)
from xlnet_jax.kernels.fused import call as fused
from xlnet_jax.kernels.fused.operands import sizes_of
from xlnet_jax.kernels.fused.tiles import GENERATIONS
from xlnet_jax.kernels.triton import call as triton
from xlnet_jax.models.masks import LOWEST
from xlnet_jax.settings.config import MeshConfig, RunConfig
from xlnet_jax.training import sharding

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
    compare(fused, case, 5e-6, 5e-6, generation=generation)


def test_bfloat16_differs_by_rounding_alone():
    case = Case(batch=1, heads=1, length=300, targets=20, memory=10, rate=0.3, dtype="bfloat16")
    compare(fused, case, 0.015, 0.03, generation="small")


@pytest.mark.parametrize(
    ("case", "generation"),
    [(Case(heads=1, batch=1, rate=0.3), "v5e"), (Case(heads=1, batch=1, length=400, targets=130, memory=0), "small")],
    ids=["a short window", "a long window"],
)
def test_no_memory_of_a_tpu_is_read_before_it_is_written(case, generation):
    """Memory starts as NaN: on the chip, and in outputs. Of a long window, tiles without a row at a block of positions
    stay so."""
    nan = pltpu.InterpretParams(uninitialized_memory="nan")
    compare(fused, case, 5e-6, 5e-6, generation=generation, interpret=nan)


def test_a_row_depends_on_the_keys_that_it_sees_and_on_no_others():
    """Also in blocks in which it sees nothing; the first row sees no key at all, and depends on all values alike."""
    case = Case(batch=1, heads=1, length=260, targets=9, memory=30)
    inputs = inputs_of(case)
    visible_TK = np.asarray(visible_BTK(inputs.visibility))[0]
    with fused.interpreted("small"):
        pull = pulled_back(fused.attention_BNTH, inputs)
        for row in (1, 100, 200, 259, 260, 268):
            _, grads = pull(jnp.zeros_like(inputs.query_BNTH).at[0, 0, row].set(jnp.arange(1.0, case.width + 1)))
            for grad_BNKH in (grads.key_BNKH, grads.value_BNKH):
                depends_K = (np.asarray(grad_BNKH)[0, 0] != 0).any(-1)
                np.testing.assert_array_equal(depends_K, visible_TK[row])
        _, grads = pull(jnp.zeros_like(inputs.query_BNTH).at[0, 0, 0].set(1.0))
    assert not visible_TK[0].any()
    np.testing.assert_allclose(grads.value_BNKH[0, 0], 1.0 / visible_TK.shape[1], rtol=1e-6)


def in_reading_order(inputs: AttentionInputs) -> AttentionInputs:
    """Return the inputs with ranks by which every row sees the keys before it."""
    key_BK, query_BP = inputs.positions.key_BK, inputs.positions.query_BP
    content_BL = key_BK[:, key_BK.shape[1] - (inputs.query_BNTH.shape[2] - query_BP.shape[1]) :]
    row_BT = jnp.concatenate([2 * content_BL, 2 * query_BP - 1], axis=1)
    ranks = Ranks(row_BT, jnp.where(key_BK < 0, LOWEST, 2 * key_BK))
    return inputs._replace(visibility=Visibility(ranks))


def test_blocks_that_no_row_sees_are_not_computed():
    """Not even multiplied by 0: the last block of keys is NaN, and rows of earlier blocks do not show it."""
    inputs = in_reading_order(inputs_of(Case(batch=1, heads=1, length=384, targets=0, memory=0, segments=False)))
    numbers, last = numbers_of(inputs), slice(256, 384)
    spoilt = numbers._replace(
        key_BNKH=numbers.key_BNKH.at[:, :, last].set(jnp.nan), value_BNKH=numbers.value_BNKH.at[:, :, last].set(jnp.nan)
    )
    grad_BNTH = jnp.ones_like(inputs.query_BNTH).at[:, :, last].set(0)
    with fused.interpreted("small"):
        read, grads = pulled_back(fused.attention_BNTH, inputs)(grad_BNTH)
        spoilt_read, spoilt_grads = pulled_back(fused.attention_BNTH, with_numbers(inputs, spoilt))(grad_BNTH)
    assert jnp.isnan(spoilt_read[:, :, last]).all()
    np.testing.assert_array_equal(spoilt_read[:, :, :256], read[:, :, :256])
    np.testing.assert_array_equal(spoilt_grads.query_BNTH[:, :, :256], grads.query_BNTH[:, :, :256])


def test_rows_of_a_window_may_be_computed_in_several_calls():
    """Content rows from a later position on, with the position keys of their distances, and the query rows alone, as
    devices that share a window compute them: with the masks of the whole call."""
    case = Case(batch=1, length=256, targets=30, memory=100, rate=0.3)
    inputs, half = inputs_of(case), 128
    keys = case.length + case.memory

    def some(rows: slice, query_BP: jnp.ndarray, distances: slice) -> AttentionInputs:
        ranks, positions, segments = inputs.visibility.ranks, inputs.positions, inputs.segments
        row_T = jnp.arange(inputs.query_BNTH.shape[2])
        return inputs._replace(
            query_BNTH=inputs.query_BNTH[:, :, rows],
            visibility=Visibility(ranks._replace(row_BT=ranks.row_BT[:, rows])),
            positions=Positions(
                positions.key_2NRH[:, :, distances], positions.is_reversed_B, query_BP, positions.key_BK
            ),
            segments=segments._replace(row_BT=segments.row_BT[:, rows]),
            dropout=inputs.dropout._replace(row_T=row_T[rows], key_K=jnp.arange(keys)),
        )

    query_BP = inputs.positions.query_BP
    parts = [
        some(slice(0, half), query_BP[:, :0], slice(half, None)),
        some(slice(half, 256), query_BP[:, :0], slice(0, half + keys)),
        some(slice(256, None), query_BP, slice(None)),
    ]
    whole = plain.attention_BNTH(inputs)
    for attend, as_on_the_device in (
        (plain.attention_BNTH, contextlib.nullcontext()),
        (fused.attention_BNTH, fused.interpreted("small")),
        (triton.attention_BNTH, triton.interpreted()),
    ):
        with as_on_the_device:
            together = jnp.concatenate([attend(part) for part in parts], axis=2)
        assert error(together, whole) < 5e-6


def test_a_mesh_computes_what_one_device_does():
    inputs = inputs_of(Case(batch=2, length=200, targets=10, memory=60, rate=0.3))
    grad_BNTH = jax.random.normal(jax.random.key(2), inputs.query_BNTH.shape)
    config = dataclasses.replace(RunConfig(), mesh=MeshConfig(fsdp=2, tensor=2))
    mesh = sharding.make_mesh(config, jax.devices()[:4])
    with fused.interpreted("small"):
        alone, alone_grads = pulled_back(fused.attention_BNTH, inputs)(grad_BNTH)
        with sharding.axes_of(mesh):
            divided = jax.device_put(grad_BNTH, jax.NamedSharding(mesh, jax.P(("data", "fsdp"), "tensor")))
            together, together_grads = pulled_back(fused.attention_BNTH, inputs)(divided)
    assert error(together, alone) < 1e-5
    for mine, reference in zip(together_grads, alone_grads, strict=True):
        assert error(mine, reference) < 1e-5

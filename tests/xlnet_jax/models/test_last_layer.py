"""A last layer that computes only the query stream predicts and learns the same."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.xlnet_jax.random_models import SMALL, random_params
from xlnet_jax.models.heads import XLNetLM
from xlnet_jax.models.inputs import compact_inputs

BATCH, LENGTH, TARGETS, DROPOUT = 2, 7, 3, {"dropout": 0.2, "attention_dropout": 0.2}
NETWORKS = {
    "dropout": DROPOUT,
    "one layer": {"num_layers": 1, **DROPOUT},
    "shared": {"share_layers": "all", **DROPOUT},
    "causal, no memory, no segments": {"attn_type": "uni", "mem_len": 0, "num_segments": 0, "untie_r": False},
    "pre, remat": {"norm": "pre", "remat": "dots", **DROPOUT},
}


def run(name, **settings):
    """Return ((logits, outputs), gradients of the parameters and of the memory)."""
    config, draw = dataclasses.replace(SMALL, **NETWORKS[name]), np.random.default_rng(0)
    ids = jnp.asarray(draw.integers(0, config.vocab_size, (BATCH, LENGTH)))
    targets = jnp.asarray([[1, 4, 6], [0, 2, 3]])
    inputs = compact_inputs(
        ids,
        segment_ids_BL=ids % 2,
        perm_rank_BL=jnp.asarray(draw.permuted(np.tile(np.arange(LENGTH), (BATCH, 1)), axis=1)),
        target_positions_BP=targets,
        is_reversed_B=jnp.asarray([False, True]),
        memory_BM=jnp.arange(config.mem_len)[None] >= jnp.asarray([[0], [2]]),
    )
    mems = jnp.asarray(draw.normal(size=(config.num_layers, BATCH, config.mem_len, config.d_model)), jnp.float32)
    weights = jnp.asarray(draw.normal(size=(BATCH, TARGETS, config.vocab_size)))

    def loss(params, mems):
        results = XLNetLM(config).apply(
            {"params": params}, inputs, mems, reuse_len=4, train=True, rngs={"dropout": jax.random.key(3)}, **settings
        )
        return (results[0] * weights).sum(), results

    gradients, results = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(random_params(config, None), mems)
    return results, gradients


@pytest.mark.parametrize("name", NETWORKS)
def test_predictions_memory_and_gradients_are_the_same(name):
    ((logits, outputs), gradients), ((less_logits, less), less_gradients) = run(name), run(name, needs_content=False)
    assert outputs.content_BLD is not None
    assert less.content_BLD is None
    for ours, theirs in ((less_logits, logits), (less.query_BPD, outputs.query_BPD)):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)
    np.testing.assert_array_equal(less.new_mems_ZBMD, outputs.new_mems_ZBMD)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), less_gradients, gradients)


def products_of_rows(jaxpr, rows):
    """Return the number of products, outside of loops, with a result of so many rows."""
    inside = [eqn for eqn in jaxpr.eqns if eqn.primitive.name != "scan"]
    found = sum(eqn.primitive.name == "dot_general" and rows in eqn.outvars[0].aval.shape for eqn in inside)
    return found + sum(
        products_of_rows(sub, rows) for eqn in inside for sub in jax.extend.core.jaxprs_in_params(eqn.params)
    )


def test_the_last_layer_has_no_products_of_content_rows():
    config = dataclasses.replace(SMALL, num_layers=2)
    ids = jnp.zeros((BATCH, LENGTH), jnp.int32)
    memory_BM = jnp.ones((BATCH, config.mem_len), bool)
    inputs = compact_inputs(ids, perm_rank_BL=ids, target_positions_BP=ids[:, :TARGETS], memory_BM=memory_BM)
    mems = jnp.zeros((config.num_layers, BATCH, config.mem_len, config.d_model))
    network, params = XLNetLM(config), {"params": random_params(config, None)}
    program = jax.make_jaxpr(lambda: network.apply(params, inputs, mems, needs_content=False)[0])().jaxpr
    assert products_of_rows(program, LENGTH + TARGETS) == 0
    assert products_of_rows(program, TARGETS) > 0

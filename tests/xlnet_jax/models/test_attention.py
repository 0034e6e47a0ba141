"""The attention weights that users see are those that rows use, and only an attention implementation makes arrays of
the size of a mask."""

import dataclasses
import math

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from tests.xlnet_jax.kernels import attention_cases
from tests.xlnet_jax.random_models import BERT, SMALL
from xlnet_jax.kernels import implementations, plain
from xlnet_jax.models.heads import build_encoder
from xlnet_jax.models.inputs import compact_inputs


def test_the_weights_that_are_shown_are_those_that_rows_read_by():
    inputs = attention_cases.inputs_of(attention_cases.Case())
    read = jnp.einsum("BNTK,BNKH->BNTH", plain.weights_BNTK(inputs), inputs.value_BNKH)
    np.testing.assert_allclose(read[1], plain.attention_BNTH(inputs)[1], rtol=0, atol=1e-5)


BATCH, LENGTH, TARGETS, MEMORY = 2, 61, 13, 30
NARROW = dataclasses.replace(SMALL, num_layers=2, num_heads=2, d_head=2, d_model=4, d_ff=4, mem_len=MEMORY, dropout=0.1)
SEAMS = {
    "two streams": NARROW,
    "bert": dataclasses.replace(
        BERT, num_layers=2, num_heads=2, d_head=2, d_model=4, d_ff=4, max_positions=LENGTH, attention_dropout=0.1
    ),
}


def largest_array(jaxpr):
    """Return the number of elements of the largest array that a program computes, also inside loops and calls."""
    sizes = [math.prod(var.aval.shape) for eqn in jaxpr.eqns for var in eqn.outvars]
    inner = [largest_array(sub) for eqn in jaxpr.eqns for sub in jax.extend.core.jaxprs_in_params(eqn.params)]
    return max(sizes + inner, default=0)


def rank_inputs(config):
    """Return a batch in the compact form with every input that the network takes."""
    ids = jnp.ones((BATCH, LENGTH), jnp.int32)
    targets = jnp.zeros((BATCH, TARGETS), jnp.int32) if config.positions == "relative" else None
    memory = jnp.ones((BATCH, config.mem_len), bool)
    return compact_inputs(
        ids, segment_ids_BL=ids, perm_rank_BL=ids, target_positions_BP=targets, memory_BM=memory, attention_mask_BL=ids
    )


def training_program(config):
    """The backbone with dropout, forward and backward."""
    network, inputs = build_encoder(config), rank_inputs(config)
    mems = jnp.zeros((config.num_layers, BATCH, config.mem_len, config.d_model))
    shapes = jax.eval_shape(lambda: network.init(jax.random.key(0), inputs, mems))

    def loss(params):
        outputs = network.apply(params, inputs, mems, train=True, rngs={"dropout": jax.random.key(1)})
        return outputs.content_BLD.sum() + (0.0 if outputs.query_BPD is None else outputs.query_BPD.sum())

    return jax.make_jaxpr(jax.grad(loss))(shapes).jaxpr


def mean_of_values(inputs):
    """An implementation that computes nothing of the size of the scores."""
    position = 0.0 if inputs.position_key_2NRH is None else inputs.position_key_2NRH.mean()
    return inputs.query_BNTH + inputs.value_BNKH.mean(2, keepdims=True) + inputs.key_BNKH.mean() + position


@pytest.mark.parametrize("name", SEAMS)
def test_nothing_of_the_size_of_a_mask_is_made_outside_the_attention_implementation(name, monkeypatch):
    mask_size = BATCH * LENGTH * (LENGTH + SEAMS[name].mem_len)
    assert largest_array(training_program(SEAMS[name])) > mask_size
    monkeypatch.setitem(implementations.IMPLEMENTATIONS, "auto", mean_of_values)
    assert largest_array(training_program(SEAMS[name])) < mask_size / 2

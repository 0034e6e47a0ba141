"""Decoding a few rows with a cache gives what the ordinary network computes from scratch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data_pipelines.tokenizer import PAD
from tests.xlnet_jax import random_models
from tests.xlnet_jax.random_models import CAUSAL, SMALL
from xlnet_jax.models.decoding import decode, prefill, prepare
from xlnet_jax.models.heads import XLNetLM
from xlnet_jax.models.inputs import compact_inputs

TINY = dataclasses.replace(SMALL, num_layers=2)
CONFIGS = {
    "default": TINY,
    "other": dataclasses.replace(
        TINY, attn_type="uni", same_length=True, untie_r=False, clamp_len=3, activation="gelu_erf"
    ),
    "causal": dataclasses.replace(CAUSAL, norm="pre"),
    "sinusoidal": dataclasses.replace(CAUSAL, positions="sinusoidal"),
    "bfloat16": dataclasses.replace(TINY, dtype="bfloat16"),
}
CONTEXT, LENGTH, TARGETS = 8, 9, 4
PROMPTS = 3, 5  # lengths


def tokens(seed, *shape):
    return np.random.default_rng(seed).integers(9, 39, shape).astype(np.int32)


strong_params = functools.cache(random_models.strong_params)


@functools.cache
def programs(config):
    return (
        jax.jit(functools.partial(prefill, config), static_argnums=3),
        jax.jit(functools.partial(decode, config)),
        jax.jit(XLNetLM(config).apply),
    )


def cached_logits(config, params, ids_BL, known_BL, order_BT, ahead):
    """Return the logits of each target [T, B, V], given the tokens of ids_BL; position p has the token of p mod L."""
    begin, go_on, _ = programs(config)
    weights = prepare(config, params, CONTEXT, ahead)
    batch, length = ids_BL.shape
    cache, logits_BPV = begin(weights[0], np.where(known_BL, ids_BL, PAD), order_BT[:, :1], CONTEXT)
    found = [logits_BPV]
    for start in range(1, order_BT.shape[1]):
        here_BC, next_BP = order_BT[:, start - 1 : start], order_BT[:, start : start + 1]
        token_BC = ids_BL[np.arange(batch)[:, None], here_BC % length]
        cache, logits_BPV = go_on(*weights, cache, token_BC, here_BC, next_BP)
        found.append(logits_BPV)
    return np.swapaxes(np.concatenate(found, axis=1), 0, 1)


def ranked_logits(config, params, ids_BL, known_BL, order_BT):
    """Return the logits of one pass of the ordinary network over a window that holds all positions. In a causal network
    the content row before a target predicts it."""
    rank_BL = np.full(ids_BL.shape, -1)
    for rank_L, order_T in zip(rank_BL, order_BT, strict=True):
        rank_L[order_T] = np.arange(len(order_T))
    real_BL = known_BL | (rank_BL >= 0)
    inputs = compact_inputs(
        jnp.asarray(ids_BL),
        segment_ids_BL=None if config.is_causal else jnp.zeros_like(ids_BL),
        perm_rank_BL=jnp.asarray(rank_BL),
        target_positions_BP=None if config.is_causal else jnp.asarray(order_BT),
        memory_BM=jnp.zeros((len(ids_BL), CONTEXT - 1), bool),
        attention_mask_BL=jnp.asarray(real_BL),
    )
    mems = jnp.zeros((config.num_layers, len(ids_BL), CONTEXT - 1, config.d_model))
    at_BT = order_BT - 1 if config.is_causal else None
    return np.swapaxes(programs(config)[2]({"params": params}, inputs, mems, at_BP=at_BT)[0], 0, 1)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_cached_gives_what_the_ordinary_network_gives_by_ranks(name):
    """The text grows, but still fits the context; the batch has two lengths."""
    config = CONFIGS[name]
    params, ids = strong_params(config), tokens(0, 2, LENGTH)
    known = np.arange(LENGTH)[None] < np.array(PROMPTS)[:, None]
    order = np.array([np.arange(n, n + TARGETS) for n in PROMPTS])
    ours = cached_logits(config, params, ids, known, order, ahead=False)
    theirs = ranked_logits(config, params, ids, known, order)
    # The last of bfloat16's 8 bits may differ, because sums have another order.
    tolerance = 2**-7 * np.abs(theirs).max() if config.dtype == "bfloat16" else 1e-5
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)
    assert np.abs(theirs[0] - theirs[1]).max() > 5 * tolerance


@pytest.mark.parametrize("length", [PROMPTS[1], CONTEXT])
@pytest.mark.parametrize("name", ["other", "causal"])
def test_a_full_context_is_a_memory_of_all_but_one_of_its_positions(name, length):
    """Compare texts much longer than the context with windows of two positions after the network's own memory. The
    given text may fill the context."""
    config, new = dataclasses.replace(CONFIGS[name], mem_len=CONTEXT - 1), 2 * CONTEXT
    params, ids = strong_params(config), tokens(2, 2, LENGTH)
    known = np.broadcast_to(np.arange(LENGTH) < length, ids.shape)
    order = np.broadcast_to(np.arange(length, length + new), (2, new))
    ours = cached_logits(CONFIGS[name], params, ids, known, order, ahead=False)

    def target_of(position):
        return None if config.is_causal else jnp.full((2, 1), position)

    @jax.jit
    def window(params, ids_B2, mems, filled):
        in_use = jnp.broadcast_to(jnp.arange(CONTEXT - 1) >= CONTEXT - 1 - filled, (2, CONTEXT - 1))
        ranks = jnp.tile(jnp.arange(2), (2, 1))
        inputs = compact_inputs(ids_B2, perm_rank_BL=ranks, target_positions_BP=target_of(1), memory_BM=in_use)
        # Logits of the query row; in a causal network, of the first content row.
        return XLNetLM(config).apply({"params": params}, inputs, mems, reuse_len=1)

    # The memory of the given tokens, from one pass; its last position stays out.
    mems = jnp.zeros((config.num_layers, 2, CONTEXT - 1, config.d_model))
    inputs = compact_inputs(
        jnp.asarray(ids),
        target_positions_BP=target_of(length),
        memory_BM=jnp.zeros((2, CONTEXT - 1), bool),
        attention_mask_BL=jnp.asarray(known),
    )
    read = jax.jit(functools.partial(XLNetLM(config).apply, reuse_len=length))
    logits, outputs = read({"params": params}, inputs, mems)
    np.testing.assert_allclose(ours[0], logits[:, length - 1 if config.is_causal else 0], rtol=0, atol=1e-5)
    mems = outputs.new_mems_ZBMD
    for t, position in enumerate(order[0, :-1]):
        pair = ids[:, [position % LENGTH, (position + 1) % LENGTH]]
        logits, outputs = window(params, pair, mems, position)
        np.testing.assert_allclose(ours[t + 1], logits[:, 0], rtol=0, atol=1e-5)
        mems = outputs.new_mems_ZBMD


def test_no_target_sees_its_token_or_one_that_is_drawn_later():
    """Compare, bit for bit, a text with the same text that has another token at one position."""
    params, order = strong_params(TINY), np.array([[4, 1, 5, 0]] * 2)
    known = np.broadcast_to((np.arange(LENGTH) < CONTEXT) & ~np.isin(np.arange(LENGTH), order), (2, LENGTH))
    for position in range(CONTEXT):
        ids = np.broadcast_to(tokens(3, 1, LENGTH), (2, LENGTH)).copy()
        ids[1, position] += 1
        one, other = np.swapaxes(cached_logits(TINY, params, ids, known, order, ahead=True), 0, 1)
        before = order[0].tolist().index(position) + 1 if position in order else 0
        np.testing.assert_array_equal(one[:before], other[:before])
        assert (np.abs(one[before:] - other[before:]).max(axis=-1) > 1e-3).all()

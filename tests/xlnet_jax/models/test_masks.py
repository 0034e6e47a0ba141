"""Who sees whom, proved by gradients through the whole network on real windows of the compact form."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data_pipelines.permutation import perm_rank, permuted_places, target_slots, to_dense
from tests.xlnet_jax.influence import influence_on_rows
from xlnet_jax.models.heads import XLNetLM
from xlnet_jax.models.xlnet import Backbone
from xlnet_jax.objectives.language_model import LanguageModel, inputs_of
from xlnet_jax.settings.config import Config, DataConfig, ModelConfig
from xlnet_jax.training import sharding

pytestmark = pytest.mark.contract

DATA = DataConfig(batch_size=4, seq_len=16, reuse_len=8, perm_size=8, num_predict=6)
MODEL = ModelConfig(
    vocab_size=40, num_layers=3, d_model=16, num_heads=2, d_head=6, d_ff=24, mem_len=10, dropout=0.0,
    attention_dropout=0.0, init_std=0.3,
)  # fmt: skip
CONFIG = Config(model=MODEL, data=DATA)


def window_batch(seed=0, mem_filled=6):
    """Four windows with their targets and orders drawn at random; two of them read backwards."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(9, MODEL.vocab_size, (4, DATA.seq_len)).astype(np.int32)
    hidden = np.zeros((4, DATA.seq_len), bool)
    for row in hidden:
        row[rng.choice(8, 3, replace=False)] = True
        row[8 + rng.choice(5, 3, replace=False)] = True
    functional = np.zeros_like(hidden)
    functional[:, -2:] = True
    reused, new = (permuted_places(8, 8, rng.random((4, 8))) for _ in range(2))
    return {
        "input_ids": ids,
        "segment_ids": np.repeat([[0] * 11 + [1] * 4 + [2]], 4, axis=0).astype(np.int32),
        "perm_rank": perm_rank(hidden | functional, reused, new, DATA),
        **target_slots(hidden, ids, DATA.num_predict),
        "is_reversed": np.array([False, True, False, True]),
        "mem_filled": np.full(4, mem_filled, np.int32),
    }


MEMS = jnp.asarray(
    np.random.default_rng(1).normal(size=(MODEL.num_layers, 4, MODEL.mem_len, MODEL.d_model)), jnp.float32
)
ZEROS = jnp.zeros_like(MEMS)


@pytest.fixture(scope="module")
def params():
    def draw(key):
        inputs = inputs_of(window_batch(), CONFIG)[0]
        return sharding.unboxed(XLNetLM(MODEL).init(key, inputs, MEMS, reuse_len=8)["params"])

    return jax.jit(draw)(jax.random.key(0))


@pytest.fixture(scope="module")
def influence(params):
    """Gradients of query rows by token [B, P, L] and memory slot [B, P, M], and of content rows [B, L, L]."""
    inputs = inputs_of(window_batch(), CONFIG)[0]
    of_tokens, of_memory = (np.swapaxes(x, 0, 1) for x in influence_on_rows(MODEL, params["backbone"], inputs, MEMS))
    return of_tokens[:, DATA.seq_len :], of_memory[:, DATA.seq_len :], of_tokens[:, : DATA.seq_len]


def test_query_stream_never_sees_its_own_token_or_a_later_one(influence):
    batch, (query, _, _) = window_batch(), influence
    rank, positions = batch["perm_rank"], batch["target_positions"]
    for b in range(4):
        for p in range(DATA.num_predict):
            own = rank[b, positions[b, p]]
            assert (query[b, p, rank[b] >= own] == 0.0).all()
            assert (query[b, p, rank[b] < own] > 0.0).all()


def test_query_stream_sees_the_memory_in_use_and_no_other(influence):
    _, memory, _ = influence
    assert (memory[:, :, -6:] > 0.0).all()
    assert (memory[:, :, :-6] == 0.0).all()


def test_first_part_depends_on_nothing_of_the_second(influence):
    query, _, content = influence
    batch = window_batch()
    first = batch["target_positions"] < DATA.reuse_len
    assert (query[first][:, DATA.reuse_len :] == 0.0).all()
    assert (content[:, : DATA.reuse_len, DATA.reuse_len :] == 0.0).all()


def test_content_stream_sees_its_own_token(influence):
    _, _, content = influence
    assert (content[:, np.arange(DATA.seq_len), np.arange(DATA.seq_len)] > 0.0).all()


@jax.jit
def loss_and_mems(params, batch, mems):
    scored = LanguageModel(CONFIG).score(params, batch, mems, None)
    return scored.loss_sum, scored.new_mems_ZBMD


def test_compact_and_dense_form_give_the_same_loss(params):
    batch = window_batch()
    compact, dense = (loss_and_mems(params, form, MEMS) for form in (batch, to_dense(batch)))
    np.testing.assert_allclose(compact[0], dense[0], rtol=1e-6)
    np.testing.assert_array_equal(compact[1], dense[1])


def test_unused_memory_may_hold_anything(params):
    batch = window_batch(mem_filled=0)
    clean = loss_and_mems(params, batch, ZEROS)
    for dirt in (jnp.nan, jnp.inf, 1e30):
        dirty = loss_and_mems(params, batch, jnp.full_like(MEMS, dirt))
        np.testing.assert_array_equal(clean[0], dirty[0])


def test_under_paper2019_empty_memory_is_attended_to_as_zeros(params):
    """Rows do not read what the empty slots held before: the memory of the previous row is cleared."""
    attending = dataclasses.replace(CONFIG, model=dataclasses.replace(MODEL, profile="paper2019"))

    def loss(batch, mems):
        return LanguageModel(attending).score(params, batch, mems, None).loss_sum

    empty, full = window_batch(mem_filled=0), window_batch(mem_filled=MODEL.mem_len)
    theirs = jax.jit(loss)(full, ZEROS)  # the 2019 code does not count the slots in use
    for form in (empty, to_dense(empty)):
        np.testing.assert_allclose(jax.jit(loss)(form, MEMS), theirs, rtol=1e-6)
    assert abs(loss_and_mems(params, empty, ZEROS)[0] - theirs) > 1e-3


def test_new_memory_is_the_reused_part_behind_the_old(params):
    batch = window_batch(mem_filled=MODEL.mem_len)
    _, new_mems = loss_and_mems(params, batch, MEMS)
    np.testing.assert_array_equal(new_mems[:, :, : MODEL.mem_len - 8], MEMS[:, :, 8:])
    embedded = params["backbone"]["word_embedding"][batch["input_ids"][:, :8]]
    np.testing.assert_array_equal(new_mems[0, :, MODEL.mem_len - 8 :], embedded)


def test_reading_backwards_negates_every_distance(params):
    """Text reversed within the window, with the flag turned, gives the same loss: only the order of rows differs."""
    batch = window_batch(mem_filled=0)
    mirrored = {
        k: (v[:, ::-1].copy() if k in ("input_ids", "segment_ids", "perm_rank") else v) for k, v in batch.items()
    }
    mirrored["target_positions"] = DATA.seq_len - 1 - batch["target_positions"]
    mirrored["is_reversed"] = ~batch["is_reversed"]
    here, there = (loss_and_mems(params, form, ZEROS)[0] for form in (batch, mirrored))
    np.testing.assert_allclose(here, there, rtol=1e-6)


def test_no_gradient_flows_into_the_memory_that_is_passed_on(params):
    def size_of_mems(params):
        return loss_and_mems(params, window_batch(), MEMS)[1].sum()

    assert all((g == 0.0).all() for g in jax.tree.leaves(jax.jit(jax.grad(size_of_mems))(params)))


def test_inputs_without_a_query_stream_give_the_content_stream_alone(params):
    full = inputs_of(window_batch(mem_filled=0), CONFIG)[0]
    relations = full.relations.of_rows(lambda x_BT: x_BT[:, : DATA.seq_len])
    alone = full._replace(target_positions_BP=None, relations=relations)
    read = jax.jit(functools.partial(Backbone(MODEL).apply, reuse_len=8))
    both, content = (read({"params": params["backbone"]}, inputs, MEMS) for inputs in (full, alone))
    assert content.query_BPD is None
    np.testing.assert_allclose(both.content_BLD, content.content_BLD, rtol=0, atol=1e-5)

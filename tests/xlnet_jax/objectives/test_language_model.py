"""Tokens that each objective may see, proved by gradients of its loss on batches of the pipeline."""

import functools
import itertools
import math
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data_pipelines.permutation import to_dense
from data_pipelines.tokenizer import MASK
from tests.xlnet_jax.influence import influence_on_rows
from tests.xlnet_jax.tiny_text import batches_of
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.dims import Batch
from xlnet_jax.inference.log_probs import Query, log_likelihoods
from xlnet_jax.models.heads import XLNetLM
from xlnet_jax.objectives.language_model import LanguageModel, inputs_of
from xlnet_jax.objectives.presets import with_objective
from xlnet_jax.objectives.registry import validate
from xlnet_jax.settings.config import Config, DataConfig, ModelConfig
from xlnet_jax.training import sharding

pytestmark = pytest.mark.contract

ROWS, LENGTH, MEMORY = 2, 8, 6
PLM = Config(
    model=ModelConfig(
        vocab_size=40, num_layers=2, d_model=16, num_heads=2, d_head=6, d_ff=24, mem_len=MEMORY, dropout=0.0,
        attention_dropout=0.0, init_std=0.3,
    ),
    data=DataConfig(
        batch_size=ROWS, seq_len=LENGTH, reuse_len=4, perm_size=4, num_predict=2, windows_per_block=4
    ),
)  # fmt: skip


def with_data(config, **values):
    return replace(config, data=replace(config.data, **values))


CLM = with_data(with_objective(PLM, "clm"), perm_size=8)


MLM = with_data(with_objective(PLM, "mlm"), seq_len=16, num_predict=4)
BERT = replace(MLM, model=replace(MLM.model, positions="learned", max_positions=16))
DAE = replace(with_data(MLM, reuse_len=8), model=PLM.model)  # with memory: the paper's DAE + Transformer-XL


def drawn_params(config):
    return sharding.unboxed(jax.jit(LanguageModel(config).init)(jax.random.key(0)))


def random_mems(config, seed=1):
    shape = LanguageModel(config).mems.shape
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


class Influence(NamedTuple):
    """Sizes of gradients, by the place of the loss among the batch's targets."""

    batch: Batch
    of_tokens: np.ndarray  # [P, B, L]
    of_memory: np.ndarray  # [P, B, M]
    on_new_memory: np.ndarray  # [B, L], of each token, were it not stopped


def influence(config, step):
    """Return the tokens that the loss of each target of batch `step`, and the memory that it hands on, depend on."""
    validate(config)
    batch = batches_of(config).batch_at(step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.lax, "stop_gradient", lambda x: x)
        by_rows, by_mems = gradients_of(config)(batch, random_mems(config))
    of_tokens = np.abs(by_rows).sum(-1).reshape(-1, *batch["input_ids"].shape)
    return Influence(batch, of_tokens[:-1], np.abs(by_mems).sum((1, 4))[:-1], of_tokens[-1])


@functools.cache
def gradients_of(config):
    """Return a compiled function of a batch and the memory: gradients by embedding row of each position, and by memory,
    of the loss of each target and, last, of the new memory."""
    params = drawn_params(config)
    table = params["backbone"]["word_embedding"]

    def measure(own_rows, mems, of_targets_P, of_new_mems, batch):
        # Each position gets an embedding of its own, at the end of the table, which no softmax knows: the gradient by
        # token is the gradient by embedding row.
        vocab_size, own = config.model.vocab_size, batch["input_ids"].size
        bias = jnp.concatenate([params["output_bias"], jnp.full(own, -1e9)])
        own_ids = vocab_size + np.arange(own, dtype=np.int32).reshape(batch["input_ids"].shape)
        wider = LanguageModel(replace(config, model=replace(config.model, vocab_size=vocab_size + own)))
        direction = jax.random.normal(jax.random.key(3), mems.shape)
        backbone = {**params["backbone"], "word_embedding": jnp.concatenate([table, own_rows])}
        changed = {"input_ids": own_ids, "target_weights": of_targets_P * batch["target_weights"]}
        given = {**params, "backbone": backbone, "output_bias": bias}
        scored = wider.score(given, batch | changed, mems, None)
        return scored.loss_sum + of_new_mems * (scored.new_mems_ZBMD * direction).sum()

    @jax.jit
    def gradients(batch, mems):
        targets = batch["target_ids"].shape[1]
        one_by_one = jnp.eye(targets + 1, targets)[:, None, :], jnp.arange(targets + 1) == targets
        own_rows = table[batch["input_ids"].reshape(-1)]
        by_each = jax.vmap(jax.grad(measure, (0, 1)), (None, None, 0, 0, None))
        return by_each(own_rows, mems, *one_by_one, batch)

    return gradients


# ---- clm ------------------------------------------------------------------------------------------------------------


def test_a_causal_loss_depends_on_its_position_on_all_before_it_and_in_memory_and_on_nothing_after_it():
    found = influence(CLM, step=1)
    place, token = np.arange(LENGTH)[:, None], np.arange(LENGTH)[None]
    sees = np.broadcast_to((token <= place)[:, None], found.of_tokens.shape)
    assert (found.of_tokens[sees] > 0.0).all()
    assert (found.of_tokens[~sees] == 0.0).all()
    assert (found.batch["mem_filled"] == MEMORY).all()
    assert (found.of_memory > 0.0).all()


# ---- plm in groups --------------------------------------------------------------------------------------------------

GROUPED = with_data(
    PLM, seq_len=16, reuse_len=8, perm_size=8, num_predict=8, targets="pieces", group_sizes=(3,), bidirectional=False
)


def test_a_loss_depends_on_no_target_of_its_group_and_on_all_of_earlier_ones():
    found = influence(GROUPED, step=1)
    rank_BL = found.batch["perm_rank"]
    own_PB = np.take_along_axis(rank_BL, found.batch["target_positions"], axis=1).T
    assert {tuple(np.unique(own_B, return_counts=True)[1]) for own_B in own_PB.T} == {(3, 1, 3, 1)}
    sees = rank_BL < own_PB[..., None]
    assert (found.of_tokens[sees] > 0.0).all()
    assert (found.of_tokens[~sees] == 0.0).all()
    assert (found.of_memory > 0.0).all()


@pytest.mark.parametrize("sizes", [(3,), (2, 4)])
def test_targets_of_a_group_see_each_other_in_the_content_stream_and_alike_in_dense_batches(sizes):
    config = with_data(GROUPED, group_sizes=sizes)
    batch, params = batches_of(config).batch_at(1), drawn_params(config)
    inputs, _ = inputs_of(batch, config)
    of_tokens, _ = influence_on_rows(config.model, params["backbone"], inputs, random_mems(config))
    content, rank_BL = of_tokens[: config.data.seq_len], batch["perm_rank"]
    sees = rank_BL <= rank_BL.T[..., None]
    assert (content[sees] > 0.0).all()
    assert (content[~sees] == 0.0).all()

    score = jax.jit(LanguageModel(config).score)
    compact, dense = (score(params, form, random_mems(config), None) for form in (batch, to_dense(batch)))
    np.testing.assert_allclose(dense.loss_sum, compact.loss_sum, rtol=1e-6)
    np.testing.assert_array_equal(dense.new_mems_ZBMD, compact.new_mems_ZBMD)
    alone = batches_of(with_data(config, group_sizes=(1,))).batch_at(1)
    assert abs(score(params, alone, random_mems(config), None).loss_sum - compact.loss_sum) > 1e-3


# ---- documents packed into one window --------------------------------------------------------------------------------

PACKED = {
    "plm with memory": with_data(PLM, window="sentences", seq_len=16, reuse_len=8, num_predict=6, pack=True),
    "mlm": with_data(MLM, window="text", pack=True),
    "mlm with learned positions": with_data(BERT, window="sentences", pack=True),
    "mlm with memory": with_data(DAE, window="text", pack=True),
    "clm with memory": with_data(CLM, seq_len=16, reuse_len=16, pack=True),
}


@pytest.mark.parametrize("config", PACKED.values(), ids=PACKED.keys())
def test_a_loss_depends_on_the_document_of_its_target_alone(config):
    several = 0
    for step in (0, 1, 2):
        found = influence(config, step)
        batch, mem_len = found.batch, config.model.mem_len
        start_BL = batch["document_start"]
        start_PB = np.take_along_axis(start_BL, batch["target_positions"], axis=1).T
        in_document = start_PB[..., None] == start_BL
        assert (found.of_tokens[~in_document] == 0.0).all()
        in_memory = np.arange(-mem_len, 0) >= start_PB[..., None]
        assert (found.of_memory[~in_memory] == 0.0).all()
        is_target = (batch["target_weights"] > 0).T
        assert (found.of_tokens.max((1, 2)) > 0).any()
        if mem_len and step:
            assert (found.of_memory[in_memory & is_target[..., None]] > 0.0).all()
        several += (start_BL[:, -1] != start_BL[:, 0]).sum()
    assert several > 1, "no window holds two documents"


# ---- prefix ---------------------------------------------------------------------------------------------------------

PREFIX = with_objective(PLM, "prefix")
PREFIX_WITH_MEMORY = with_data(replace(PREFIX, model=replace(PREFIX.model, mem_len=MEMORY)), reuse_len=LENGTH)
both_memories = pytest.mark.parametrize("config", [PREFIX, PREFIX_WITH_MEMORY], ids=["alone", "with memory"])


def last_of_prefix_B(batch):
    return (batch["perm_rank"] == 0).sum(1) - 1


@both_memories
def test_a_prefix_loss_depends_on_nothing_from_its_target_on(config):
    found = influence(config, step=1)
    place, token = np.arange(LENGTH)[:, None, None], np.arange(LENGTH)
    is_target = place >= last_of_prefix_B(found.batch)[:, None]
    sees = np.broadcast_to(is_target & (token <= place), found.of_tokens.shape)  # target of place i is token i + 1
    assert (found.of_tokens[sees] > 0.0).all()
    assert (found.of_tokens[~sees] == 0.0).all()
    if config.model.mem_len:
        assert (found.of_memory[np.broadcast_to(is_target[..., 0], found.of_memory.shape[:2])] > 0.0).all()


@both_memories
def test_rows_of_a_prefix_depend_on_all_of_it_and_later_rows_on_what_precedes_them(config):
    batch = batches_of(config).batch_at(1)
    last_B = last_of_prefix_B(batch)
    assert last_B.max() > 0, "no prefix of more than one token"
    row, token = np.arange(LENGTH)[:, None, None], np.arange(LENGTH)
    sees = token <= np.maximum(row, last_B[:, None])
    inputs, _ = inputs_of(batch, config)
    of_tokens, _ = influence_on_rows(config.model, drawn_params(config)["backbone"], inputs, random_mems(config))
    assert (of_tokens[sees] > 0.0).all()
    assert (of_tokens[~sees] == 0.0).all()


def test_windows_of_running_text_go_on_where_the_one_before_ended():
    """With memory too: so no hidden state in memory has seen a token that is still to be predicted."""
    for config in (CLM, PREFIX, PREFIX_WITH_MEMORY):
        source = batches_of(config)
        here, following = source.batch_at(1), source.batch_at(2)
        np.testing.assert_array_equal(here["target_ids"][:, :-1], here["input_ids"][:, 1:])
        np.testing.assert_array_equal(here["target_ids"][:, -1], following["input_ids"][:, 0])


# ---- mlm ------------------------------------------------------------------------------------------------------------


def test_a_masked_loss_of_bert_depends_on_the_whole_window():
    found = influence(BERT, step=1)
    assert found.batch["target_weights"].all()
    assert (found.of_tokens > 0.0).all()


def test_with_memory_masked_losses_depend_on_all_of_it_and_those_that_become_memory_on_nothing_after_them():
    """For what lies after the reused part comes again."""
    found, reuse = influence(DAE, step=1), DAE.data.reuse_len
    in_reused = (found.batch["target_positions"] < reuse).T  # [P, B]
    assert in_reused.any()
    assert (found.of_tokens[in_reused][:, :reuse] > 0.0).all()
    assert (found.of_tokens[in_reused][:, reuse:] == 0.0).all()
    assert (found.of_tokens[~in_reused] > 0.0).all()
    assert (found.batch["mem_filled"] == MEMORY).all()
    assert (found.of_memory > 0.0).all()
    assert (found.on_new_memory[:, reuse - MEMORY : reuse] > 0.0).all()
    assert (found.on_new_memory[:, reuse:] == 0.0).all()


def test_a_masked_loss_is_at_the_masked_places_alone():
    """The loss equals one counted by hand from the logits of all positions; targets in other slots do not matter."""
    everywhere = with_data(MLM, num_predict=None)
    batch, params = batches_of(everywhere).batch_at(0), drawn_params(MLM)
    is_target = batch["target_weights"] > 0
    assert 0 < is_target.sum() < is_target.size
    mems = jnp.zeros(LanguageModel(MLM).mems.shape)
    score = jax.jit(LanguageModel(everywhere).score)
    scored = score(params, batch, mems, None)
    elsewhere = np.where(is_target, batch["target_ids"], 7)
    np.testing.assert_array_equal(
        scored.loss_sum, score(params, batch | {"target_ids": elsewhere}, mems, None).loss_sum
    )

    inputs, _ = inputs_of(batch, everywhere)
    logits_BLV, _ = jax.jit(XLNetLM(MLM.model).apply)({"params": params}, inputs, mems)
    by_hand = -np.take_along_axis(np.asarray(jax.nn.log_softmax(logits_BLV)), batch["target_ids"][:, :, None], -1)
    np.testing.assert_allclose(scored.loss_sum / is_target.sum(), by_hand[is_target].mean(), rtol=0, atol=1e-5)


# ---- mdlm -----------------------------------------------------------------------------------------------------------

MDLM = with_data(with_objective(PLM, "mdlm"), seq_len=5)


@pytest.mark.parametrize("positions", ["relative", "learned"])
def test_a_diffusion_loss_is_at_masked_tokens_and_depends_on_the_whole_window(positions):
    config = replace(MDLM, model=replace(MDLM.model, positions=positions, max_positions=5))
    found = influence(config, step=1)
    is_target = (found.batch["target_weights"] > 0).T
    assert 0 < is_target.sum() < is_target.size
    np.testing.assert_array_equal((found.batch["input_ids"] == MASK).T, is_target)
    assert (found.of_tokens[is_target] > 0.0).all()
    assert (found.of_tokens[~is_target] == 0.0).all()


def test_the_mean_diffusion_loss_over_all_draws_is_the_mean_over_all_orders():
    """The bound, enumerated on both sides: numbers of masked tokens and their sets, and orders of prediction."""
    length, params = MDLM.data.seq_len, drawn_params(MDLM)
    ids = np.random.default_rng(0).integers(9, 40, length).astype(np.int32)
    sets = np.array([s for s in itertools.product([False, True], repeat=length) if any(s)])
    counts = sets.sum(1, keepdims=True)
    shares = 1 / length / np.array([[math.comb(length, n)] for n in counts[:, 0]])  # how often each set is drawn
    batch = {
        "input_ids": np.where(sets, MASK, ids),
        "perm_rank": np.zeros(sets.shape, np.int32),
        "target_positions": np.broadcast_to(np.arange(length), sets.shape),
        "target_ids": np.broadcast_to(ids, sets.shape),
        "target_weights": (sets * shares * length / counts).astype(np.float32),
        "is_reversed": np.zeros(len(sets), bool),
        "mem_filled": np.zeros(len(sets), np.int32),
    }
    config = with_data(MDLM, batch_size=len(sets))
    scored = LanguageModel(config).score(params, batch, jnp.zeros(LanguageModel(config).mems.shape), None)
    assert scored.weight_sum == pytest.approx(length, rel=1e-6)

    orders = np.array(list(itertools.permutations(range(length))))
    queries = [Query(ids, np.arange(length), order) for order in orders]
    of_orders = log_likelihoods(Pretrained(MDLM.model, params, "mdlm"), queries, 4096)
    assert scored.loss_sum == pytest.approx(-np.mean(np.sum(of_orders, axis=1)), rel=1e-5)

"""Gradients in bfloat16 are those in float32 but for rounding: no sum over tokens is taken in bfloat16, where it stops
growing after a few hundred terms."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.xlnet_jax.random_models import HEADS
from tests.xlnet_jax.tiny_text import batches_of
from tests.xlnet_jax.training.test_golden import RUNS
from xlnet_jax.interop.weights import flatten
from xlnet_jax.kernels.mesh import interpret_kernels
from xlnet_jax.models.heads import build_model, init_params
from xlnet_jax.models.inputs import compact_inputs, text_inputs
from xlnet_jax.objectives.language_model import BatchDropout, objective_of
from xlnet_jax.settings.config import ModelConfig
from xlnet_jax.training import sharding

TINY = ModelConfig(
    vocab_size=60, num_layers=1, d_model=16, num_heads=2, d_head=8, d_ff=32, mem_len=0, init_std=0.2,
    dropout=0.0, attention_dropout=0.0, max_positions=64,
)  # fmt: skip
BERT = dataclasses.replace(TINY, positions="learned")
MASK_ID = 6


def in_bfloat16(config):
    return dataclasses.replace(config, dtype="bfloat16")


# ---- numbers ---------------------------------------------------------------------------------------------------------


def lm_gradients(config, stream, params, ids_BL, positions_BP):
    """Return the gradients of a mean loss that a stream has at these positions."""
    batch, by_query = len(ids_BL), stream == "query"
    inputs = compact_inputs(
        ids_BL,
        segment_ids_BL=jnp.repeat(jnp.array([[0] * 40 + [1] * 24]), batch, axis=0),
        perm_rank_BL=jnp.where(ids_BL == MASK_ID, 1, 0) if by_query else None,
        target_positions_BP=positions_BP if by_query else None,
        is_reversed_B=jnp.arange(batch) % 2 == 1,
    )

    def loss(params):
        logits_BPV, _ = build_model(config, None).apply(
            {"params": params}, inputs, at_BP=None if by_query else positions_BP
        )
        # The same pieces are right everywhere, so that the terms of a sum do not cancel out.
        return -jax.nn.log_softmax(logits_BPV)[:, :, 50:].mean()

    return flatten(jax.jit(jax.grad(loss))(params))


@pytest.mark.parametrize(
    ("config", "stream"), [(TINY, "query"), (TINY, "content"), (BERT, "content")], ids=["plm", "mlm", "bert"]
)
def test_a_parameter_that_thousands_of_tokens_read_has_its_gradient(config, stream):
    """16,384 tokens, a quarter of them <mask>, as in masked language modelling; two segments; a query row a <mask>."""
    rng = np.random.default_rng(0)
    ids_BL = rng.integers(9, 60, (256, 64)).astype(np.int32)
    positions_BP = np.sort(rng.random((256, 64)).argsort(1)[:, :16]).astype(np.int32)
    np.put_along_axis(ids_BL, positions_BP, MASK_ID, axis=1)
    params = sharding.unboxed(init_params(config, None, jax.random.key(0)))
    exact = lm_gradients(config, stream, params, ids_BL, positions_BP)
    for path, found in lm_gradients(in_bfloat16(config), stream, params, ids_BL, positions_BP).items():
        if np.linalg.norm(exact[path]) < 1e-9:
            continue  # Without a query stream nothing reads its embedding; softmax ignores the bias of keys.
        gradients = {path: (found, exact[path])}
        if path.endswith("word_embedding"):
            gradients["<mask>"] = found[MASK_ID], exact[path][MASK_ID]
        for name, (one, other) in gradients.items():
            error = np.linalg.norm(one - other) / np.linalg.norm(other)
            assert error < 0.025, f"{name}: {error:.1%} off"


# ---- types -----------------------------------------------------------------------------------------------------------


SUMS = "reduce_sum", "scatter-add", "cumsum", "reduce_window_sum", "addupdate", "psum"


def sums_in_bfloat16(jaxpr):
    """Yield every sum in bfloat16 of a program. Not counted: sums of one term; matrix products, which every processor
    accumulates in float32; gradients of rows taken from [B, L, D], where no row is taken twice but with weight 0."""
    for eqn in jaxpr.eqns:
        shapes = [v.aval for v in (*eqn.invars[:1], *eqn.outvars)]
        if any(getattr(shape, "dtype", None) == jnp.bfloat16 for shape in shapes):
            name = eqn.primitive.name
            is_rows = name == "scatter-add" and shapes[0].ndim == 3
            one_term = name == "reduce_sum" and shapes[0].size == shapes[1].size
            if name in SUMS and not is_rows and not one_term:
                yield str(eqn)
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from sums_in_bfloat16(inner)


def assert_no_sums_in_bfloat16(loss, params):
    assert list(sums_in_bfloat16(jax.make_jaxpr(jax.grad(loss))(params).jaxpr)) == []


CASES = [*((name, None) for name in RUNS), ("plm, packed", "v5e"), ("plm, packed", "gpu")]


@pytest.mark.parametrize(("name", "device"), CASES)
def test_no_gradient_of_an_objective_is_summed_in_bfloat16(name, device):
    config = RUNS[name]
    attention = "fused" if device else "plain"
    model = dataclasses.replace(in_bfloat16(config.model), dropout=0.1, attention_dropout=0.1, attention=attention)
    config = dataclasses.replace(config, model=model)
    objective, batch = objective_of(config), batches_of(config).batch_at(0)
    dropout = BatchDropout(jax.random.key(0), jnp.arange(config.data.batch_size))
    mems = jnp.zeros(objective.mems.shape, objective.mems.dtype)

    def loss(params):
        scored = objective.score(params, batch, mems, dropout)
        return scored.loss_sum + sum(scored.row_losses.values())

    with interpret_kernels(device) if device else contextlib.nullcontext():
        assert_no_sums_in_bfloat16(loss, sharding.unboxed(jax.eval_shape(objective.init, jax.random.key(0))))


@pytest.mark.parametrize(
    "name", ["attn", "regression", "multiple_choice", "token_classification", "question_answering"]
)
def test_no_gradient_of_a_head_is_summed_in_bfloat16(name):
    config, head = dataclasses.replace(in_bfloat16(TINY), dropout=0.1, attention_dropout=0.1), HEADS[name]
    model, ids_BL = build_model(config, head), jnp.ones((8, 16), jnp.int32)
    rest = {"question_answering": (ids_BL[:, 0], ids_BL, ids_BL[:, 0]), "token_classification": ()}
    arguments = text_inputs(ids_BL, ids_BL, ids_BL), *rest.get(name, (ids_BL,))

    def loss(params):
        outputs = model.apply({"params": params}, *arguments, train=True, rngs={"dropout": jax.random.key(0)})
        return sum(output.sum() for output in jax.tree.leaves(outputs))

    shapes = jax.eval_shape(lambda key: init_params(config, head, key), jax.random.key(0))
    assert_no_sums_in_bfloat16(loss, sharding.unboxed(shapes))

"""No sum over tokens is taken in bfloat16, where it stops growing after a few hundred terms."""

import contextlib
import dataclasses

import jax
import jax.extend
import jax.numpy as jnp
import pytest

from tests.xlnet_jax.kernels.running import running_kernels
from tests.xlnet_jax.random_models import HEADS
from tests.xlnet_jax.tiny_text import batches_of
from tests.xlnet_jax.training.test_golden import RUNS
from xlnet_jax.models.heads import build_model, init_params
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.objectives.language_model import BatchDropout, objective_of
from xlnet_jax.settings.config import ModelConfig
from xlnet_jax.training import sharding

TINY = ModelConfig(
    vocab_size=60, num_layers=1, d_model=16, num_heads=2, d_head=8, d_ff=32, mem_len=0, dtype="bfloat16",
)  # fmt: skip
SUMS = "reduce_sum", "scatter-add", "cumsum", "reduce_window_sum", "addupdate", "psum"


def sums_in_bfloat16(jaxpr):
    """Yield every sum in bfloat16 of a program, except sums of one term, matrix products, which every processor
    accumulates in float32, and gradients of rows taken from [B, L, D], where only rows of weight 0 are taken twice."""
    for eqn in jaxpr.eqns:
        shapes = [v.aval for v in (*eqn.invars[:1], *eqn.outvars)]
        if any(getattr(shape, "dtype", None) == jnp.bfloat16 for shape in shapes):
            name = eqn.primitive.name
            is_rows = name == "scatter-add" and shapes[0].ndim == 3
            one_term = name == "reduce_sum" and shapes[0].size == shapes[1].size
            if name in SUMS and not is_rows and not one_term:
                yield str(eqn)
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from sums_in_bfloat16(inner)


def assert_no_sums_in_bfloat16(loss, params):
    assert list(sums_in_bfloat16(jax.make_jaxpr(jax.grad(loss))(params).jaxpr)) == []


CASES = [*((name, None) for name in RUNS), ("plm, packed", "v5e"), ("plm, packed", "gpu")]


@pytest.mark.parametrize(("name", "device"), CASES)
def test_no_gradient_of_an_objective_is_summed_in_bfloat16(name, device):
    config = RUNS[name]
    attention = "fused" if device else "plain"
    model = dataclasses.replace(config.model, dtype="bfloat16", dropout=0.1, attention_dropout=0.1, attention=attention)
    config = dataclasses.replace(config, model=model)
    objective, batch = objective_of(config), batches_of(config).batch_at(0)
    dropout = BatchDropout(jax.random.key(0), jnp.arange(config.data.batch_size))
    mems = jnp.zeros(objective.mems.shape, objective.mems.dtype)

    def loss(params):
        scored = objective.score(params, batch, mems, dropout)
        return scored.loss_sum + sum(scored.row_losses.values())

    with running_kernels(device) if device else contextlib.nullcontext():
        assert_no_sums_in_bfloat16(loss, sharding.unboxed(jax.eval_shape(objective.init, jax.random.key(0))))


@pytest.mark.parametrize(
    "name", ["attn", "regression", "multiple_choice", "token_classification", "question_answering"]
)
def test_no_gradient_of_a_head_is_summed_in_bfloat16(name):
    head = HEADS[name]
    model, ids_BL = build_model(TINY, head), jnp.ones((8, 16), jnp.int32)
    rest = {"question_answering": (ids_BL[:, 0], ids_BL, ids_BL[:, 0]), "token_classification": ()}
    arguments = text_inputs(ids_BL, ids_BL, ids_BL), *rest.get(name, (ids_BL,))

    def loss(params):
        outputs = model.apply({"params": params}, *arguments, train=True, rngs={"dropout": jax.random.key(0)})
        return sum(output.sum() for output in jax.tree.leaves(outputs))

    shapes = jax.eval_shape(lambda key: init_params(TINY, head, key), jax.random.key(0))
    assert_no_sums_in_bfloat16(loss, sharding.unboxed(shapes))

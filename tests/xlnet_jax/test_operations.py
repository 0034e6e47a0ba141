"""Operations counted by hand, held to the matrix products that jax traces."""

import dataclasses
import math

import jax
import pytest

from tests.xlnet_jax.training.tiny import CONFIG, batch_at
from xlnet_jax.config import large
from xlnet_jax.models.lm import XLNetLM
from xlnet_jax.objectives import plm
from xlnet_jax.operations import multiply_adds, recomputed_operations, step_operations


def traced_multiply_adds(jaxpr):
    """Of all matrix products of a traced function: a scan's body counts as often as it runs."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            sizes = [eqn.invars[0].aval.shape[axis] for axis in contracted]
            total += math.prod(eqn.outvars[0].aval.shape) * math.prod(sizes)
        inner = sum(traced_multiply_adds(sub) for sub in jax.core.jaxprs_in_params(eqn.params))
        total += inner * eqn.params.get("length", 1)
    return total


def trace(config, function):
    """The matrix products of the loss of a batch, or of what `function` makes of it."""
    model, batch = XLNetLM(config.model), batch_at(1, config.data)
    m, d = config.model, config.data
    mems = jax.ShapeDtypeStruct((m.num_layers, d.batch_size, m.mem_len, m.d_model), m.dtype)
    key = jax.random.key(0)
    inputs = plm.inputs_of(batch, m)
    params = jax.eval_shape(lambda: model.init({"params": key}, inputs, jax.numpy.zeros(mems.shape), reuse_len=d.reuse_len)["params"])

    def loss(params, mems):
        return plm.score(model, params, batch, mems, d.reuse_len, key).loss_sum

    return traced_multiply_adds(jax.make_jaxpr(function(loss))(params, mems).jaxpr)


def of_model(**settings):
    return dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, **settings))


def test_the_forward_pass_counts_what_jax_traces():
    counted = multiply_adds(CONFIG.model, CONFIG.data)
    print(trace(CONFIG, lambda loss: loss), sum(p.forward for p in counted.values()))
    print(trace(CONFIG, jax.grad), step_operations(CONFIG)/2)
    for r in ("none","full","dots"):
        c=of_model(remat=r)
        print(r,trace(c, jax.grad), (step_operations(c)+recomputed_operations(c))/2, {k:v for k,v in counted.items()})
    assert 0

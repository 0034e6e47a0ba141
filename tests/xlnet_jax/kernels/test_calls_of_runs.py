"""The fused kernels in the networks that call them, interpreted on the CPU: losses and gradients of plain attention."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.xlnet_jax.kernels.running import running_kernels
from tests.xlnet_jax.random_models import SMALL
from tests.xlnet_jax.tiny_text import batches_of
from tests.xlnet_jax.training.test_golden import RUNS
from tests.xlnet_jax.training.tiny import CONFIG, changed
from xlnet_jax.kernels.tpu.tiles import GENERATIONS
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.models.xlnet import Backbone
from xlnet_jax.objectives.language_model import BatchDropout, objective_of
from xlnet_jax.training import sharding

PLM = changed(
    CONFIG,
    {"num_layers": 1, "mem_len": 40, "d_head": 64},
    {"windows_per_block": 4, "batch_size": 2, "seq_len": 144, "reuse_len": 72, "perm_size": 72, "num_predict": 24},
)
RUNS_OF = {
    "plm": PLM,
    "plm, packed": changed(PLM, data={"window": "sentences", "pack": True}),
    "clm": changed(
        RUNS["clm"], {"mem_len": 130, "d_head": 32, "attention_dropout": 0.1}, {"seq_len": 144, "reuse_len": 144}
    ),
    "bert": changed(RUNS["bert"], {"max_positions": 70, "d_head": 64}, {"seq_len": 70}),
}


def pulled_back(config, attention):
    """Return the loss of the last windows of two blocks, where memory is full, and its gradients."""
    params = sharding.unboxed(objective_of(changed(config, {"attention": "plain"})).init(jax.random.key(0)))
    objective, batches = objective_of(changed(config, {"attention": attention})), batches_of(config)
    batch = batches.batch_at(batches.steps_per_block - 1, range(2))
    batch["mem_filled"] = np.array([config.model.mem_len, config.model.mem_len // 2], np.int32)
    if "is_reversed" in batch:
        batch["is_reversed"] = np.array([False, config.data.bidirectional])
    mems = 0.1 * jax.random.normal(jax.random.key(1), objective.mems.shape, objective.mems.dtype)[:, :2]
    dropout = BatchDropout(jax.random.key(2), jnp.arange(2))

    def loss(params):
        return objective.score(params, jax.tree.map(jnp.asarray, batch), mems, dropout)[0]

    return jax.jit(jax.value_and_grad(loss))(params)


def assert_equal(ours, theirs):
    def compare(a, b):
        difference, size = (np.linalg.norm(np.asarray(x, np.float32)) for x in (a - b, b))
        assert difference <= 1e-4 * size + 1e-6

    jax.tree.map(compare, ours, theirs)


@pytest.mark.parametrize(
    ("name", "device"),
    [("plm", "small"), ("plm, packed", "gpu"), ("clm", "v5e"), ("bert", "gpu")],
)
def test_a_run_with_kernels_has_the_loss_and_the_gradients_of_plain_attention(name, device, monkeypatch):
    # A chip that holds the window only in blocks.
    monkeypatch.setitem(GENERATIONS, "small", GENERATIONS["v5e"]._replace(row_block=128, key_block=128))
    with running_kernels(device):
        ours = pulled_back(RUNS_OF[name], "fused")
    assert_equal(ours, pulled_back(RUNS_OF[name], "plain"))


@pytest.mark.parametrize("device", ["v5e", "gpu"])
def test_padded_texts_of_finetuning_have_the_gradients_of_plain_attention(device):
    """Two segments in which all tokens attend to each other, with memory."""
    model, at_BL = dataclasses.replace(SMALL, num_layers=2, d_head=64, num_heads=1), np.tile(np.arange(24), (2, 1))
    is_real_BL = (at_BL >= np.array([[0], [6]])).astype(np.int32)
    inputs = text_inputs(jnp.asarray(at_BL), is_real_BL, (at_BL > 12).astype(np.int32), model.mem_len)
    mems = jax.random.normal(jax.random.key(1), (model.num_layers, 2, model.mem_len, model.d_model))
    weight_BLD = is_real_BL[..., None] * jax.random.normal(jax.random.key(2), (*at_BL.shape, model.d_model))

    params = sharding.unboxed(jax.jit(Backbone(model).init)(jax.random.key(0), inputs, mems))

    def pulled_back(attention):
        network = Backbone(dataclasses.replace(model, attention=attention))
        return jax.jit(jax.grad(lambda p: (network.apply(p, inputs, mems).content_BLD * weight_BLD).sum()))(params)

    with running_kernels(device):
        ours = pulled_back("fused")
    assert_equal(ours, pulled_back("plain"))

"""Twenty steps of the original's optimizer under the profile paper2019: equal losses, rates and weights."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.xlnet_jax.reference_cases import model_config
from xlnet_jax.interop import tf1
from xlnet_jax.interop.weights import abstract_params, find_mismatch, to_ours, to_theirs
from xlnet_jax.models.heads import XLNetForSequence
from xlnet_jax.models.inputs import dense_inputs
from xlnet_jax.objectives.language_model import LanguageModel
from xlnet_jax.settings.config import Config, DataConfig, HeadConfig, OptimizerConfig
from xlnet_jax.tasks.classification.task import LOSSES_B
from xlnet_jax.training.optimizer import learning_rate, make_optimizer

CASES = [
    "o1_adamwd_poly_warmup",
    "o2_adam_cos_nowarmup",
    "o3_adamwd_cos_layerdecay",
    "o4_finetune_adam_sparse",
    "o5_finetune_adam_dense",
]
WEIGHTS = 5e-6  # absolute, after twenty updates of up to 5e-3 each
# The gradient of r along its slow features cancels to the rounding noise of the original's float32, which Adam makes
# full steps of: 4e-5.
NOISY, NOISY_WEIGHTS = "rel_attn/r/kernel", 2e-4


def optimizer_config(flags):
    return OptimizerConfig(
        learning_rate=flags["learning_rate"],
        warmup_steps=flags["warmup_steps"],
        schedule={"poly": "linear", "cos": "cosine"}[flags["decay_method"]],
        decay_steps=flags["train_steps"],
        min_lr_ratio=flags["min_lr_ratio"],
        eps=flags["adam_epsilon"],
        weight_decay=flags["weight_decay"],
        clip_norm=flags["clip"],
        layer_decay=flags["lr_layer_decay_rate"],
        profile="paper2019",
    )


def assert_weights(ours, arrays, prefix):
    for key in (k for k in arrays.files if k.startswith(prefix)):
        name = key.removeprefix(prefix)
        atol = NOISY_WEIGHTS if name.endswith(NOISY) else WEIGHTS
        np.testing.assert_allclose(ours[name], arrays[key], rtol=0, atol=atol, err_msg=name)


def pretraining_loss(config, run):
    """Memory starts as zeros, which the original attends to."""

    def loss(params, batch, mems):
        rows, _ = batch["input_k"].shape
        dense = {
            "input_ids": batch["input_k"],
            "segment_ids": batch["seg_id"],
            "perm_mask": batch["perm_mask"],
            "target_mapping": batch["target_mapping"],
            "target_ids": batch["target"],
            "target_weights": batch["target_mask"],
            "is_reversed": jnp.arange(rows) >= rows // 2,
            "mem_filled": jnp.full(rows, run["mem_len"]),
        }
        settings = Config(model=config, data=DataConfig(reuse_len=run["reuse_len"]))
        scored = LanguageModel(settings).score(params, dense, mems, None)
        return scored.loss_sum / scored.weight_sum, scored.new_mems_ZBMD

    return loss


def finetuning_loss(config, head):
    def loss(params, batch, mems):
        real = 1 - batch["input_mask"]
        inputs = dense_inputs(batch["input_ids"], segment_ids_BL=batch["segment_ids"], attention_mask_BL=real)
        logits = XLNetForSequence(config, head).apply({"params": params}, inputs, real)
        return LOSSES_B["classification"](logits, batch["label_ids"]).mean(), mems

    return loss


@pytest.fixture
def float64(monkeypatch):
    """Compute in float64 whatever the code computes in float32: Adam's first steps make 6e-6 of the order in which a
    processor sums float32."""
    monkeypatch.setattr(jnp, "float32", jnp.float64)
    with jax.enable_x64(True):
        yield


def in_float64(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64 if np.issubdtype(x.dtype, np.floating) else None), tree)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("float64")
def test_twenty_updates_give_the_originals_losses_and_weights(reference, name):
    described = json.loads((reference / "optim" / f"{name}.json").read_text())
    arrays = np.load(reference / "optim" / f"{name}.npz")
    run, flags = described["model"], described["optimizer_flags"]
    config = replace(model_config(described["model_config"], mem_len=run["mem_len"] or 0), dtype="float64")
    finetuning = described["task"] == "finetune"
    head = HeadConfig("classification", run["n_class"], scope=run["cls_scope"]) if finetuning else None
    table, shapes = list(tf1.weights(config, head)), abstract_params(config, head)
    start = np.load(reference / "optim" / described["weights_file"])
    of_case = [k.removeprefix("final_weights/") for k in arrays.files if k.startswith("final_weights/")]
    variables = {k: start[k] for k in of_case}
    assert not find_mismatch(variables, table, shapes)
    params = in_float64(to_ours(variables, table, shapes))

    # Of sparse gradients (o4) TensorFlow's norm does not add up what falls on one row: clip by the logged one.
    quirk = bool(described["indexed_slices_grads"])
    settings = optimizer_config(flags | {"clip": 1e9} if quirk else flags)
    tx, rate = make_optimizer(settings, 20), learning_rate(settings, 20)
    loss_of = finetuning_loss(config, head) if finetuning else pretraining_loss(config, run)

    @jax.jit
    def update(params, state, batch, mems, logged_norm):
        (loss, mems), grads = jax.value_and_grad(loss_of, has_aux=True)(params, batch, mems)
        clipped = jax.tree.map(lambda g: g * flags["clip"] / jnp.maximum(logged_norm, flags["clip"]), grads)
        updates, state = tx.update(clipped if quirk else grads, state, params)
        return optax.apply_updates(params, updates), state, mems, loss, optax.tree.norm(grads)

    state, mems = tx.init(params), jnp.zeros((config.num_layers, 4, config.mem_len, config.d_model))
    for t in range(20):
        batch = {k.removeprefix("inputs/"): in_float64(arrays[k][t % 4]) for k in arrays.files if k[:7] == "inputs/"}
        np.testing.assert_allclose(rate(t), arrays["log/lr"][t], rtol=1e-6, atol=1e-9)
        params, state, mems, loss, norm = update(params, state, batch, mems, arrays["log/gnorm"][t])
        np.testing.assert_allclose(loss, arrays["log/loss"][t], rtol=0, atol=1e-5)
        np.testing.assert_allclose(norm, arrays["log/gnorm_dense"][t], rtol=1e-4)
        if t in (0, 1):
            assert_weights(to_theirs(params, table), arrays, f"weights_after_{t + 1}/")
    assert_weights(to_theirs(params, table), arrays, "final_weights/")

"""The network gives the numbers of the original TensorFlow 1 code: pretraining cases, dense inputs."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xlnet_jax.config import ModelConfig
from xlnet_jax.interop.tf1 import params_from_tf1
from xlnet_jax.models.backbone import Inputs
from xlnet_jax.models.lm import XLNetLM
from xlnet_jax.models.masks import visible_by_mask_BTK
from xlnet_jax.objectives.plm import cross_entropy_BP

CASES = [
    "a1_twostream_tm_mems_bi",
    "a2_twostream_tm_nomems_bi",
    "a3_twostream_tm_mems_uni_data",
    "a4_twostream_tm_clamp_reuse0",
    "a5_twostream_tm_randperm_fullmask",
    "a6_twostream_tm_zeromems",
    "e1_twostream_tm_mems_bi_relu_tie",
]


def load_case(reference, name):
    case = json.loads((reference / "model" / f"{name}.json").read_text())
    arrays = np.load(reference / "model" / f"{name}.npz")
    config_name = case["config_file"].removeprefix("config_").removesuffix(".json")
    theirs = case["model_config"]
    config = ModelConfig(
        vocab_size=theirs["n_token"],
        num_layers=theirs["n_layer"],
        d_model=theirs["d_model"],
        num_heads=theirs["n_head"],
        d_head=theirs["d_head"],
        d_ff=theirs["d_inner"],
        activation=theirs["ff_activation"],
        untie_r=theirs["untie_r"],
        clamp_len=case["run"]["clamp_len"],
        mem_len=case["run"]["mem_len"] or 0,
    )
    params = params_from_tf1(np.load(reference / "model" / f"weights_{config_name}.npz"), config)
    return case, {k: arrays[k] for k in arrays.files}, config, params


def batch_first(array):
    """[i, j, B] or [i, B] -> [B, i, j] or [B, i]."""
    return jnp.asarray(np.moveaxis(array, -1, 0))


def inputs_of(case, arrays, mems_ZBMD):
    batch = arrays["inputs/inp_k"].shape[1]
    mapping = batch_first(arrays["inputs/target_mapping"])
    memory = jnp.ones((batch, mems_ZBMD.shape[2]), bool)  # the original attends to all of it
    # bi_data: the second half of the rows reads backwards.
    is_reversed = (jnp.arange(batch) >= batch // 2) & case["run"]["bi_data"]
    return Inputs(
        batch_first(arrays["inputs/inp_k"]),
        batch_first(arrays["inputs/seg_id"]),
        visible_by_mask_BTK(batch_first(arrays["inputs/perm_mask"]), mapping, memory),
        is_reversed,
        mapping.argmax(-1),
        memory,
    )


@pytest.mark.parametrize("name", CASES)
def test_two_streams_give_the_originals_numbers(reference, name):
    case, arrays, config, params = load_case(reference, name)
    batch = arrays["inputs/inp_k"].shape[1]
    given = [f"inputs/mems_{i}" for i in range(config.num_layers)]
    mems = (
        jnp.asarray(np.stack([np.swapaxes(arrays[k], 0, 1) for k in given]))
        if given[0] in arrays
        else jnp.zeros((config.num_layers, batch, 0, config.d_model))
    )
    inputs = inputs_of(case, arrays, mems)
    weights = batch_first(arrays["inputs/target_mask"])
    real = np.asarray(batch_first(arrays["inputs/target_mapping"]).any(-1))  # padding rows are not compared

    def loss(params):
        logits, outputs = XLNetLM(config).apply(
            {"params": params}, inputs, mems, reuse_len=case["run"]["reuse_len"] or 0, train=False
        )
        nats = cross_entropy_BP(logits, batch_first(arrays["inputs/target"]))
        return (nats * weights).sum() / weights.sum(), (logits, outputs)

    (total, (logits, outputs)), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

    expected_hidden = np.swapaxes(arrays["outputs/final"], 0, 1)
    np.testing.assert_allclose(outputs.query_BPD[real], expected_hidden[real], rtol=0, atol=2e-5)
    np.testing.assert_allclose(logits[real], np.swapaxes(arrays["outputs/logits"], 0, 1)[real], rtol=0, atol=2e-5)
    last = np.swapaxes(arrays[f"outputs/layer_{config.num_layers - 1}_h"], 0, 1)
    np.testing.assert_allclose(outputs.content_BLD, last, rtol=0, atol=2e-5)
    np.testing.assert_allclose(total, arrays["outputs/total_loss"], rtol=0, atol=1e-5)
    expected = {k.removeprefix("grads/"): v for k, v in arrays.items() if k.startswith("grads/")}
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-6),
        grads,
        params_from_tf1(expected, config),
    )
    if config.mem_len and mems.shape[2] == config.mem_len:
        for i in range(config.num_layers):
            theirs = np.swapaxes(arrays[f"outputs/new_mems_{i}"], 0, 1)
            np.testing.assert_allclose(outputs.new_mems_ZBMD[i], theirs, rtol=0, atol=2e-5)

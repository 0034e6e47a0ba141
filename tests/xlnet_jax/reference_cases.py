"""The original's numbers, case by case, in our shapes."""

import json

import jax
import numpy as np

from xlnet_jax.interop import tf1
from xlnet_jax.interop.weights import abstract_params, find_mismatch, to_ours
from xlnet_jax.settings.config import ModelConfig

HIDDEN, LOSS, GRADIENTS = 2e-5, 1e-5, 5e-6  # absolute, float32: the tolerances that come with the numbers


def model_config(theirs, **run):
    """The original's configuration in our words. Its numbers are those of the profile paper2019."""
    return ModelConfig(
        vocab_size=theirs["n_token"],
        num_layers=theirs["n_layer"],
        d_model=theirs["d_model"],
        num_heads=theirs["n_head"],
        d_head=theirs["d_head"],
        d_ff=theirs["d_inner"],
        activation=theirs["ff_activation"],
        untie_r=theirs["untie_r"],
        dropout=0.0,
        attention_dropout=0.0,
        profile="paper2019",
        **run,
    )


class Case:
    """One file of numbers: `run` settings, arrays with the batch first, parameters and expected gradients."""

    def __init__(self, folder, name, head=None):
        described = json.loads((folder / f"{name}.json").read_text())
        self.run = described["run"]
        self.head = head(self.run) if head else None
        self.config = model_config(
            described["model_config"],
            mem_len=self.run.get("mem_len") or 0,
            clamp_len=self.run.get("clamp_len", -1),
            attn_type=self.run.get("attn_type", "bi"),
            same_length=self.run.get("same_length", False),
        )
        arrays = np.load(folder / f"{name}.npz")
        self.arrays = {k: arrays[k] for k in arrays.files}
        config_name = described["config_file"].removeprefix("config_").removesuffix(".json")
        weights = np.load(folder / f"weights_{config_name}.npz")
        self.params = self.ours({k: weights[k] for k in described["variables"]})
        gradients = {k.removeprefix("grads/"): v for k, v in self.arrays.items() if k.startswith("grads/")}
        self.gradients = self.ours(gradients) if gradients else None

    def ours(self, variables):
        r_w_bias = f"{tf1.BODY}/r_w_bias"  # without segments the original has no r_s_bias, and ours no use for it
        variables = {f"{tf1.BODY}/r_s_bias": np.zeros_like(variables[r_w_bias]), **variables}
        shapes = abstract_params(self.config, self.head)
        table = list(tf1.weights(self.config, self.head))
        mismatch = find_mismatch(variables, table, shapes)
        assert not mismatch.unknown
        assert not mismatch.misshapen
        return to_ours(variables, table, shapes)

    def __contains__(self, name):
        return name in self.arrays

    def first(self, name):
        """[..., B] -> [B, ...], or None where the original got None."""
        return np.moveaxis(self.arrays[name], -1, 0) if name in self else None

    def hidden(self, name):
        """[L, B, X] -> [B, L, X]"""
        return np.swapaxes(self.arrays[name], 0, 1)

    def mems(self, name):
        """[Z, B, M, D] of the layers `name`_0, `name`_1, …; None where there are none."""
        if f"{name}_0" not in self:
            return None
        return np.stack([self.hidden(f"{name}_{i}") for i in range(self.config.num_layers)])


def padded_at_the_end(mapping_BPL):
    """Our padding is at the last position; that of the original, rows of zeros, attends to nothing."""
    if mapping_BPL is None:
        return None
    last_L = np.eye(mapping_BPL.shape[2])[-1]
    return np.where(mapping_BPL.any(-1, keepdims=True), mapping_BPL, last_L).astype(np.float32)


def assert_close(ours, theirs, atol):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol), ours, theirs)


def assert_gradients(ours, theirs):
    """Every variable that the original has a gradient for."""
    flat_theirs = dict(jax.tree_util.tree_leaves_with_path(theirs))
    flat_ours = dict(jax.tree_util.tree_leaves_with_path(ours))
    assert flat_theirs.keys() == flat_ours.keys()
    for path, expected in flat_theirs.items():
        np.testing.assert_allclose(flat_ours[path], expected, rtol=0, atol=GRADIENTS, err_msg=str(path))

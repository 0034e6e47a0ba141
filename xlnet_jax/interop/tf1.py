"""Names and layouts of the 2019 TensorFlow 1 variables (modeling.py), one table for both directions."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from xlnet_jax.config import ModelConfig

_BODY = "model/transformer"
_LAYER = {  # our path in a layer -> name under layer_<i>
    "attention/q": "rel_attn/q/kernel",
    "attention/k": "rel_attn/k/kernel",
    "attention/v": "rel_attn/v/kernel",
    "attention/r": "rel_attn/r/kernel",
    "attention/o": "rel_attn/o/kernel",
    "attention/norm/LayerNorm_0/scale": "rel_attn/LayerNorm/gamma",
    "attention/norm/LayerNorm_0/bias": "rel_attn/LayerNorm/beta",
    "feed_forward/inner/kernel": "ff/layer_1/kernel",
    "feed_forward/inner/bias": "ff/layer_1/bias",
    "feed_forward/outer/kernel": "ff/layer_2/kernel",
    "feed_forward/outer/bias": "ff/layer_2/bias",
    "feed_forward/norm/LayerNorm_0/scale": "ff/LayerNorm/gamma",
    "feed_forward/norm/LayerNorm_0/bias": "ff/LayerNorm/beta",
}


def params_from_tf1(variables: Mapping[str, np.ndarray], config: ModelConfig) -> dict[str, Any]:
    """XLNetLM's parameters from the original's variables. KeyError names one that is missing."""

    def stacked(name: str) -> np.ndarray:
        return np.stack([variables[f"{_BODY}/layer_{i}/{name}"] for i in range(config.num_layers)])

    flat = {f"backbone/layers/{ours}": stacked(theirs) for ours, theirs in _LAYER.items()}
    # [Z, N, H] three times -> [Z, 3, N, H]; tied: [N, H] three times -> [3, N, H]
    biases = np.stack([variables[f"{_BODY}/{name}"] for name in ("r_w_bias", "r_r_bias", "r_s_bias")], axis=-3)
    flat["backbone/layers/attention/biases" if config.untie_r else "backbone/biases"] = biases
    flat["backbone/layers/attention/segment_embedding"] = variables[f"{_BODY}/seg_embed"]
    flat["backbone/word_embedding"] = variables[f"{_BODY}/word_embedding/lookup_table"]
    flat["backbone/mask_embedding"] = variables[f"{_BODY}/mask_emb/mask_emb"].reshape(-1)
    flat["output_bias"] = variables["model/lm_loss/bias"]
    return _nested(flat)


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *folders, leaf = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[leaf] = value
    return tree

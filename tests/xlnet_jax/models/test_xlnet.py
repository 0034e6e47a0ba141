"""Pre-LN and sinusoidal positions against the formulas, row by row in NumPy."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.xlnet_jax.random_models import SMALL, random_params
from xlnet_jax.models.heads import XLNetLM
from xlnet_jax.models.inputs import compact_inputs

LENGTH = 7
CAUSAL = dataclasses.replace(SMALL, num_layers=2, num_segments=0, attn_type="uni", activation="relu")
NETWORKS = {
    "pre": dataclasses.replace(CAUSAL, norm="pre"),
    "sinusoidal": dataclasses.replace(CAUSAL, positions="sinusoidal", mem_len=0),
    "sinusoidal, pre": dataclasses.replace(CAUSAL, positions="sinusoidal", mem_len=0, norm="pre"),
}


def normed(weights, x):
    w = weights["LayerNorm_0"]
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12) * w["scale"] + w["bias"]


def signal(place, width):
    angles = place * 10_000.0 ** -(np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)])


def read_by(config, weights, asking, context, sign):
    """Return the vectors of the heads [L, N, H], one row and one head at a time."""
    length, keys = len(asking), len(context)
    query, key, value = (
        np.einsum("td,dnh->tnh", x, weights[w]) for x, w in ((asking, "q"), (context, "k"), (context, "v"))
    )
    out = np.zeros_like(query)
    for row in range(length):
        here = keys - length + row
        for head in range(config.num_heads):
            scores = np.full(keys, -np.inf)
            for j in range(here + 1):
                scores[j] = query[row, head] @ key[j, head]
                if config.positions == "relative":
                    r_w, r_r, _ = weights["biases"][:, head]
                    position = signal(sign * (here - j), config.d_model) @ weights["r"][:, head]
                    scores[j] += r_w @ key[j, head] + (query[row, head] + r_r) @ position
            probs = np.exp((scores - scores.max()) / np.sqrt(config.d_head))
            out[row, head] = probs / probs.sum() @ value[:, head]
    return out


def naive_logits(config, params, ids, mems, sign):
    """[L, V] of one text, each row seeing itself, what is before it, and the memory."""
    backbone, is_pre = params["backbone"], config.norm == "pre"
    x = backbone["word_embedding"][ids]
    if config.positions == "sinusoidal":
        x = x * np.sqrt(config.d_model) + [signal(sign * place, config.d_model) for place in range(len(ids))]
    for z in range(config.num_layers):
        layer = jax.tree.map(lambda w, z=z: w[z], backbone["layers"])
        attention, inner = layer["attention"], layer["feed_forward"]
        asking, context = x, np.concatenate([mems[z], x])
        if is_pre:
            asking, context = (normed(attention["norm"], rows) for rows in (asking, context))
        x = x + np.einsum("tnh,dnh->td", read_by(config, attention, asking, context, sign), attention["o"])
        x = x if is_pre else normed(attention["norm"], x)
        rows = normed(inner["norm"], x) if is_pre else x
        rows = np.maximum(rows @ inner["inner"]["kernel"] + inner["inner"]["bias"], 0)
        x = x + rows @ inner["outer"]["kernel"] + inner["outer"]["bias"]
        x = x if is_pre else normed(inner["norm"], x)
    x = normed(backbone["norm"], x) if is_pre else x
    return x @ backbone["word_embedding"].T + params["output_bias"]


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_are_those_of_the_formulas(name):
    """With memory where there is one; the second row reads backwards."""
    config = NETWORKS[name]
    params, rng = random_params(config, None), np.random.default_rng(0)
    ids = rng.integers(9, config.vocab_size, (2, LENGTH)).astype(np.int32)
    mems = rng.normal(size=(config.num_layers, 2, config.mem_len, config.d_model)).astype(np.float32)
    inputs = compact_inputs(ids, is_reversed_B=np.array([False, True]), memory_BM=np.ones(mems.shape[1:3], bool))
    logits, outputs = jax.jit(XLNetLM(config).apply)({"params": params}, inputs, mems)
    for row, sign in enumerate((1, -1)):
        expected = naive_logits(config, params, ids[row], mems[:, row], sign)
        assert np.abs(expected[0] - expected[1]).max() > 1e-2
        np.testing.assert_allclose(logits[row], expected, rtol=2e-5, atol=2e-5)
    if config.mem_len:  # raw: the first layer's is the embedding itself
        embedded = params["backbone"]["word_embedding"][ids]
        np.testing.assert_array_equal(outputs.new_mems_ZBMD[0], embedded[:, -config.mem_len :])

"""Summary of a whole text in one vector (`summarize_sequence` of modeling.py)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.kernels.numerics import MASKED
from xlnet_jax.models.layers import Dense, Dropout, Norm, partitioned_param
from xlnet_jax.settings.config import HeadConfig, ModelConfig


class SequenceSummary(nn.Module):
    """The last, the first or the mean hidden state, or an attention pool; then, if asked, a tanh projection.

    Last, first and mean count real tokens only; with the profile paper2019, all positions.
    """

    config: ModelConfig
    head: HeadConfig
    train: bool

    @nn.compact
    def __call__(self, hidden_BLD: jnp.ndarray, attention_mask_BL: jnp.ndarray, example_B: jnp.ndarray) -> jnp.ndarray:
        """Return float [B, D]. attention_mask: 1 = real token; example_B: place of each example in the global batch."""
        c, kind = self.config, self.head.summary
        real_BL = attention_mask_BL.astype(bool)
        if kind == "attn":
            summary_BD = AttentionPool(c, self.train, name="attention")(hidden_BLD, real_BL, example_B)
        else:
            counted_BL = jnp.ones_like(real_BL) if c.profile == "paper2019" else real_BL
            summary_BD = _POOLS[kind](hidden_BLD, counted_BL)
        if self.head.use_projection:
            summary_BD = jnp.tanh(Dense(c, c.d_model, ("embed", None), name="projection")(summary_BD))
        return Dropout(c.dropout, self.train)(summary_BD, example_B)


def _last_BD(hidden_BLD: jnp.ndarray, counted_BL: jnp.ndarray) -> jnp.ndarray:
    index_B = counted_BL.shape[1] - 1 - counted_BL[:, ::-1].argmax(1)
    return jnp.take_along_axis(hidden_BLD, index_B[:, None, None], axis=1)[:, 0]


def _first_BD(hidden_BLD: jnp.ndarray, counted_BL: jnp.ndarray) -> jnp.ndarray:
    return jnp.take_along_axis(hidden_BLD, counted_BL.argmax(1)[:, None, None], axis=1)[:, 0]


def _mean_BD(hidden_BLD: jnp.ndarray, counted_BL: jnp.ndarray) -> jnp.ndarray:
    """Return the mean, which is 0 for a row of nothing but padding: NaN times a weight of 0 is NaN."""
    sum_BD = hidden_BLD.sum(1, jnp.float32, where=counted_BL[:, :, None])
    return (sum_BD / jnp.maximum(counted_BL.sum(1, keepdims=True), 1)).astype(hidden_BLD.dtype)


_POOLS = {"last": _last_BD, "first": _first_BD, "mean": _mean_BD}


class AttentionPool(nn.Module):
    """Pool by a learned query that attends to the real tokens (`multihead_attn` of modeling.py, without residual)."""

    config: ModelConfig
    train: bool

    @nn.compact
    def __call__(self, hidden_BLD: jnp.ndarray, real_BL: jnp.ndarray, example_B: jnp.ndarray) -> jnp.ndarray:
        c = self.config
        query_D = partitioned_param(self, "query", (c.d_model,), ("embed",), c.init_std).astype(c.dtype)
        shape, axes = (c.d_model, c.num_heads, c.d_head), ("embed", "heads", "head_dim")
        q_DNH, k_DNH, v_DNH, o_DNH = (
            partitioned_param(self, name, shape, axes, c.init_std).astype(c.dtype) for name in "qkvo"
        )
        query_NH = jnp.einsum("D,DNH->NH", query_D, q_DNH)
        key_BLNH, value_BLNH = (jnp.einsum("BLD,DNH->BLNH", hidden_BLD, w) for w in (k_DNH, v_DNH))
        scores_BNL = jnp.einsum("NH,BLNH->BNL", query_NH, key_BLNH, preferred_element_type=jnp.float32)
        scores_BNL = scores_BNL / c.d_head**0.5 + jnp.where(real_BL[:, None], 0.0, MASKED)
        probs_BNL = jax.nn.softmax(scores_BNL, axis=-1).astype(c.dtype)
        probs_BNL = Dropout(c.attention_dropout, self.train)(probs_BNL, example_B)
        read_BNH = jnp.einsum("BNL,BLNH->BNH", probs_BNL, value_BLNH)
        out_BD = jnp.einsum("BNH,DNH->BD", read_BNH, o_DNH)
        out_BD = Dropout(c.dropout, self.train)(out_BD, example_B)
        return Norm(c, name="norm")(out_BD)

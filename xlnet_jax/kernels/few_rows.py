"""Attention of a few rows to many keys in any order: decoding with cached keys.

The scores are few enough to gather each one by its distance, so rows and keys need not stand in the order of a window.
All rows are query rows and read forwards.
"""

import jax.numpy as jnp

from xlnet_jax.kernels.arguments import AttentionInputs, Positions
from xlnet_jax.kernels.numerics import einsum_float32
from xlnet_jax.kernels.plain import attention_by_scores_BNTH


def attention_BNTH(inputs: AttentionInputs) -> jnp.ndarray:
    """Return the attention output of every row in the type of the values; softmax in float32."""
    return attention_by_scores_BNTH(inputs, _gathered_scores_BNTK)


def _gathered_scores_BNTK(query_BNTH: jnp.ndarray, positions: Positions, num_keys: int) -> jnp.ndarray:
    assert positions.is_reversed_B is None
    distance_BPK = positions.query_BP[:, :, None] - positions.key_BK[:, None, :]
    # Empty slots of a cache lie outside of the table; they are masked.
    column_BPK = jnp.clip(num_keys - distance_BPK, 0, positions.key_2NRH.shape[2] - 1)
    key_NRH = positions.key_2NRH.sum(0).astype(query_BNTH.dtype)
    by_distance_BNTR = einsum_float32("BNTH,NRH->BNTR", query_BNTH, key_NRH)
    return jnp.take_along_axis(by_distance_BNTR, column_BPK[:, None], axis=-1)

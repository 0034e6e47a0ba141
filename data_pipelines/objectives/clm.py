"""Batches of causal language modelling: every position predicts the next token (Transformer-XL, section 3)."""

import numpy as np

from xlnet_jax.dims import Batch
from xlnet_jax.settings.config import DataConfig


def fill(tokens: np.ndarray, begin: int, data: DataConfig) -> Batch:
    """What `objectives.plm.fill` gives, of the window that begins at `begin` of these tokens. tokens: int [B, S]; there
    are no segments."""
    length = data.seq_len
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), (len(tokens), length))
    return {
        "input_ids": tokens[:, begin : begin + length].astype(np.int32),
        "perm_rank": positions,
        "target_positions": positions,
        "target_ids": tokens[:, begin + 1 : begin + length + 1].astype(np.int32),
        "target_weights": np.ones(positions.shape, np.float32),
    }

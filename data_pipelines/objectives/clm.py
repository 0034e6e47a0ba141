"""Batches of causal language modeling: every position predicts the next token (Transformer-XL, Dai et al. 2019,
section 3)."""

import numpy as np

from data_pipelines.objectives import TARGETS, TOKENS, Filling, Windows
from xlnet_jax.dims import Batch


def fill(windows: Windows) -> Batch:
    """Return input_ids, perm_rank and the targets; there are no segments. If documents do not see each other, the
    first token of a document is not a target."""
    ids = windows.arrays["input_ids"]
    positions = np.broadcast_to(np.arange(windows.data.seq_len, dtype=np.int32), ids.shape)
    weights = np.ones(positions.shape, np.float32)
    if windows.data.pack:
        start_BL, next_B = windows.arrays["document_start"], windows.arrays["next_document_start"]
        following = np.concatenate([start_BL[:, 1:], next_B[:, None]], axis=1)
        weights = (following == start_BL).astype(np.float32)
    if windows.is_last_only:
        weights[:, :-1] *= windows.is_symbol[:, 1:]
        weights[:, -1] = 0
    return {
        "input_ids": ids,
        "perm_rank": positions,
        "target_positions": positions,
        "target_ids": np.concatenate([ids[:, 1:], windows.arrays["next_ids"][:, None]], axis=1),
        "target_weights": weights,
    }


FILLING = Filling(
    objective="clm",
    fill=fill,
    fields={**TOKENS, **TARGETS},
    stream="content",
    target="next",
    draws_targets=False,
    mark="; each piece predicts the next one",
    legend="""
Each position predicts the next piece. It sees the memory and the window up to and including itself.""",
)

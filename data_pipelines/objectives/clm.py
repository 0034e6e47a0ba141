"""Batches of causal language modelling: every position predicts the next token (Transformer-XL, Dai et al. 2019,
section 3)."""

import numpy as np

from data_pipelines.objectives.base import Cut, Filling
from data_pipelines.objectives.fields import TARGETS, TOKENS
from xlnet_jax.dims import Batch


def fill(cut: Cut) -> Batch:
    """Return input_ids, perm_rank and the targets; there are no segments. The first token of a document is no target
    where documents do not see each other."""
    ids = cut.windows.input_ids
    positions = np.broadcast_to(np.arange(cut.data.seq_len, dtype=np.int32), ids.shape)
    weights = np.ones(positions.shape, np.float32)
    if (documents := cut.documents) is not None:
        following = np.concatenate([documents.start[:, 1:], documents.next_start[:, None]], axis=1)
        weights = (following == documents.start).astype(np.float32)
    return {
        "input_ids": ids,
        "perm_rank": positions,
        "target_positions": positions,
        "target_ids": np.concatenate([ids[:, 1:], cut.windows.next_ids[:, None]], axis=1),
        "target_weights": weights,
    }


FILLING = Filling(
    objective="clm",
    fill=fill,
    fields={**TOKENS, **TARGETS},
    stream="content",
    target="next",
    mark="; each piece predicts the next one",
    legend="""
Each position predicts the piece behind it, and sees the memory and the window up to itself.""",
    caption="Each row is written read → token: it has to guess the token behind it, and sees itself and what stands "
    "before it.",
)

"""Batches of permutation language modelling: targets, and an order in which they are predicted."""

import numpy as np

from data_pipelines import permutation
from data_pipelines.objectives.draws import Draw
from data_pipelines.stateless import Purpose
from data_pipelines.targets import draw_targets
from data_pipelines.tokenizer import CLS, SEP
from data_pipelines.windows import Windows
from xlnet_jax.dims import Batch
from xlnet_jax.settings.config import DataConfig


def fill(window: Windows, is_word_start: np.ndarray, is_reversed: np.ndarray, draw: Draw, data: DataConfig) -> Batch:
    """input_ids, segment_ids, perm_rank and the targets of these windows (xlnet_jax/dims.py). is_word_start: bool [V];
    is_reversed: bool [B]."""
    ids = window.input_ids
    functional = (ids == SEP) | (ids == CLS)
    # Spans can fall on <sep> and <cls>, and are dropped there: their slots become padding, as in the original.
    candidates = np.ones_like(functional) if data.targets == "spans" else ~functional
    drawn = draw_targets(is_word_start[ids], candidates, is_reversed, draw, data)
    reuse = data.reuse_len
    rank = permutation.perm_rank(
        drawn & ~functional if data.profile == "tf2" else drawn | functional,
        permutation.permuted_places(reuse, data.perm_size, draw(Purpose.ORDER_REUSED, data.perm_size)),
        permutation.permuted_places(data.seq_len - reuse, data.perm_size, draw(Purpose.ORDER_NEW, data.perm_size)),
        data,
    )
    return {
        "input_ids": ids,
        "segment_ids": window.segment_ids,
        "perm_rank": rank,
        **permutation.target_slots(drawn & ~functional, ids, data.num_predict),
    }

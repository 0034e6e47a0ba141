"""Batches of masked language modelling: the network reads something else in place of its targets (Devlin et al. 2019,
section 3.1 and appendix A.1)."""

import numpy as np

from data_pipelines import permutation
from data_pipelines.objectives.draws import Draw
from data_pipelines.stateless import Purpose, choice
from data_pipelines.targets import draw_targets
from data_pipelines.tokenizer import MASK, SPECIAL_PIECES, UNK
from data_pipelines.windows import Windows
from xlnet_jax.dims import Batch
from xlnet_jax.settings.config import DataConfig


def fill(
    window: Windows,
    is_word_start: np.ndarray,
    is_reversed: np.ndarray,
    draw: Draw,
    data: DataConfig,
    *,
    has_memory: bool,
) -> Batch:
    """What `objectives.plm.fill` gives. Targets are text alone: an unknown piece can be one, as in BERT, but none of
    the other special symbols."""
    ids = window.input_ids
    is_target = draw_targets(is_word_start[ids], is_text(ids), is_reversed, draw, data)
    # With memory the reused part, which becomes it, must not see what the next window is asked (models/masks.py).
    rank = np.arange(data.seq_len, dtype=np.int32) >= data.reuse_len if has_memory else np.zeros(data.seq_len)
    return {
        "input_ids": np.where(is_target, _read_in_place(ids, len(is_word_start), draw, data), ids).astype(np.int32),
        "segment_ids": window.segment_ids,
        "perm_rank": np.broadcast_to(rank.astype(np.int32), ids.shape),
        **permutation.target_slots(is_target, ids, data.num_predict),
    }


def is_text(ids: np.ndarray) -> np.ndarray:
    """bool, of the shape of ids: no special symbol, or a piece that the vocabulary does not have."""
    return (ids >= len(SPECIAL_PIECES)) | (ids == UNK)


def _read_in_place(ids: np.ndarray, vocab_size: int, draw: Draw, data: DataConfig) -> np.ndarray:
    """int64 [B, L]: what would be read at each position if it were a target."""
    fate, which = np.split(draw(Purpose.REPLACEMENTS, 2 * data.seq_len), 2, axis=1)
    at_random = len(SPECIAL_PIECES) + choice(which, vocab_size - len(SPECIAL_PIECES))
    other = np.where(fate < data.mask_share + data.random_share, at_random, ids)
    return np.where(fate < data.mask_share, MASK, other)

"""Batches of masked language modelling: the network reads something else in place of its targets (Devlin et al. 2019,
section 3.1 and appendix A.1)."""

import numpy as np

from data_pipelines import permutation
from data_pipelines.objectives import SEGMENTS, TARGETS, TOKENS, Draw, Filling, Windows
from data_pipelines.stateless import Purpose, choice
from data_pipelines.targets import draw_targets
from data_pipelines.tokenizer import MASK, SPECIAL_PIECES, UNK
from xlnet_jax.dims import Batch
from xlnet_jax.settings.config import DataConfig


def fill(windows: Windows) -> Batch:
    """Return input_ids, segment_ids, perm_rank and the targets. Targets are text alone: an unknown piece can be one, as
    in BERT, but none of the other special symbols."""
    ids, data = windows.arrays["input_ids"], windows.data
    is_text = (ids >= len(SPECIAL_PIECES)) | (ids == UNK)
    is_target = draw_targets(windows.is_word_start[ids], is_text, windows.arrays["is_reversed"], windows.draw, data)
    # With memory the reused part, which becomes memory, must not see targets of the next window (models/masks.py).
    rank = np.arange(data.seq_len, dtype=np.int32) >= data.reuse_len if windows.has_memory else np.zeros(data.seq_len)
    read = np.where(is_target, _replacements(ids, len(windows.is_word_start), windows.draw, data), ids)
    return {
        "input_ids": read.astype(np.int32),
        "segment_ids": windows.arrays["segment_ids"],
        "perm_rank": np.broadcast_to(rank.astype(np.int32), ids.shape),
        **permutation.target_slots(is_target, ids, data.num_predict),
    }


def _replacements(ids: np.ndarray, vocab_size: int, draw: Draw, data: DataConfig) -> np.ndarray:
    """Return int64 [B, L]: what would be read at each position if it were a target."""
    fate, which = np.split(draw(Purpose.REPLACEMENTS, 2 * data.seq_len), 2, axis=1)
    at_random = len(SPECIAL_PIECES) + choice(which, vocab_size - len(SPECIAL_PIECES))
    other = np.where(fate < data.mask_share + data.random_share, at_random, ids)
    return np.where(fate < data.mask_share, MASK, other)


FILLING = Filling(
    objective="mlm",
    fill=fill,
    fields={**TOKENS, **SEGMENTS, **TARGETS},
    stream="content",
    target="own",
    mark="; [<mask>→piece] = what the network reads, and the target",
    legend="""
A target is predicted by the row of the content stream at its place, which reads <mask>, a piece drawn at random, or
the target itself. rank decides: a row sees what does not rank above it. Without memory all see all; with it the reused
part, which becomes the memory of the next window, does not see what stands behind it: some of that is asked there.""",
)

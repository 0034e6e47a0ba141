"""Batches of masked language modeling: the input hides most targets (Devlin et al. 2019, section 3.1,
appendix A.1)."""

import numpy as np

from data_pipelines import permutation
from data_pipelines.objectives import SEGMENTS, TARGETS, TOKENS, Draw, Filling, Windows
from data_pipelines.stateless import Purpose, choice
from data_pipelines.targets import draw_targets
from data_pipelines.tokenizer import MASK, SPECIAL_PIECES
from xlnet_jax.dims import Batch
from xlnet_jax.settings.config import DataConfig


def fill(windows: Windows) -> Batch:
    """Return input_ids, segment_ids, perm_rank and the targets. Only text can be a target. As in BERT,
    unknown pieces count as text, and the other special symbols do not."""
    ids, data = windows.arrays["input_ids"], windows.data
    starts, is_reversed = windows.is_word_start[ids], windows.arrays["is_reversed"]
    is_target = draw_targets(starts, windows.is_symbol, is_reversed, windows.draw, data, windows.breaks)
    # The reused part becomes memory, so it must not see targets of the next window (models/masks.py).
    rank = np.arange(data.seq_len, dtype=np.int32) >= data.reuse_len if windows.has_memory else np.zeros(data.seq_len)
    read = np.where(is_target, _replacements(ids, len(windows.is_word_start), windows.draw, data), ids)
    return {
        "input_ids": read.astype(np.int32),
        "segment_ids": windows.arrays["segment_ids"],
        "perm_rank": np.broadcast_to(rank.astype(np.int32), ids.shape),
        **permutation.target_slots(is_target, ids, data.num_predict),
    }


def _replacements(ids: np.ndarray, vocab_size: int, draw: Draw, data: DataConfig) -> np.ndarray:
    """Return int64 [B, L]: the token to read at each position if it is a target."""
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
    mark="; [<mask>→piece] = what the network reads → the target",
    legend="""
The content stream predicts each target at the target's own position. There it reads <mask>, a random piece, or the
target itself. A row sees every token whose rank is at most its own. Without memory, every row sees the whole window.
With memory, the reused part does not see the tokens after it: it becomes the memory of the next window, where some of
those tokens are targets.""",
)

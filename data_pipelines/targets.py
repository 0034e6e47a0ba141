"""Targets of a window: drawn in spans (spans.py), as whole words, or piece by piece.

The reused and the new part of a window have a goal each. Without a goal, the expected share of targets is that of spans
with their context: mask_beta / (mask_alpha + mask_beta) of the text.
"""

import numpy as np

from data_pipelines import spans
from data_pipelines.objectives.base import Draw
from data_pipelines.stateless import Purpose, smallest_first
from xlnet_jax.settings.config import DataConfig


def goals(data: DataConfig) -> tuple[int | None, int | None]:
    """Return the number of targets of the reused and of the new part; None = no goal."""
    if data.num_predict is None:
        return None, None
    if data.reuse_len == 0:
        return 0, data.num_predict
    return data.num_predict - data.num_predict // 2, data.num_predict // 2


def draw_targets(
    is_word_start: np.ndarray, candidates: np.ndarray, is_reversed: np.ndarray, draw: Draw, data: DataConfig
) -> np.ndarray:
    """Return bool [B, L]: the targets of whole windows, drawn separately in the reused and in the new part.
    is_word_start and candidates (tokens that may be targets): bool [B, L], in the rows' reading order; is_reversed:
    bool [B]."""
    drawn = np.zeros_like(candidates)
    begins = word_begins(is_word_start, candidates, is_reversed)
    if data.targets == "words" and 0 < data.reuse_len < data.seq_len:
        candidates = candidates & ~_of_both_parts(begins, data.reuse_len)
    parts = (slice(None, data.reuse_len), Purpose.TARGETS_REUSED), (slice(data.reuse_len, None), Purpose.TARGETS_NEW)
    for (part, purpose), goal in zip(parts, goals(data), strict=True):
        starts, allowed = is_word_start[:, part], candidates[:, part]
        length = starts.shape[1]
        if length == 0:
            continue
        if data.targets == "spans":
            uniform = draw(purpose, spans.draws_needed(length, data))
            drawn[:, part] = spans.sample_spans(starts, allowed, goal, uniform, is_reversed, data)
        elif data.targets == "words":
            drawn[:, part] = sample_words(begins[:, part], allowed, goal, draw(purpose, length), data)
        else:
            drawn[:, part] = sample_pieces(allowed, goal, draw(purpose, length), data)
    return drawn


def sample_pieces(candidates: np.ndarray, goal: int | None, uniform: np.ndarray, data: DataConfig) -> np.ndarray:
    """Return bool [B, L]: `goal` candidates of each row, or all where it has fewer, each set of them as likely as any
    other. goal None: each candidate by itself with the same chance. uniform: [B, L]."""
    if goal is None:
        return candidates & (uniform < _share(data))
    is_target = np.zeros_like(candidates)
    spans.top_up(is_target, candidates, goal, uniform)
    return is_target


def sample_words(
    begins: np.ndarray, candidates: np.ndarray, goal: int | None, uniform: np.ndarray, data: DataConfig
) -> np.ndarray:
    """Return bool [B, L]: whole words in random order until the goal is reached. A word longer than the rest of the
    goal is passed over, so that a row may stay below its goal. goal None: each word by itself with the same chance.

    begins: bool [B, L], as `word_begins` gives it, with all or none of a word's tokens candidates. uniform: [B, L]; a
    word takes the draw of its first token. (create_masked_lm_predictions of BERT's create_pretraining_data.py.)
    """
    batch, length = begins.shape
    begins = begins.copy()
    begins[:, 0] = True  # the rest of a word that began before this part counts as a word
    flat = np.flatnonzero(begins)
    sizes = np.diff(flat, append=batch * length)
    can_be = begins & candidates
    if goal is None:
        chosen = can_be & (uniform < _share(data))
    else:
        size = np.zeros((batch, length), np.int64)
        size.ravel()[flat] = sizes
        order = smallest_first(np.where(can_be, uniform, spans.NEVER))
        row, left, chosen = np.arange(batch), np.full(batch, goal), np.zeros_like(begins)
        for place in order.T[: can_be.sum(1).max()]:
            fits = can_be[row, place] & (size[row, place] <= left)
            chosen[row, place] = fits
            left -= np.where(fits, size[row, place], 0)
            if not left.any():
                break
    return np.repeat(chosen.ravel()[flat], sizes).reshape(batch, length)


def word_begins(is_word_start: np.ndarray, candidates: np.ndarray, is_reversed: np.ndarray) -> np.ndarray:
    """Return bool [B, L]: True where a word begins in the row's reading order; a reversed row begins a word with its
    last piece. A token that is no candidate is a word by itself, and separates the words around it."""
    begins = np.ones_like(is_word_start)
    of_text = np.where(is_reversed[:, None], is_word_start[:, :-1], is_word_start[:, 1:])
    begins[:, 1:] = of_text | ~candidates[:, 1:] | ~candidates[:, :-1]
    return begins


def _of_both_parts(begins: np.ndarray, reuse_len: int) -> np.ndarray:
    """Return bool [B, L]: the word that the end of the reused part cuts in two, which could become a target by
    halves."""
    word = np.cumsum(begins, axis=1)
    return (word == word[:, [reuse_len]]) & ~begins[:, [reuse_len]]


def _share(data: DataConfig) -> float:
    return data.mask_beta / (data.mask_alpha + data.mask_beta)

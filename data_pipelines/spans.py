"""Which tokens are targets: n-gram spans inside their context (paper, section 2.5; `_sample_mask` of data_utils.py).

From left to right: draw a length n with weight 1/n, place it at the first word start behind a random share of its
n * mask_alpha / mask_beta tokens of context, go on behind the rest of the context. Where the spans fall short of the
goal, single tokens drawn at random top them up. Spans count pieces, as those of the released models did.
"""

import numpy as np

from data_pipelines.stateless import choice
from xlnet_jax.config import DataConfig


def draws_needed(length: int, data: DataConfig) -> int:
    """Uniforms that one row of `sample_targets` takes: two a span, one a token for topping up."""
    return 2 * max_spans(length, data) + length


def max_spans(length: int, data: DataConfig) -> int:
    """A span of one with its context is the shortest step forward."""
    return length // (1 + data.mask_alpha // data.mask_beta) + 1


def sample_targets(
    is_word_start: np.ndarray, goal: int, uniform: np.ndarray, is_reversed: np.ndarray, data: DataConfig
) -> np.ndarray:
    """Exactly `goal` targets in each row.

    is_word_start: bool [B, L], in the row's reading order. uniform: [B, draws_needed(L)]. is_reversed: bool [B]; such
    rows are sampled in the order of the text, where words start. Returns bool [B, L], in reading order.
    """
    length = is_word_start.shape[1]
    flip = is_reversed[:, None]
    spans = max_spans(length, data)
    starts = np.where(flip, is_word_start[:, ::-1], is_word_start)
    is_target = _sample_spans(starts, goal, uniform[:, :spans], uniform[:, spans : 2 * spans], data)
    _top_up(is_target, goal, uniform[:, 2 * spans :])
    return np.where(flip, is_target[:, ::-1], is_target)


def _sample_spans(
    starts: np.ndarray, goal: int, length_draw: np.ndarray, context_draw: np.ndarray, data: DataConfig
) -> np.ndarray:
    batch, length = starts.shape
    row = np.arange(batch)
    # next_start[b, i] = first word start at or behind i; `length` where there is none.
    positions = np.where(starts, np.arange(length), length)
    next_start = np.full((batch, length + 1), length)
    next_start[:, :-1] = np.minimum.accumulate(positions[:, ::-1], axis=1)[:, ::-1]

    weights = 1.0 / np.arange(1, data.span_max + 1)
    thresholds = np.cumsum(weights / weights.sum())[:-1]
    lengths = np.searchsorted(thresholds, length_draw, side="right") + 1

    edges = np.zeros((batch, length + 1), np.int8)  # +1 where a span begins, -1 behind its end
    cursor = np.zeros(batch, np.int64)
    left = np.full(batch, goal)
    active = np.ones(batch, bool)
    for i in range(length_draw.shape[1]):
        span = np.minimum(lengths[:, i], left)
        context = span * data.mask_alpha // data.mask_beta
        before = choice(context_draw[:, i], context)
        begin = next_start[row, np.minimum(cursor + before, length)]
        end = begin + span
        # A span that would touch the end of the text is not placed, and ends the search: as in the original.
        active &= (left > 0) & (end < length)
        if not active.any():
            break
        edges[row[active], begin[active]] += 1
        edges[row[active], end[active]] -= 1
        left = np.where(active, left - span, left)
        cursor = np.where(active, end + context - before, cursor)
    return np.cumsum(edges[:, :-1], axis=1, dtype=np.int8) > 0


def _top_up(is_target: np.ndarray, goal: int, uniform: np.ndarray) -> None:
    """Adds the missing targets in place: those of the other tokens that drew the smallest numbers."""
    short = np.flatnonzero(is_target.sum(1) < goal)
    if short.size == 0:
        return
    keys = np.where(is_target[short], -1.0, uniform[short])  # targets sort first, then the lowest draws
    chosen = np.argsort(keys, axis=1, kind="stable")[:, :goal]
    is_target[short[:, None], chosen] = True

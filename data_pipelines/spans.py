"""Targets in n-gram spans inside their context (paper, section 2.5; `_sample_mask` of data_utils.py).

From left to right: draw a length n with weight 1/n, place the span at the first word start after a random share of its
n * mask_alpha / mask_beta tokens of context, and continue after the rest of the context. Where the spans fall short of
the goal, single random tokens top them up; without a goal the spans continue to the end of the text. A span counts
pieces, as for the released models, or words; its context counts tokens in both cases.
"""

import numpy as np

from data_pipelines.stateless import choice, smallest_first
from xlnet_jax.settings.config import DataConfig

NEVER = np.nextafter(1.0, 0.0)  # largest possible draw


def draws_needed(length: int, data: DataConfig) -> int:
    """Return the number of uniforms that one row of `sample_spans` takes: two a span, and one a token for topping
    up."""
    return 2 * max_spans(length, data) + (0 if data.num_predict is None else length)


def max_spans(length: int, data: DataConfig) -> int:
    """Return the largest number of spans in a row: a span of one token with its context is the shortest step
    forward."""
    return length // (1 + data.mask_alpha // data.mask_beta) + 1


def sample_spans(
    is_word_start: np.ndarray,
    candidates: np.ndarray,
    goal: int | None,
    uniform: np.ndarray,
    is_reversed: np.ndarray,
    data: DataConfig,
) -> np.ndarray:
    """Return exactly `goal` targets in each row, or as many as it has candidates: bool [B, L], in reading order. goal
    None: the targets of the spans alone.

    is_word_start, candidates: bool [B, L], in the row's reading order; a span goes on after tokens that are no
    candidates. uniform: [B, draws_needed(L)]. is_reversed: bool [B]; such rows are sampled in the order of the text,
    where words start.
    """
    batch, length = is_word_start.shape
    flip = is_reversed[:, None]
    starts = np.where(flip, is_word_start[:, ::-1], is_word_start)
    allowed = np.where(flip, candidates[:, ::-1], candidates)
    begin, end = place_spans(starts, goal, uniform, data)
    edges = np.zeros((batch, length + 1), np.int8)  # +1 where a span begins, -1 after its end
    row, span = np.nonzero(begin < end)
    edges[row, begin[row, span]] += 1
    edges[row, end[row, span]] -= 1
    is_target = np.cumsum(edges[:, :-1], axis=1, dtype=np.int8).view(bool) & allowed
    if goal is not None:
        top_up(is_target, allowed, goal, uniform[:, 2 * max_spans(length, data) :])
    return np.where(flip, is_target[:, ::-1], is_target)


def place_spans(
    starts: np.ndarray, goal: int | None, uniform: np.ndarray, data: DataConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Return (begin, end), int64 [B, max_spans]: the spans of each row from left to right; begin = end in unused slots.

    starts: bool [B, L], True where a word begins. uniform: as in `sample_spans`.
    """
    batch, length = starts.shape
    spans = max_spans(length, data)
    # next_start[b, i] = first word start at or after i; `length` if there is none.
    positions = np.where(starts, np.arange(length), length)
    next_start = np.full((batch, length + 1), length)
    next_start[:, :-1] = np.minimum.accumulate(positions[:, ::-1], axis=1)[:, ::-1]

    weights = 1.0 / np.arange(1, data.span_max + 1)
    thresholds = np.cumsum(weights / weights.sum())[:-1]
    lengths = np.searchsorted(thresholds, uniform[:, :spans], side="right") + 1

    row = np.arange(batch)
    begins, ends = np.zeros((2, batch, spans), np.int64)
    cursor = np.zeros(batch, np.int64)
    left = np.full(batch, length if goal is None else goal)  # without a goal the spans never have as many tokens
    active = np.ones(batch, bool)
    for i in range(spans):
        units = np.minimum(lengths[:, i], left)  # a word has at least one token
        context = units * data.mask_alpha // data.mask_beta
        before = choice(uniform[:, spans + i], context)
        begin = next_start[row, np.minimum(cursor + before, length)]
        in_words = data.span_unit == "word"
        end = _after_words(begin, units, next_start, data.span_max) if in_words else begin + units
        # A span that would touch the end of the text, or words longer than the rest of the goal, are not placed and end
        # the search, as in the original.
        active &= (left > 0) & (end < length) & (end - begin <= left)
        if not active.any():
            break
        begins[:, i], ends[:, i] = np.where(active, begin, 0), np.where(active, end, 0)
        left = np.where(active, left - (end - begin), left)
        cursor = np.where(active, end + context - before, cursor)
    return begins, ends


def _after_words(begin: np.ndarray, words: np.ndarray, next_start: np.ndarray, span_max: int) -> np.ndarray:
    """Return the end of `words` words that begin at `begin`, a word start; the length of the text where it has
    fewer."""
    row, length = np.arange(len(begin)), next_start.shape[1] - 1
    end = begin
    for word in range(span_max):
        end = np.where(word < words, next_start[row, np.minimum(end + 1, length)], end)
    return end


def top_up(is_target: np.ndarray, candidates: np.ndarray, goal: int, uniform: np.ndarray) -> None:
    """Add missing targets in place, up to `goal` in each row: the other candidates with the smallest draws. All arrays
    [B, L]."""
    short = np.flatnonzero(is_target.sum(1) < goal)
    if short.size == 0:
        return
    keys = np.where(candidates[short], uniform[short], NEVER)
    keys[is_target[short]] = -1.0  # targets sort first, then the lowest draws
    is_target[short[:, None], smallest_first(keys, goal)] = True
    is_target &= candidates  # a row may have fewer candidates than the goal

"""Targets of a window: drawn in spans, as whole words, or piece by piece.

The reused part and the new part of a window each have a goal, their number of targets. Without a goal, a share of
mask_beta / (mask_alpha + mask_beta) of the text is targets, in expectation.

Spans are n-grams inside their context (paper, section 2.5; `_sample_mask` of data_utils.py). From left to right: draw a
length n with weight 1/n, skip a random share of the span's n * mask_alpha / mask_beta tokens of context, place the span
at the next word start, and skip the rest of the context. If the spans fall short of the goal, single random tokens are
added. Without a goal, the spans continue to the end of the text. The length of a span counts pieces, as for the
released models, or words. Its context always counts tokens.
"""

import numpy as np

from data_pipelines.objectives import Draw
from data_pipelines.stateless import Purpose, choice, smallest_first
from xlnet_jax.settings.config import DataConfig

NEVER = np.nextafter(1.0, 0.0)  # largest possible draw


def goals(data: DataConfig) -> tuple[int | None, int | None]:
    """Return the number of targets of the reused part and of the new part; None = no goal."""
    if data.num_predict is None:
        return None, None
    if data.reuse_len in (0, data.seq_len):  # the window has one part
        return (data.num_predict, 0) if data.reuse_len else (0, data.num_predict)
    return data.num_predict - data.num_predict // 2, data.num_predict // 2


def draw_targets(
    is_word_start: np.ndarray,
    candidates: np.ndarray,
    is_reversed: np.ndarray,
    draw: Draw,
    data: DataConfig,
    breaks: np.ndarray | None = None,
) -> np.ndarray:
    """Return bool [B, L]: the targets of whole windows, drawn separately for the reused part and the new part.

    is_word_start, candidates (tokens that may be targets): bool [B, L], in the rows' reading order. is_reversed: bool
    [B]. breaks: bool [B, L], True where a span that began before must end, in the order of the text.
    """
    if data.targets == "all":
        return candidates.copy()
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
            uniform = draw(purpose, draws_needed(length, data))
            ends = None if breaks is None else breaks[:, part]
            drawn[:, part] = sample_spans(starts, allowed, goal, uniform, is_reversed, data, ends)
        elif data.targets == "words":
            drawn[:, part] = sample_words(begins[:, part], allowed, goal, draw(purpose, length), data)
        else:
            drawn[:, part] = sample_pieces(allowed, goal, draw(purpose, length), data)
    return drawn


def draws_needed(length: int, data: DataConfig) -> int:
    """Return the number of uniforms that `sample_spans` uses per row: two per span and, with a goal, one per token."""
    return 2 * max_spans(length, data) + (0 if data.num_predict is None else length)


def max_spans(length: int, data: DataConfig) -> int:
    """Return the maximum number of spans in a row. The shortest span is one token with its context."""
    return length // (1 + data.mask_alpha // data.mask_beta) + 1


def sample_spans(
    is_word_start: np.ndarray,
    candidates: np.ndarray,
    goal: int | None,
    uniform: np.ndarray,
    is_reversed: np.ndarray,
    data: DataConfig,
    breaks: np.ndarray | None = None,
) -> np.ndarray:
    """Return exactly `goal` targets in each row, or all candidates if there are fewer: bool [B, L], in reading order.
    goal None: only the targets in spans.

    is_word_start, candidates: bool [B, L], in the row's reading order; a span continues after tokens that are not
    candidates. uniform: [B, draws_needed(L)]. is_reversed: bool [B]; these rows are sampled in the order of the text,
    since word starts refer to that order. breaks: as in `draw_targets`.
    """
    batch, length = is_word_start.shape
    flip = is_reversed[:, None]
    starts = np.where(flip, is_word_start[:, ::-1], is_word_start)
    allowed = np.where(flip, candidates[:, ::-1], candidates)
    begin, end = place_spans(starts, goal, uniform, data)
    if breaks is not None:
        end = np.minimum(end, np.take_along_axis(_next_start(breaks), np.minimum(begin + 1, length), axis=1))
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
    """Return (begin, end), int64 [B, max_spans]: each row's spans from left to right; begin = end in unused slots.

    starts: bool [B, L], True where a word begins. uniform: as in `sample_spans`.
    """
    length = starts.shape[1]
    spans = max_spans(length, data)
    next_start = _next_start(starts)
    weights = 1.0 / np.arange(1, data.span_max + 1)
    thresholds = np.cumsum(weights / weights.sum())[:-1]
    lengths = np.searchsorted(thresholds, uniform[:, :spans], side="right") + 1
    place = _place_pieces if data.span_unit == "piece" else _place_words
    # Without a goal, spans always have fewer tokens than the text, so `length` is no limit.
    return place(next_start, lengths, length if goal is None else goal, uniform[:, spans : 2 * spans], data)


def _next_start(starts: np.ndarray) -> np.ndarray:
    """Return int64 [B, L + 1]: the first start at or after each position, or L. starts: bool [B, L]."""
    batch, length = starts.shape
    positions = np.where(starts, np.arange(length), length)
    next_start = np.full((batch, length + 1), length)
    next_start[:, :-1] = np.minimum.accumulate(positions[:, ::-1], axis=1)[:, ::-1]
    return next_start


def _place_pieces(
    next_start: np.ndarray, lengths: np.ndarray, goal: int, uniform: np.ndarray, data: DataConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Return (begin, end) of spans that count pieces. lengths, uniform: [B, max_spans].

    A long window has hundreds of spans, and each begins after the one before it. To keep the loop over spans short,
    lengths and contexts are computed before it.
    """
    batch, length = len(next_start), next_start.shape[1] - 1
    total = np.minimum(np.cumsum(lengths, axis=1), goal)
    count = int((total < goal).sum(1).max()) + 1  # spans needed for every row to reach its goal
    units = np.diff(total[:, :count], axis=1, prepend=0).T
    context = units * data.mask_alpha // data.mask_beta
    before = choice(uniform[:, :count].T, context)
    advance = units + context - before

    # One table for all rows, wide enough for the context of a span that begins at the end of the text.
    width = length + 1 + int(2 * context.max(initial=0) + units.max(initial=0))
    row_begin = np.arange(batch) * width
    table = np.pad(next_start, ((0, 0), (0, width - length - 1)), constant_values=length) + row_begin[:, None]
    table, begin, cursor = table.ravel(), np.zeros_like(units), row_begin
    for i in range(len(begin)):
        table.take(cursor + before[i], out=begin[i])
        cursor = begin[i] + advance[i]
    begin -= row_begin
    end = begin + units
    # A span that would touch the end of the text ends the search, as in the original.
    placed = np.logical_and.accumulate((units > 0) & (end < length), axis=0)
    begins, ends = np.zeros((2, *lengths.shape), np.int64)
    begins[:, :count], ends[:, :count] = np.where(placed, begin, 0).T, np.where(placed, end, 0).T
    return begins, ends


def _place_words(
    next_start: np.ndarray, lengths: np.ndarray, goal: int, uniform: np.ndarray, data: DataConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Return (begin, end) of spans that count words. lengths, uniform: [B, max_spans]."""
    (batch, spans), length = lengths.shape, next_start.shape[1] - 1
    row = np.arange(batch)
    begins, ends = np.zeros((2, batch, spans), np.int64)
    cursor = np.zeros(batch, np.int64)
    left = np.full(batch, goal)
    active = np.ones(batch, bool)
    for i in range(spans):
        units = np.minimum(lengths[:, i], left)  # a word has at least one token
        context = units * data.mask_alpha // data.mask_beta
        before = choice(uniform[:, i], context)
        begin = next_start[row, np.minimum(cursor + before, length)]
        end = _after_words(begin, units, next_start, data.span_max)
        # As in the original, a span that would touch the end of the text or exceed the goal is not placed, and ends the
        # search.
        active &= (left > 0) & (end < length) & (end - begin <= left)
        if not active.any():
            break
        begins[:, i], ends[:, i] = np.where(active, begin, 0), np.where(active, end, 0)
        left = np.where(active, left - (end - begin), left)
        cursor = np.where(active, end + context - before, cursor)
    return begins, ends


def _after_words(begin: np.ndarray, words: np.ndarray, next_start: np.ndarray, span_max: int) -> np.ndarray:
    """Return the end of `words` words from the word start `begin`, or the length of the text if it has fewer words."""
    row, length = np.arange(len(begin)), next_start.shape[1] - 1
    end = begin
    for word in range(span_max):
        end = np.where(word < words, next_start[row, np.minimum(end + 1, length)], end)
    return end


def top_up(is_target: np.ndarray, candidates: np.ndarray, goal: int, uniform: np.ndarray) -> None:
    """Add the candidates with the smallest draws to `is_target`, in place, until each row has `goal` targets. All
    arrays: [B, L]."""
    short = np.flatnonzero(is_target.sum(1) < goal)
    if short.size == 0:
        return
    keys = np.where(candidates[short], uniform[short], NEVER)
    keys[is_target[short]] = -1.0  # targets sort first, then the lowest draws
    is_target[short[:, None], smallest_first(keys, goal)] = True
    is_target &= candidates  # a row may have fewer candidates than the goal


def sample_pieces(candidates: np.ndarray, goal: int | None, uniform: np.ndarray, data: DataConfig) -> np.ndarray:
    """Return bool [B, L]: a random set of `goal` candidates in each row, or all candidates if there are fewer. goal
    None: each candidate independently, with the same probability. uniform: [B, L]."""
    if goal is None:
        return candidates & (uniform < _share(data))
    is_target = np.zeros_like(candidates)
    top_up(is_target, candidates, goal, uniform)
    return is_target


def sample_words(
    begins: np.ndarray, candidates: np.ndarray, goal: int | None, uniform: np.ndarray, data: DataConfig
) -> np.ndarray:
    """Return bool [B, L]: whole words, taken in random order until the goal is reached. Words longer than the rest of
    the goal are skipped, so a row may stay below its goal. goal None: each word independently, with the same
    probability.

    begins: bool [B, L], from `word_begins`; either all or none of a word's tokens are candidates. uniform: [B, L]; a
    word uses the draw of its first token. (create_masked_lm_predictions of BERT's create_pretraining_data.py.)
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
        order = smallest_first(np.where(can_be, uniform, NEVER))
        row, left, chosen = np.arange(batch), np.full(batch, goal), np.zeros_like(begins)
        for place in order.T[: can_be.sum(1).max()]:
            fits = can_be[row, place] & (size[row, place] <= left)
            chosen[row, place] = fits
            left -= np.where(fits, size[row, place], 0)
            if not left.any():
                break
    return np.repeat(chosen.ravel()[flat], sizes).reshape(batch, length)


def word_begins(is_word_start: np.ndarray, candidates: np.ndarray, is_reversed: np.ndarray) -> np.ndarray:
    """Return bool [B, L]: True where a word begins in the row's reading order. In a reversed row, a word begins with
    its last piece. A token that is not a candidate is a word by itself, and separates the words around it."""
    begins = np.ones_like(is_word_start)
    of_text = np.where(is_reversed[:, None], is_word_start[:, :-1], is_word_start[:, 1:])
    begins[:, 1:] = of_text | ~candidates[:, 1:] | ~candidates[:, :-1]
    return begins


def _of_both_parts(begins: np.ndarray, reuse_len: int) -> np.ndarray:
    """Return bool [B, L]: the word that the end of the reused part cuts in two, so only half of it could be a
    target."""
    word = np.cumsum(begins, axis=1)
    return (word == word[:, [reuse_len]]) & ~begins[:, [reuse_len]]


def _share(data: DataConfig) -> float:
    return data.mask_beta / (data.mask_alpha + data.mask_beta)

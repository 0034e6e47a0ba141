"""Windows from blocks: reused part + A + <sep> + B + <sep> + <cls> (paper, section 2.5; `_split_a_and_b` of
data_utils.py).

Window k of a visit begins k * advance tokens into the block. A begins behind the reused part and ends at a
cut point; B is what follows A, or, half of the time, text from another block; with data.pair_loss order (ALBERT,
section 3.1) it always follows A, and half of the time the two change places. A + B is always the same length, so every
window is full.
"""

from dataclasses import dataclass, replace

import numpy as np

from data_pipelines.stateless import choice
from xlnet_jax.dims import CLS_SEGMENT, WINDOW_SPECIALS
from xlnet_jax.settings.config import DataConfig

DRAWS = 3  # uniforms that one row of `cut_windows` takes


def text_len(data: DataConfig) -> int:
    """Tokens of text behind the reused part: of A + B."""
    return data.seq_len - data.reuse_len - WINDOW_SPECIALS[data.window]


def advance(data: DataConfig) -> int:
    """Tokens by which a row goes on from window to window: what memory will hold, or, without, what is behind it."""
    return data.reuse_len or text_len(data)


def steps_per_block(block_len: int, data: DataConfig) -> int:
    """How many windows a block holds; the tokens behind the last one (fewer than it advances) go unused. Behind the
    text of each there is one more: the end of its last sentence, or the last one's next token."""
    return (block_len - 1 - data.reuse_len - text_len(data)) // advance(data) + 1


def block_len(data: DataConfig) -> int:
    """The block length that `windows_per_block` windows use to the last token."""
    return (data.windows_per_block - 1) * advance(data) + data.reuse_len + text_len(data) + 1


def resized(data: DataConfig, seq_len: int) -> DataConfig:
    """The same for windows of another length, in the same proportions: the paper's are half reused, a sixth
    predicted."""

    def share(length: int) -> int:
        return max(length * seq_len // data.seq_len, 1) if length else 0

    return replace(
        data, seq_len=seq_len, reuse_len=share(data.reuse_len), perm_size=share(data.perm_size),
        num_predict=None if data.num_predict is None else share(data.num_predict),
    )  # fmt: skip


@dataclass(frozen=True)
class Windows:
    """A batch of windows before anything is masked."""

    input_ids: np.ndarray  # int32 [B, L]
    segment_ids: np.ndarray  # int32 [B, L]
    is_next: np.ndarray  # bool [B], B is the continuation of A, and stands behind it
    next_ids: np.ndarray  # int32 [B], the token of the block behind the text of the window; of text windows alone


def cut_text(tokens: np.ndarray, begin: int, data: DataConfig, sep_id: int, cls_id: int) -> Windows:
    """Return the reused part and the text behind it, with <sep> and <cls> at the end where data.window is sentences.

    tokens: int [B, S], in the row's reading order; begin: where the reused part begins. is_next means nothing.
    """
    batch = len(tokens)
    input_ids = np.empty((batch, data.seq_len), np.int32)
    segment_ids = np.zeros((batch, data.seq_len), np.int32)
    text = data.reuse_len + text_len(data)
    input_ids[:, :text] = tokens[:, begin : begin + text]
    if data.window == "sentences":
        input_ids[:, -2], input_ids[:, -1] = sep_id, cls_id
        segment_ids[:, -1] = CLS_SEGMENT
    return Windows(input_ids, segment_ids, np.zeros(batch, bool), tokens[:, begin + text].astype(np.int32))


def cut_windows(
    tokens: np.ndarray,
    cuts: np.ndarray,
    partner_tokens: np.ndarray,
    partner_cuts: np.ndarray,
    begin: int,
    uniform: np.ndarray,
    data: DataConfig,
    sep_id: int,
    cls_id: int,
) -> Windows:
    """tokens: int [B, S], in the row's reading order; cuts: bool [B, S], True where the text may be cut before a token;
    partner_*: the same of the block that a random B comes from; begin: where the reused part begins; uniform: [B, 3].
    """
    batch, total = len(tokens), text_len(data)
    row = np.arange(batch)[:, None]
    a_begin = begin + data.reuse_len
    split = _split_in_any_order if data.pair_loss == "order" else _split
    a_len, first_begin, b_begin, is_next = split(cuts, partner_cuts, a_begin, total, uniform)

    # Place p of A + B: A's token while p < a_len, else B's, from this block or from the partner's.
    place = np.arange(total)
    in_a = place < a_len[:, None]
    source = place + np.where(in_a, first_begin[:, None], (b_begin - a_len)[:, None])
    own = in_a | is_next[:, None] | (data.pair_loss == "order")
    text = np.where(own, tokens[row, source], partner_tokens[row, source])

    # The first <sep> stands between A and B: everything behind A moves by one.
    new_len = data.seq_len - data.reuse_len
    column = np.arange(new_len)
    behind_a = column > a_len[:, None]
    at = np.clip(column - behind_a, 0, total - 1)
    new_part = text[row, at]
    new_part[column == a_len[:, None]] = sep_id
    new_part[:, -2], new_part[:, -1] = sep_id, cls_id
    segment = behind_a.astype(np.int32)
    segment[:, -1] = CLS_SEGMENT

    reused = tokens[:, begin:a_begin]
    input_ids = np.concatenate([reused, new_part], axis=1).astype(np.int32)
    segment_ids = np.concatenate([np.zeros_like(reused, np.int32), segment], axis=1)
    return Windows(input_ids, segment_ids, is_next, np.zeros(batch, np.int32))


Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""(a_len, a_begin, b_begin, is_next), each [B]; B has what A leaves of the text."""


def _split(cuts: np.ndarray, partner_cuts: np.ndarray, begin: int, total: int, uniform: np.ndarray) -> Split:
    batch, size = cuts.shape
    # The first sentence end at or behind `total`: where the text of A and a following B ends before it is trimmed.
    end = _next_cut(np.flatnonzero(cuts), size, np.full(batch, begin + total), limit=size) - begin
    cut, count = _cut_inside(cuts, begin, total, uniform[:, 1])
    a_len = np.where(count > 0, cut, end)

    is_next = (count > 0) & (uniform[:, 0] >= 0.5)
    random_begin, random_len = _random_b(partner_cuts, np.maximum(1, total - a_len), uniform[:, 2])
    b_begin = np.where(is_next, begin + a_len, random_begin)
    b_len = np.where(is_next, end - a_len, random_len)
    # Trimmed on the right, the longer one first, A before B where both are equal: what is left of A in closed form.
    a_len = np.minimum(a_len, np.maximum(total - b_len, (total + 1) // 2))
    return a_len, np.full(batch, begin), b_begin, is_next


def _split_in_any_order(cuts: np.ndarray, _: np.ndarray, begin: int, total: int, uniform: np.ndarray) -> Split:
    """The text is cut in two, anywhere where no sentence ends in it; its end comes first where is_next is False."""
    cut, count = _cut_inside(cuts, begin, total, uniform[:, 1])
    cut = np.where(count > 0, cut, 1 + choice(uniform[:, 1], total - 1))
    is_next = uniform[:, 0] >= 0.5
    a_len = np.where(is_next, cut, total - cut)
    return a_len, begin + np.where(is_next, 0, cut), begin + np.where(is_next, cut, 0), is_next


def _cut_inside(cuts: np.ndarray, begin: int, total: int, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(length up to one of the cuts inside of the text, how many there are), each [B]. uniform: [B]."""
    inside = cuts[:, begin + 1 : begin + total]
    count = inside.sum(1)
    picked = choice(uniform, count)
    return (np.cumsum(inside, axis=1) > picked[:, None]).argmax(1) + 1, count


def _random_b(cuts: np.ndarray, length: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(begin, length) of a random stretch of at least `length` tokens, widened to whole sentences."""
    size = cuts.shape[1]
    flat = np.flatnonzero(cuts)
    begin = choice(uniform, size - length)
    end = _next_cut(flat, size, begin + length, limit=size - 1)
    begin = _previous_cut(flat, size, begin)
    return begin, end - begin


def _next_cut(flat_cuts: np.ndarray, size: int, at: np.ndarray, limit: int) -> np.ndarray:
    """The first cut at or behind `at` in each row, or `limit`. flat_cuts: ascending, in the rows laid end to end."""
    row_begin = np.arange(len(at)) * size
    found = np.searchsorted(flat_cuts, row_begin + at)
    return np.minimum(np.append(flat_cuts, np.iinfo(np.int64).max)[found] - row_begin, limit)


def _previous_cut(flat_cuts: np.ndarray, size: int, at: np.ndarray) -> np.ndarray:
    """The last cut at or before `at` in each row, or the row's begin."""
    row_begin = np.arange(len(at)) * size
    found = np.searchsorted(flat_cuts, row_begin + at, side="right")
    return np.maximum(np.insert(flat_cuts, 0, -1)[found] - row_begin, 0)

"""Cut windows from blocks: reused part + A + <sep> + B + <sep> + <cls> (paper, section 2.5; `_split_a_and_b` of
data_utils.py).

Window k of a visit begins k * advance tokens into the block. A begins after the reused part and ends at a cut. B is the
text after A or, half of the time, text from another block. With data.pair_loss order (ALBERT, section 3.1), B is always
the text after A, and half of the time the two are swapped. A + B always has the same length, so every window is full.
"""

from dataclasses import replace

import numpy as np

from data_pipelines.stateless import choice
from data_pipelines.tokenizer import CLS, SEP
from xlnet_jax.dims import CLS_SEGMENT, WINDOW_SPECIALS, Batch
from xlnet_jax.settings.config import DataConfig

DRAWS = 3  # uniforms that `cut_windows` uses per row


def text_len(data: DataConfig) -> int:
    """Return the number of text tokens after the reused part: the length of A + B."""
    return data.seq_len - data.reuse_len - WINDOW_SPECIALS[data.window]


def advance(data: DataConfig) -> int:
    """Return the number of tokens from the start of a window to the start of the next: reuse_len, or text_len if 0."""
    return data.reuse_len or text_len(data)


def steps_per_block(block_len: int, data: DataConfig) -> int:
    """Return the number of windows in a block of `block_len` tokens. Tokens after the last window are not read.

    Each window needs one token after its text, to know if its last sentence ends there, or as the last target of clm.
    """
    return (block_len - 1 - data.reuse_len - text_len(data)) // advance(data) + 1


def block_len(data: DataConfig) -> int:
    """Return the number of tokens in a block of exactly `data.windows_per_block` windows."""
    return (data.windows_per_block - 1) * advance(data) + data.reuse_len + text_len(data) + 1


def resized(data: DataConfig, seq_len: int) -> DataConfig:
    """Return the settings for windows of `seq_len` tokens, with reuse_len, num_predict and perm_size scaled in
    proportion. A perm_size below the lengths of the window's parts is kept if it divides the new lengths."""

    def share(length: int) -> int:
        return max(length * seq_len // data.seq_len, 1) if length else 0

    reuse_len = share(data.reuse_len)
    parts = (reuse_len, seq_len - reuse_len)
    is_of_parts = data.perm_size in (data.reuse_len, data.seq_len - data.reuse_len)
    fits = data.perm_size > 0 and not any(part % data.perm_size for part in parts)
    return replace(
        data,
        seq_len=seq_len,
        reuse_len=reuse_len,
        perm_size=data.perm_size if fits and not is_of_parts else share(data.perm_size),
        num_predict=None if data.num_predict is None else share(data.num_predict),
    )


def cut_text(tokens: np.ndarray, begin: int, data: DataConfig) -> Batch:
    """Cut windows of the reused part and the text after it, with <sep> and <cls> at the end if data.window is
    sentences. Returns the same arrays as `cut_windows`, with is_next False everywhere.

    tokens: int [B, S], in each row's reading order. begin: index of the reused part's first token.
    """
    batch = len(tokens)
    input_ids = np.empty((batch, data.seq_len), np.int32)
    segment_ids = np.zeros((batch, data.seq_len), np.int32)
    text = data.reuse_len + text_len(data)
    input_ids[:, :text] = tokens[:, begin : begin + text]
    if data.window == "sentences":
        input_ids[:, -2], input_ids[:, -1] = SEP, CLS
        segment_ids[:, -1] = CLS_SEGMENT
    return {
        "input_ids": input_ids,
        "segment_ids": segment_ids,
        "is_next": np.zeros(batch, bool),
        "next_ids": tokens[:, begin + text].astype(np.int32),
    }


def cut_windows(visit: Batch, begin: int, uniform: np.ndarray, data: DataConfig) -> Batch:
    """Cut windows of the reused part, A and B, without targets and orders.

    Returns input_ids, segment_ids: int32 [B, L]; is_next: bool [B], True if B is the text right after A; next_ids:
    int32 [B], the token after the text of the window, 0 for windows with a B.

    visit: tokens, cuts, partner_tokens and partner_cuts of `BatchSource.read_visit`. begin: index of the reused part's
    first token. uniform: [B, DRAWS], in [0, 1).
    """
    tokens = visit["tokens"]
    batch, total = len(tokens), text_len(data)
    row = np.arange(batch)[:, None]
    a_begin = begin + data.reuse_len
    split = _split_in_any_order if data.pair_loss == "order" else _split
    a_len, first_begin, b_begin, is_next = split(visit["cuts"], visit["partner_cuts"], a_begin, total, uniform)

    # Position p of A + B is a token of A if p < a_len, else of B, from this block or the partner block.
    place = np.arange(total)
    in_a = place < a_len[:, None]
    source = place + np.where(in_a, first_begin[:, None], (b_begin - a_len)[:, None])
    own = in_a | is_next[:, None] | (data.pair_loss == "order")
    text = np.where(own, tokens[row, source], visit["partner_tokens"][row, source])

    # The first <sep> is between A and B, so everything after A moves by one.
    new_len = data.seq_len - data.reuse_len
    column = np.arange(new_len)
    after_a = column > a_len[:, None]
    at = np.clip(column - after_a, 0, total - 1)
    new_part = text[row, at]
    new_part[column == a_len[:, None]] = SEP
    new_part[:, -2], new_part[:, -1] = SEP, CLS
    segment = after_a.astype(np.int32)
    segment[:, -1] = CLS_SEGMENT

    reused = tokens[:, begin:a_begin]
    input_ids = np.concatenate([reused, new_part], axis=1).astype(np.int32)
    segment_ids = np.concatenate([np.zeros_like(reused, np.int32), segment], axis=1)
    next_ids = np.zeros(batch, np.int32)
    return {"input_ids": input_ids, "segment_ids": segment_ids, "is_next": is_next, "next_ids": next_ids}


Halves = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""(a_len, a_begin, b_begin, is_next), each [B]. B has the length of the text minus a_len."""


def _split(cuts: np.ndarray, partner_cuts: np.ndarray, begin: int, total: int, uniform: np.ndarray) -> Halves:
    batch, size = cuts.shape
    # The first sentence end at or after `total`. Before trimming, A and a B that continues it end there.
    end = _next_cut(np.flatnonzero(cuts), size, np.full(batch, begin + total), limit=size) - begin
    cut, count = _cut_inside(cuts, begin, total, uniform[:, 1])
    a_len = np.where(count > 0, cut, end)

    is_next = (count > 0) & (uniform[:, 0] >= 0.5)
    random_begin, random_len = _random_b(partner_cuts, np.maximum(1, total - a_len), uniform[:, 2])
    b_begin = np.where(is_next, begin + a_len, random_begin)
    b_len = np.where(is_next, end - a_len, random_len)
    # The original trims the longer part token by token, and B on a tie. This is a_len in closed form.
    a_len = np.minimum(a_len, np.maximum(total - b_len, (total + 1) // 2))
    return a_len, np.full(batch, begin), b_begin, is_next


def _split_in_any_order(cuts: np.ndarray, _: np.ndarray, begin: int, total: int, uniform: np.ndarray) -> Halves:
    """Split the text in two, at a sentence end if there is one, and swap the halves if is_next is False."""
    cut, count = _cut_inside(cuts, begin, total, uniform[:, 1])
    cut = np.where(count > 0, cut, 1 + choice(uniform[:, 1], total - 1))
    is_next = uniform[:, 0] >= 0.5
    a_len = np.where(is_next, cut, total - cut)
    return a_len, begin + np.where(is_next, 0, cut), begin + np.where(is_next, cut, 0), is_next


def _cut_inside(cuts: np.ndarray, begin: int, total: int, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (length up to a random cut inside the text, number of cuts in the text), each [B]. uniform: [B]."""
    inside = cuts[:, begin + 1 : begin + total]
    count = inside.sum(1)
    picked = choice(uniform, count)
    return (np.cumsum(inside, axis=1) > picked[:, None]).argmax(1) + 1, count


def _random_b(cuts: np.ndarray, length: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (begin, length) of a random stretch of at least `length` tokens, extended to whole sentences."""
    size = cuts.shape[1]
    flat = np.flatnonzero(cuts)
    begin = choice(uniform, size - length)
    end = _next_cut(flat, size, begin + length, limit=size - 1)
    begin = _previous_cut(flat, size, begin)
    return begin, end - begin


def _next_cut(flat_cuts: np.ndarray, size: int, at: np.ndarray, limit: int) -> np.ndarray:
    """Return the first cut at or after `at` in each row, or `limit`. flat_cuts: ascending indices into the
    concatenated rows."""
    row_begin = np.arange(len(at)) * size
    found = np.searchsorted(flat_cuts, row_begin + at)
    return np.minimum(np.append(flat_cuts, np.iinfo(np.int64).max)[found] - row_begin, limit)


def _previous_cut(flat_cuts: np.ndarray, size: int, at: np.ndarray) -> np.ndarray:
    """Return the last cut at or before `at` in each row, or 0."""
    row_begin = np.arange(len(at)) * size
    found = np.searchsorted(flat_cuts, row_begin + at, side="right")
    return np.maximum(np.insert(flat_cuts, 0, -1)[found] - row_begin, 0)


def first_tokens(begins: np.ndarray) -> np.ndarray:
    """Return int32 [B, S]: index of the first token of each token's document, for blocks in reading order.

    begins: bool [B, S], True where a document begins. The first token of a block always begins a document.
    """
    index = np.arange(begins.shape[1], dtype=np.int32)
    return np.maximum.accumulate(np.where(begins, index, 0), axis=1, dtype=np.int32)


def documents_of(first: np.ndarray, begin: int, data: DataConfig) -> Batch:
    """Return where the documents of a window start. begin: index of the window in its block. first: from
    `first_tokens`.

    Returns document_start: int32 [B, L], position of the first token of each token's document, below 0 if it is before
    the window; next_document_start: int32 [B], the same for the token after the text of the window.
    """
    text = data.reuse_len + text_len(data)
    start = first[:, begin : begin + text + 1] - begin
    specials = np.repeat(start[:, [text - 1]], data.seq_len - text, axis=1)
    starts = np.concatenate([start[:, :text], specials], axis=1)
    return {"document_start": starts, "next_document_start": start[:, text]}


def lowest_of_document(document_start: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Return bool [B, L]: True for tokens of the lowest rank among the tokens of their document in the window.
    document_start, rank: int32 [B, L]."""
    begins = document_start == np.arange(rank.shape[1])
    begins[:, 0] = True
    flat = np.flatnonzero(begins)
    lowest = np.minimum.reduceat(rank.ravel(), flat)
    return rank == np.repeat(lowest, np.diff(flat, append=rank.size)).reshape(rank.shape)

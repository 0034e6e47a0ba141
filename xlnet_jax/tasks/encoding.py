"""Encode one text or two as A <sep> <cls> or A <sep> B <sep> <cls>, with segments 0, 1 and 2 (`convert_single_example`
and `_truncate_seq_pair` of classifier_utils.py)."""

import numpy as np

from data_pipelines.tokenizer import CLS, SEP
from xlnet_jax.dims import CLS_SEGMENT


def encode_text(ids_a: np.ndarray, ids_b: np.ndarray | None, limit: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return (input_ids, segment_ids), int32 [tokens].

    limit: number of tokens at most; the longer of two texts loses tokens from its end until both fit, a single text is
    cut at its end; None = no limit.
    """
    parts = [ids_a] if ids_b is None else [ids_a, ids_b]
    if limit is not None:
        kept = shorten([len(p) for p in parts], limit - len(parts) - 1)
        parts = [p[:n] for p, n in zip(parts, kept, strict=True)]
    ids = np.concatenate([*(np.append(p, SEP) for p in parts), [CLS]])
    segments = np.repeat([*range(len(parts)), CLS_SEGMENT], [*(len(p) + 1 for p in parts), 1])
    return ids.astype(np.int32), segments.astype(np.int32)


def shorten(lengths: list[int], limit: int) -> list[int]:
    """Return lengths of one or two texts with a sum of `limit` at most: the longer text is cut first, the second of
    equal ones."""
    if len(lengths) == 1:
        return [min(lengths[0], limit)]
    a, b = lengths
    surplus = max(a + b - limit, 0)
    uneven = min(surplus, abs(a - b))
    a, b = (a - uneven, b) if a > b else (a, b - uneven)
    rest = surplus - uneven
    return [a - rest // 2, b - (rest - rest // 2)]


def head_and_tail(ids: np.ndarray, limit: int, head_share: float = 0.25) -> np.ndarray:
    """Return at most `limit` tokens of a text, from its beginning and its end (Sun et al. 2019, section 5.3.1)."""
    if len(ids) <= limit:
        return ids
    head = round(limit * head_share)
    return np.concatenate([ids[:head], ids[len(ids) - (limit - head) :]])

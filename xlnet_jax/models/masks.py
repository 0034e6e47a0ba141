"""Which keys a row may attend to: by ranks, the mask language of all objectives, or by the dense masks of the original.

A key has the rank 2r, a content row 2r, a query row 2r - 1, and a row sees a key where key <= row: a content row sees
its own token, a query row does not. Memory in use ranks below everything; unused memory and padding rank above.
"""

import jax
import jax.numpy as jnp

from xlnet_jax.kernels.arguments import Ranks, Span, Visibility

LOWEST, HIGHEST = -(2**30), 2**30


def memory_in_use_BM(mem_filled_B: jnp.ndarray, mem_len: int) -> jnp.ndarray:
    """Return bool [B, M]: True on the newest `mem_filled` slots of each row; newest last."""
    return jnp.arange(mem_len)[None, :] >= mem_len - mem_filled_B[:, None]


def rank_visibility(
    perm_rank_BL: jnp.ndarray,
    target_positions_BP: jnp.ndarray | None,
    memory_BM: jnp.ndarray,
    attention_mask_BL: jnp.ndarray | None = None,
) -> Visibility:
    """Return the visibility of the compact form: content rows, then query rows at target_positions (None = none).

    memory_BM: bool, which memory slots may be seen; attention_mask_BL: 1 = real token, None = all are. Padding rows may
    see anything; nothing reads them.
    """
    content_BL = 2 * perm_rank_BL
    if attention_mask_BL is not None:
        content_BL = jnp.where(attention_mask_BL.astype(bool), content_BL, HIGHEST)
    row_BT = _with_queries_BT(content_BL, target_positions_BP, less=1)
    memory_rank_BM = jnp.where(memory_BM, LOWEST, HIGHEST)
    return Visibility(Ranks(row_BT, jnp.concatenate([memory_rank_BM, content_BL], axis=1)))


def mask_visibility(
    allowed_BLL: jnp.ndarray, target_positions_BP: jnp.ndarray | None, memory_BM: jnp.ndarray
) -> Visibility:
    """Return the visibility of the dense form. allowed: bool, row may see key; every content row sees itself, padding
    included."""
    batch, length, _ = allowed_BLL.shape
    rows_BTL = jnp.logical_or(allowed_BLL, jnp.eye(length, dtype=bool)[None])
    if target_positions_BP is not None:
        query_BPL = jnp.take_along_axis(allowed_BLL, target_positions_BP[:, :, None], axis=1)
        rows_BTL = jnp.concatenate([rows_BTL, query_BPL], axis=1)
    memory_BTM = jnp.broadcast_to(memory_BM[:, None, :], (batch, rows_BTL.shape[1], memory_BM.shape[1]))
    return Visibility(mask_BTK=jnp.concatenate([memory_BTM, rows_BTL], axis=-1))


def within(visibility: Visibility, span: Span) -> Visibility:
    """Return the visibility narrowed to a span of key positions."""
    if (given := visibility.span) is not None:
        first_BT, last_BT = jnp.maximum(given.first_BT, span.first_BT), jnp.minimum(given.last_BT, span.last_BT)
        span = Span(first_BT, last_BT, span.key_BK)
    return visibility._replace(span=span)


def document_span(document_start_BL: jnp.ndarray, target_positions_BP: jnp.ndarray | None, mem_len: int) -> Span:
    """Return the span of content rows, then query rows, that see their own document alone.

    document_start: int32, position of the first token of each token's document; below 0 where that came before the
    window, so that the document's tokens in memory are seen. Documents stand side by side: each ends where the next
    one starts.
    """
    batch, length = document_start_BL.shape
    place_1L = jnp.arange(length)[None]
    starts_BL = jnp.where(document_start_BL == place_1L, place_1L, length)
    next_start_BL = jax.lax.cummin(starts_BL, axis=1, reverse=True)  # at or after each position
    last_BL = jnp.pad(next_start_BL[:, 1:], ((0, 0), (0, 1)), constant_values=length) - 1
    first_BT, last_BT = (_with_queries_BT(edge_BL, target_positions_BP) for edge_BL in (document_start_BL, last_BL))
    key_K = jnp.arange(-mem_len, length)
    return Span(first_BT, last_BT, jnp.broadcast_to(key_K[None], (batch, mem_len + length)))


def causal_span(row_BT: jnp.ndarray, key_BK: jnp.ndarray, reach: int | None) -> Span:
    """Return the span of `attn_type` uni: no row sees a position after its own, nor one more than `reach` before it
    (same_length; None = no bound). Rows and keys by their positions in the window, memory below 0 (`_create_mask` of
    modeling.py)."""
    first_BT = jnp.full_like(row_BT, LOWEST) if reach is None else row_BT - reach
    return Span(first_BT, row_BT, key_BK)


def _with_queries_BT(content_BL: jnp.ndarray, target_positions_BP: jnp.ndarray | None, less: int = 0) -> jnp.ndarray:
    """Return a number for each content row, then for each query row that of its target, minus `less`."""
    if target_positions_BP is None:
        return content_BL
    query_BP = jnp.take_along_axis(content_BL, target_positions_BP, axis=1) - less
    return jnp.concatenate([content_BL, query_BP], axis=1)

"""Which keys a row may attend to: by ranks, which all objectives use, or by the dense masks of the 2019 code.

A key has the rank 2r, a content row 2r, a query row 2r - 1, and a row sees a key if key <= row. So a content row sees
its own token and a query row does not. Memory in use ranks below everything; unused memory and padding rank above.
"""

import jax
import jax.numpy as jnp

from xlnet_jax.kernels.arguments import Relations

LOWEST, HIGHEST = -(2**30), 2**30


def memory_in_use_BM(mem_filled_B: jnp.ndarray, mem_len: int) -> jnp.ndarray:
    """Return bool [B, M], True for the newest `mem_filled` slots of each row; the newest slot is last."""
    return jnp.arange(mem_len)[None, :] >= mem_len - mem_filled_B[:, None]


def rank_relations(
    perm_rank_BL: jnp.ndarray,
    target_positions_BP: jnp.ndarray | None,
    memory_BM: jnp.ndarray,
    attention_mask_BL: jnp.ndarray | None = None,
) -> Relations:
    """Return the masks of the compact form: content rows, then query rows at target_positions (None = none).

    memory_BM: bool, which memory slots rows may see; attention_mask_BL: 1 = real token, None = all are. Padding rows
    may see anything, because nothing uses them.
    """
    content_BL = 2 * perm_rank_BL
    if attention_mask_BL is not None:
        content_BL = jnp.where(attention_mask_BL.astype(bool), content_BL, HIGHEST)
    row_BT = _append_queries_BT(content_BL, target_positions_BP, less=1)
    key_rank_BK = jnp.concatenate([jnp.where(memory_BM, LOWEST, HIGHEST), content_BL], axis=1)
    position_BK = _key_positions_BK(memory_BM, content_BL.shape[1])
    return Relations(row_rank_BT=row_BT, key_rank_BK=key_rank_BK, key_position_BK=position_BK)


def mask_relations(
    allowed_BLL: jnp.ndarray,
    target_positions_BP: jnp.ndarray | None,
    memory_BM: jnp.ndarray,
    tied_BLL: jnp.ndarray | None = None,
) -> Relations:
    """Return the masks of the dense form. allowed: bool, row may see key. Every content row also sees itself, even
    padding. tied: bool, row and key are predicted together, so that only the content row sees the key; None = none."""
    batch, length, _ = allowed_BLL.shape
    rows_BTL = jnp.logical_or(allowed_BLL, jnp.eye(length, dtype=bool)[None])
    if tied_BLL is not None:
        rows_BTL |= tied_BLL
    if target_positions_BP is not None:
        query_BPL = jnp.take_along_axis(allowed_BLL, target_positions_BP[:, :, None], axis=1)
        rows_BTL = jnp.concatenate([rows_BTL, query_BPL], axis=1)
    memory_BTM = jnp.broadcast_to(memory_BM[:, None, :], (batch, rows_BTL.shape[1], memory_BM.shape[1]))
    mask_BTK = jnp.concatenate([memory_BTM, rows_BTL], axis=-1)
    return Relations(mask_BTK=mask_BTK, key_position_BK=_key_positions_BK(memory_BM, length))


def _key_positions_BK(memory_BM: jnp.ndarray, length: int) -> jnp.ndarray:
    """Return the positions of a window's keys, int32; those of memory are negative."""
    batch, mem_len = memory_BM.shape
    return jnp.broadcast_to(jnp.arange(-mem_len, length)[None], (batch, mem_len + length))


def document_bounds(
    document_start_BL: jnp.ndarray, target_positions_BP: jnp.ndarray | None
) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the first and the last position of each row's own document, int32 [B, T]: content rows, then query rows.

    document_start: int32, position of the first token of each token's document; negative if the document began before
    the window, so that rows see its tokens in memory. Each document ends where the next one starts.
    """
    length = document_start_BL.shape[1]
    place_1L = jnp.arange(length)[None]
    starts_BL = jnp.where(document_start_BL == place_1L, place_1L, length)
    next_start_BL = jax.lax.cummin(starts_BL, axis=1, reverse=True)  # at or after each position
    last_BL = jnp.pad(next_start_BL[:, 1:], ((0, 0), (0, 1)), constant_values=length) - 1
    first_BT, last_BT = (_append_queries_BT(edge_BL, target_positions_BP) for edge_BL in (document_start_BL, last_BL))
    return first_BT, last_BT


def causal_bounds(row_BT: jnp.ndarray, reach: int | None) -> tuple[jnp.ndarray, jnp.ndarray]:
    """Return the first and the last position that each row of `attn_type` uni sees: none after its own, and at
    most `reach` positions back (same_length; None = no limit). row: positions in the window (`_create_mask` of
    modeling.py)."""
    return jnp.full_like(row_BT, LOWEST) if reach is None else row_BT - reach, row_BT


def _append_queries_BT(content_BL: jnp.ndarray, target_positions_BP: jnp.ndarray | None, less: int = 0) -> jnp.ndarray:
    """Append to the numbers of the content rows those of the targets, minus `less`, for the query rows."""
    if target_positions_BP is None:
        return content_BL
    query_BP = jnp.take_along_axis(content_BL, target_positions_BP, axis=1) - less
    return jnp.concatenate([content_BL, query_BP], axis=1)

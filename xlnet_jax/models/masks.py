"""Who sees whom: ranks, the one mask language of all objectives, and the dense masks of the original.

Every key has the rank 2r, a content row 2r, a query row 2r - 1, and a row sees a key where key <= row: a content row
sees its own token, a query row does not. Memory in use ranks below everything; unused memory and padding above.
"""

import jax.numpy as jnp

LOWEST, HIGHEST = -(2**30), 2**30


def visible_BTK(row_rank_BT: jnp.ndarray, key_rank_BK: jnp.ndarray) -> jnp.ndarray:
    """Which keys each row may attend to."""
    return key_rank_BK[:, None, :] <= row_rank_BT[:, :, None]


def memory_in_use_BM(mem_filled_B: jnp.ndarray, mem_len: int) -> jnp.ndarray:
    """The newest `mem_filled` slots of each row; newest last."""
    return jnp.arange(mem_len)[None, :] >= mem_len - mem_filled_B[:, None]


def visible_by_rank_BTK(
    perm_rank_BL: jnp.ndarray,
    target_positions_BP: jnp.ndarray | None,
    memory_BM: jnp.ndarray,
    attention_mask_BL: jnp.ndarray | None = None,
) -> jnp.ndarray:
    """Masks of the compact form: content rows, then the query rows at target_positions (none if None).

    memory_BM: bool, which memory slots may be seen; attention_mask_BL: 1 = real token, None = all are. What padding
    rows see is of no account: no real row sees them.
    """
    content_BL = 2 * perm_rank_BL
    if attention_mask_BL is not None:
        content_BL = jnp.where(attention_mask_BL.astype(bool), content_BL, HIGHEST)
    rows_BT = content_BL
    if target_positions_BP is not None:
        query_BP = jnp.take_along_axis(content_BL, target_positions_BP, axis=1) - 1
        rows_BT = jnp.concatenate([content_BL, query_BP], axis=1)
    memory_rank_BM = jnp.where(memory_BM, LOWEST, HIGHEST)
    return visible_BTK(rows_BT, jnp.concatenate([memory_rank_BM, content_BL], axis=1))


def visible_by_mask_BTK(
    allowed_BLL: jnp.ndarray, target_positions_BP: jnp.ndarray | None, memory_BM: jnp.ndarray
) -> jnp.ndarray:
    """Masks of the dense form. allowed: bool, row may see key; content rows see themselves always, padding too."""
    batch, length, _ = allowed_BLL.shape
    rows_BTL = jnp.logical_or(allowed_BLL, jnp.eye(length, dtype=bool)[None])
    if target_positions_BP is not None:
        query_BPL = jnp.take_along_axis(allowed_BLL, target_positions_BP[:, :, None], axis=1)
        rows_BTL = jnp.concatenate([rows_BTL, query_BPL], axis=1)
    memory_BTM = jnp.broadcast_to(memory_BM[:, None, :], (batch, rows_BTL.shape[1], memory_BM.shape[1]))
    return jnp.concatenate([memory_BTM, rows_BTL], axis=-1)


def causal_BTK(position_BT: jnp.ndarray, length: int, mem_len: int, same_length: bool) -> jnp.ndarray:
    """`attn_type` uni: no row sees a position behind its own; same_length: nor one more than mem_len before it
    (`_create_mask` of modeling.py). position: of each row in the window."""
    key_K = jnp.arange(mem_len + length)[None, None, :]
    row_BT1 = position_BT[:, :, None]
    seen_BTK = key_K <= row_BT1 + mem_len
    return seen_BTK & (key_K >= row_BT1) if same_length else seen_BTK

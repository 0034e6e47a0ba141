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
    perm_rank_BL: jnp.ndarray, target_positions_BP: jnp.ndarray | None, memory_BM: jnp.ndarray
) -> jnp.ndarray:
    """Masks of the compact form: content rows, then the query rows at target_positions (none if None).

    memory_BM: bool, which memory slots are in use.
    """
    content_BL = 2 * perm_rank_BL
    rows_BT = content_BL
    if target_positions_BP is not None:
        query_BP = jnp.take_along_axis(content_BL, target_positions_BP, axis=1) - 1
        rows_BT = jnp.concatenate([content_BL, query_BP], axis=1)
    memory_rank_BM = jnp.where(memory_BM, LOWEST, HIGHEST)
    return visible_BTK(rows_BT, jnp.concatenate([memory_rank_BM, content_BL], axis=1))


def visible_by_mask_BTK(
    perm_mask_BLL: jnp.ndarray, target_mapping_BPL: jnp.ndarray | None, memory_BM: jnp.ndarray
) -> jnp.ndarray:
    """Masks of the dense form. perm_mask: 1 where a row may NOT attend; content rows see themselves always."""
    length = perm_mask_BLL.shape[-1]
    allowed_BLL = jnp.logical_not(perm_mask_BLL.astype(bool))
    rows_BTL = jnp.logical_or(allowed_BLL, jnp.eye(length, dtype=bool)[None])
    if target_mapping_BPL is not None:
        positions_BP = target_mapping_BPL.argmax(-1)
        query_BPL = jnp.take_along_axis(allowed_BLL, positions_BP[:, :, None], axis=1)
        rows_BTL = jnp.concatenate([rows_BTL, query_BPL], axis=1)
    batch, rows, _ = rows_BTL.shape
    memory_BTM = jnp.broadcast_to(memory_BM[:, None, :], (batch, rows, memory_BM.shape[1]))
    return jnp.concatenate([memory_BTM, rows_BTL], axis=-1)

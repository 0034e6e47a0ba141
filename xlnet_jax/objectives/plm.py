"""Permutation language modelling (paper, sections 2.2 and 2.3): the query stream predicts the targets of a window."""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from xlnet_jax.models.backbone import Inputs
from xlnet_jax.models.lm import XLNetLM
from xlnet_jax.models.masks import memory_in_use_BM, visible_by_mask_BTK, visible_by_rank_BTK


class Scored(NamedTuple):
    """A batch's loss, as sums, so that parts of a batch add up."""

    loss_sum: jnp.ndarray  # float32, nats
    weight_sum: jnp.ndarray  # float32, number of targets
    new_mems_ZBMD: jnp.ndarray


def inputs_of(batch: dict[str, jax.Array], mem_len: int) -> Inputs:
    """What the network reads of a batch in compact or in dense form (xlnet_jax/dims.py)."""
    memory_BM = memory_in_use_BM(batch["mem_filled"], mem_len)
    if "perm_rank" in batch:
        positions_BP = batch["target_positions"]
        visible_BTK = visible_by_rank_BTK(batch["perm_rank"], positions_BP, memory_BM)
    else:
        positions_BP = batch["target_mapping"].argmax(-1).astype(jnp.int32)
        visible_BTK = visible_by_mask_BTK(batch["perm_mask"], batch["target_mapping"], memory_BM)
    return Inputs(
        batch["input_ids"], batch["segment_ids"], visible_BTK, batch["is_reversed"], positions_BP, memory_BM
    )  # fmt: skip


def score(
    model: XLNetLM,
    params: dict,
    batch: dict[str, jax.Array],
    mems_ZBMD: jax.Array,
    reuse_len: int,
    dropout_key: jax.Array | None,
) -> Scored:
    """Sum of the cross-entropy of the targets; dropout_key None = no dropout."""
    logits_BPV, outputs = cast(Any, model.apply)(
        {"params": params},
        inputs_of(batch, mems_ZBMD.shape[2]),
        mems_ZBMD,
        reuse_len=reuse_len,
        train=dropout_key is not None,
        rngs=None if dropout_key is None else {"dropout": dropout_key},
    )
    loss_BP = cross_entropy_BP(logits_BPV, batch["target_ids"])
    weights_BP = batch["target_weights"]
    return Scored((loss_BP * weights_BP).sum(), weights_BP.sum(), outputs.new_mems_ZBMD)


def cross_entropy_BP(logits_BPV: jnp.ndarray, target_ids_BP: jnp.ndarray) -> jnp.ndarray:
    """Nats per target, float32."""
    of_target_BP1 = jnp.take_along_axis(logits_BPV, target_ids_BP[:, :, None], axis=-1)
    return jax.nn.logsumexp(logits_BPV, axis=-1) - of_target_BP1[:, :, 0]

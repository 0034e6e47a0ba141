"""Permutation language modelling (paper, sections 2.2 and 2.3): the query stream predicts the targets of a window."""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from xlnet_jax.config import ModelConfig
from xlnet_jax.models.inputs import Inputs, compact_inputs, dense_inputs
from xlnet_jax.models.lm import XLNetLM
from xlnet_jax.models.masks import memory_in_use_BM


class Scored(NamedTuple):
    """A batch's loss, as sums, so that parts of a batch add up."""

    loss_sum: jnp.ndarray  # float32, nats
    weight_sum: jnp.ndarray  # float32, number of targets
    new_mems_ZBMD: jnp.ndarray


def inputs_of(batch: dict[str, jax.Array], config: ModelConfig) -> Inputs:
    """What the network reads of a batch in compact or in dense form (xlnet_jax/dims.py)."""
    memory_BM = memory_in_use_BM(batch["mem_filled"], config.mem_len)
    attend_empty_memory = config.profile == "paper2019"
    if "perm_rank" in batch:
        return compact_inputs(
            batch["input_ids"],
            batch["segment_ids"],
            batch["perm_rank"],
            batch["target_positions"],
            batch["is_reversed"],
            memory_BM,
            attend_empty_memory=attend_empty_memory,
        )
    return dense_inputs(
        batch["input_ids"],
        segment_ids_BL=batch["segment_ids"],
        perm_mask_BLL=batch["perm_mask"],
        target_mapping_BPL=batch["target_mapping"],
        is_reversed_B=batch["is_reversed"],
        memory_BM=memory_BM,
        attend_empty_memory=attend_empty_memory,
    )


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
        inputs_of(batch, model.config),
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

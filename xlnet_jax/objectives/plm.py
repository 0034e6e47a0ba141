"""Permutation language modelling (paper, sections 2.2 and 2.3): the query stream predicts the targets of a window."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from xlnet_jax.config import Config, ModelConfig
from xlnet_jax.models.inputs import Inputs, compact_inputs, dense_inputs
from xlnet_jax.models.lm import XLNetLM
from xlnet_jax.models.masks import memory_in_use_BM
from xlnet_jax.objectives.objective import DeviceBatch, Scored, apply


@dataclass(frozen=True)
class PermutationLM:
    """The objective (objectives/objective.py) of these settings."""

    config: Config

    @property
    def model(self) -> XLNetLM:
        """The network."""
        return XLNetLM(self.config.model)

    @property
    def mems(self) -> jax.ShapeDtypeStruct:
        """[Z, B, M, D] in the compute type."""
        m = self.config.model
        shape = (m.num_layers, self.config.data.batch_size, m.mem_len, m.d_model)
        return jax.ShapeDtypeStruct(shape, jnp.dtype(m.dtype))

    def init(self, key: jax.Array) -> Any:
        """One row is enough: parameters do not depend on the batch."""
        c, m = self.config.data, self.config.model
        row = {
            "input_ids": jnp.zeros((1, c.seq_len), jnp.int32),
            "segment_ids": jnp.zeros((1, c.seq_len), jnp.int32),
            "perm_rank": jnp.zeros((1, c.seq_len), jnp.int32),
            "target_positions": jnp.zeros((1, c.num_slots), jnp.int32),
            "is_reversed": jnp.zeros(1, bool),
            "mem_filled": jnp.zeros(1, jnp.int32),
        }
        mems = jnp.zeros((m.num_layers, 1, m.mem_len, m.d_model), m.dtype)
        return self.model.init({"params": key}, inputs_of(row, m), mems, reuse_len=c.reuse_len, train=False)["params"]

    def with_memory_of(self, batch: DeviceBatch, steps: jax.Array) -> DeviceBatch:
        """Caps mem_filled."""
        # At most as many windows as fill the memory: else int32 ends after some million steps.
        windows = jnp.minimum(steps, self.config.model.mem_len)
        return batch | {"mem_filled": jnp.minimum(batch["mem_filled"], self.config.data.reuse_len * windows)}

    def score(self, params: Any, batch: DeviceBatch, mems_ZBMD: jax.Array, dropout_key: jax.Array | None) -> Scored:
        """Sum of the cross-entropy of the targets."""
        return score(self.model, params, batch, mems_ZBMD, self.config.data.reuse_len, dropout_key)


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
    inputs = inputs_of(batch, model.config)
    logits_BPV, outputs = apply(model, params, dropout_key, inputs, mems_ZBMD, reuse_len=reuse_len)
    loss_BP = cross_entropy_BP(logits_BPV, batch["target_ids"])
    weights_BP = batch["target_weights"]
    return Scored((loss_BP * weights_BP).sum(), weights_BP.sum(), outputs.new_mems_ZBMD)


def cross_entropy_BP(logits_BPV: jnp.ndarray, target_ids_BP: jnp.ndarray) -> jnp.ndarray:
    """Nats per target, float32."""
    of_target_BP1 = jnp.take_along_axis(logits_BPV, target_ids_BP[:, :, None], axis=-1)
    return jax.nn.logsumexp(logits_BPV, axis=-1) - of_target_BP1[:, :, 0]

"""Replaced token detection (ELECTRA, Clark et al. 2020, section 2): a generator learns to predict masked pieces and
replaces them with samples; the network learns which tokens were replaced."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from xlnet_jax.models.bert import BertDetector
from xlnet_jax.models.heads import XLNetLM
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.objectives.language_model import (
    BatchDropout,
    DeviceBatch,
    LanguageModel,
    Scored,
    apply,
    cross_entropy_BP,
    inputs_of,
    sum_over_rows,
)
from xlnet_jax.settings.config import ModelConfig

SHARED = ("word_embedding", "position_embedding", "segment_embedding", "embedding_norm")
"""Arrays that generator and network share (section 3.2; the paper's code shares all embeddings)."""


class ReplacedTokenDetection(LanguageModel):
    """Loss (`Objective`) of two networks without memory. Parameters: `backbone` and `detector` are the network;
    `generator` is an `XLNetLM` without the shared arrays."""

    @property
    def generator(self) -> ModelConfig:
        """Settings of the generator."""
        return self.config.rtd.generator_of(self.config.model)

    def init(self, key: jax.Array) -> Any:
        """Return the parameters of both networks."""
        ids = jnp.zeros((1, 1), jnp.int32)
        inputs = text_inputs(ids, segment_ids_BL=ids)
        of_network, of_generator = jax.random.split(key)
        network = BertDetector(self.config.model).init(of_network, inputs)["params"]
        generator = XLNetLM(self.generator).init(of_generator, inputs)["params"]
        own = {name: tree for name, tree in generator["backbone"].items() if name not in SHARED}
        return {**network, "generator": {**generator, "backbone": own}}

    def score(self, params: Any, batch: DeviceBatch, mems_ZBMD: jax.Array, dropout: BatchDropout | None) -> Scored:
        """Return the generator's cross-entropy, summed over its targets, and the network's, averaged over the tokens of
        each row. Samples depend only on the row's noise_seed, and no gradient flows through them (section 2)."""
        c = self.config
        of_generator, of_network = _split_dropout(dropout)
        inputs, _ = inputs_of(batch, c)
        positions_BP = batch["target_positions"]
        logits_BPV, _ = apply(
            XLNetLM(self.generator), self._generator_params(params), of_generator, inputs, mems_ZBMD, at_BP=positions_BP
        )
        weights_BP = batch["target_weights"]
        loss_sum = (cross_entropy_BP(logits_BPV, batch["target_ids"]) * weights_BP).sum()

        is_target_BP = weights_BP > 0
        original_BL = _put(batch["input_ids"], positions_BP, is_target_BP, batch["target_ids"])
        read_BL = _put(original_BL, positions_BP, is_target_BP, sample_BP(logits_BPV, batch["noise_seed"]))
        is_replaced_BL = (read_BL != original_BL).astype(jnp.float32)
        scores_BL, outputs = apply(
            BertDetector(c.model), params, of_network, inputs._replace(input_ids_BL=read_BL), mems_ZBMD
        )
        loss = sum_over_rows(optax.sigmoid_binary_cross_entropy(scores_BL, is_replaced_BL).mean(1), batch)
        is_right_BL = (scores_BL > 0) == (is_replaced_BL > 0)
        measures = {
            "detection_loss": loss,
            "detection_accuracy": sum_over_rows(is_right_BL.astype(jnp.float32).mean(1), batch),
            "replaced_share": sum_over_rows(is_replaced_BL.mean(1), batch),
        }
        weighted = {"weighted_detection_loss": c.rtd.detection_weight * loss}
        return Scored(loss_sum, weights_BP.sum(), outputs.new_mems_ZBMD, weighted, measures)

    def _generator_params(self, params: Any) -> Any:
        shared = {name: params["backbone"][name] for name in SHARED if name in params["backbone"]}
        own = params["generator"]
        return {**own, "backbone": {**own["backbone"], **shared}}


def _split_dropout(dropout: BatchDropout | None) -> tuple[BatchDropout | None, BatchDropout | None]:
    """Return the dropout of the generator and of the network, with separate keys."""
    if dropout is None:
        return None, None
    of_generator, of_network = jax.random.split(dropout.key)
    return dropout._replace(key=of_generator), dropout._replace(key=of_network)


def sample_BP(logits_BPV: jax.Array, noise_seed_B: jax.Array) -> jax.Array:
    """Return pieces sampled from the generator, int32. The samples of a row do not depend on other rows."""

    def of_row(logits_PV: jax.Array, seed: jax.Array) -> jax.Array:
        return jax.random.categorical(jax.random.key(seed), logits_PV)

    return jax.vmap(of_row)(jax.lax.stop_gradient(logits_BPV), noise_seed_B).astype(jnp.int32)


def _put(ids_BL: jax.Array, positions_BP: jax.Array, is_target_BP: jax.Array, ids_BP: jax.Array) -> jax.Array:
    """Return the tokens with new ids at the targets. Padding slots change nothing."""

    def into_row(ids_L: jax.Array, places_P: jax.Array, new_P: jax.Array) -> jax.Array:
        return ids_L.at[places_P].set(new_P, mode="drop")

    length = ids_BL.shape[1]
    return jax.vmap(into_row)(ids_BL, jnp.where(is_target_BP, positions_BP, length), ids_BP)

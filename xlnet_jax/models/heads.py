"""Heads of finetuning: one label or number a text, one label a token, one of several texts (`function_builder.py`,
`run_race.py`). Question answering is in question_answering.py."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlnet_jax.models.bert import places_BL
from xlnet_jax.models.encoder import build_encoder, build_lm
from xlnet_jax.models.inputs import Inputs, dense_inputs, text_inputs
from xlnet_jax.models.layers import Dense
from xlnet_jax.models.question_answering import XLNetForQuestionAnswering
from xlnet_jax.models.summary import SequenceSummary
from xlnet_jax.models.xlnet import XLNetLM
from xlnet_jax.settings.config import HeadConfig, ModelConfig


class XLNetForSequence(nn.Module):
    """Scores of a text from its summary, for classification and regression; multiple choice scores each option so."""

    config: ModelConfig
    head: HeadConfig

    @property
    def texts_per_example(self) -> int:
        """Number of input rows that one example takes."""
        return self.head.num_labels if self.head.task == "multiple_choice" else 1

    @nn.compact
    def __call__(
        self, inputs: Inputs, attention_mask_BL: jnp.ndarray, *, earlier: Sequence[Inputs] = (), train: bool = False
    ) -> jnp.ndarray:
        """Return float32 scores: [B, labels], with multilabel a logit each; regression [B]; multiple choice [B /
        options, options], where the options of a question are consecutive rows of input.

        attention_mask: 1 = real token; earlier: the windows of the text before this one, read for their memory only
        (`text_windows`); train: apply dropout (takes the rng "dropout").
        """
        head = self.head
        backbone, mems_ZBMD = build_encoder(self.config, "backbone"), None
        for window in earlier:
            mems_ZBMD = backbone(window, mems_ZBMD, train=train).new_mems_ZBMD
        hidden_BLD = backbone(inputs, mems_ZBMD, train=train).content_BLD
        if head.summary == "first" and self.config.network == "bert":
            attention_mask_BL = attention_mask_BL * (places_BL(inputs) == 0)  # <cls>, wherever it is
        summary_BD = SequenceSummary(self.config, head, train, name="summary")(
            hidden_BLD, attention_mask_BL, inputs.example_B
        )
        has_labels = head.task in ("classification", "multilabel")
        outputs = head.num_labels if has_labels else 1
        scores_BC = Dense(self.config, outputs, ("embed", None), name="logits")(summary_BD).astype(jnp.float32)
        if has_labels:
            return scores_BC
        return scores_BC[:, 0] if head.task == "regression" else scores_BC.reshape(-1, head.num_labels)


class XLNetForTokens(nn.Module):
    """Scores of every token, for tagging."""

    config: ModelConfig
    head: HeadConfig

    @nn.compact
    def __call__(self, inputs: Inputs, *, train: bool = False) -> jnp.ndarray:
        """Return float32 scores [B, L, labels]."""
        hidden_BLD = build_encoder(self.config, "backbone")(inputs, train=train).content_BLD
        dense = Dense(self.config, self.head.num_labels, ("embed", None), name="logits")
        return dense(hidden_BLD).astype(jnp.float32)


def init_params(config: ModelConfig, head: HeadConfig | None, key: jax.Array) -> Any:
    """Draw the parameters of a network and its head (None = language modelling): nested dicts, boxed with the logical
    names of their axes."""
    model, ids = build_model(config, head), jnp.zeros((1, 2), jnp.int32)
    if isinstance(model, XLNetLM) and config.positions == "relative":
        return model.init(key, dense_inputs(ids, segment_ids_BL=ids, predicted_BL=ids))["params"]
    if isinstance(model, XLNetForQuestionAnswering):
        return model.init(key, text_inputs(ids, segment_ids_BL=ids), ids[:, 0], ids, ids[:, 0])["params"]
    if isinstance(model, XLNetForSequence):
        ids = jnp.tile(ids, (model.texts_per_example, 1))
        return model.init(key, text_inputs(ids, segment_ids_BL=ids), jnp.ones_like(ids))["params"]
    return model.init(key, text_inputs(ids, segment_ids_BL=ids))["params"]


def build_model(config: ModelConfig, head: HeadConfig | None) -> nn.Module:
    """Build the network of a checkpoint. head: None = language modelling."""
    if head is None:
        return build_lm(config)
    if head.task == "question_answering":
        return XLNetForQuestionAnswering(config)
    return XLNetForTokens(config, head) if head.task == "token_classification" else XLNetForSequence(config, head)

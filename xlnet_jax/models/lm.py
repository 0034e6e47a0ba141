"""XLNet with its language modelling head: the embedding tied, with a bias of its own (`lm_loss` of modeling.py)."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from xlnet_jax.config import ModelConfig
from xlnet_jax.models.backbone import Backbone
from xlnet_jax.models.inputs import Inputs
from xlnet_jax.models.layers import Outputs, tied_logits_BPV


class XLNetLM(nn.Module):
    """Backbone and vocabulary scores of the stream that predicts."""

    config: ModelConfig

    def setup(self) -> None:
        self.backbone = Backbone(self.config)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        self.output_bias: Any = self.param("output_bias", zeros, (self.config.vocab_size,), jnp.float32)

    def __call__(
        self,
        inputs: Inputs,
        mems_ZBMD: jnp.ndarray | None = None,
        *,
        at_BP: jnp.ndarray | None = None,
        reuse_len: int | None = None,
        train: bool = False,
    ) -> tuple[jnp.ndarray, Outputs]:
        """(float32 logits [B, P, V] of the query stream, or [B, L, V] of the content stream without one, outputs).

        at: positions, int32, at which the content stream is asked; None = at all."""
        outputs = self.backbone(inputs, mems_ZBMD, reuse_len=reuse_len, train=train)
        hidden = outputs.content_BLD if outputs.query_BPD is None else outputs.query_BPD
        if at_BP is not None:
            hidden = jnp.take_along_axis(hidden, at_BP[:, :, None], axis=1)
        return tied_logits_BPV(hidden, self.backbone.table_VD(), self.output_bias), outputs

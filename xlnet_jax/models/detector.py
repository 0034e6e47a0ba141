"""ELECTRA's discriminator: BERT's encoder and a score for each token (Clark et al. 2020, section 2)."""

import flax.linen as nn
import jax.numpy as jnp

from xlnet_jax.models.bert import BertEncoder
from xlnet_jax.models.inputs import Inputs
from xlnet_jax.models.layers import ACTIVATIONS, Dense, Outputs
from xlnet_jax.settings.config import ModelConfig


class BertDetector(nn.Module):
    """Encoder and detector: which tokens were replaced."""

    config: ModelConfig

    def setup(self) -> None:
        self.backbone = BertEncoder(self.config)
        self.detector = Detector(self.config)

    def __call__(
        self, inputs: Inputs, mems_ZBMD: jnp.ndarray | None = None, *, train: bool = False
    ) -> tuple[jnp.ndarray, Outputs]:
        """Return (float32 logits [B, L] that a token was replaced, outputs of the encoder)."""
        outputs = self.backbone(inputs, mems_ZBMD, train=train)
        return self.detector(outputs.content_BLD), outputs


class Detector(nn.Module):
    """Score of each token: w act(W x + b) + c."""

    config: ModelConfig

    @nn.compact
    def __call__(self, content_BLD: jnp.ndarray) -> jnp.ndarray:
        c = self.config
        dense_BLD = Dense(c, c.d_model, ("embed", None), name="dense")(content_BLD)
        scores_BL1 = Dense(c, 1, ("embed", None), name="logits")(ACTIVATIONS[c.activation](dense_BLD))
        return scores_BL1[:, :, 0].astype(jnp.float32)

"""Head for pairs of texts, next sentence or order: BERT's pooler and two logits (Devlin et al. 2019, section 3.1)."""

import flax.linen as nn
import jax.numpy as jnp

from xlnet_jax.models.layers import Dense
from xlnet_jax.settings.config import ModelConfig


class PairHead(nn.Module):
    """Logits from <cls>, the last token of a window."""

    config: ModelConfig

    @nn.compact
    def __call__(self, content_BLD: jnp.ndarray) -> jnp.ndarray:
        """Return float32 logits [B, 2]: [0] for B continues A (data.pair_loss order: comes after A), [1] for not."""
        pooled_BD = nn.tanh(Dense(self.config, self.config.d_model, ("embed", None), name="pooler")(content_BLD[:, -1]))
        return Dense(self.config, 2, ("embed", None), name="logits")(pooled_BD).astype(jnp.float32)

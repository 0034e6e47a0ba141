"""The network under every head, chosen by model.network."""

from xlnet_jax.models.bert import BertEncoder, BertLM
from xlnet_jax.models.xlnet import Backbone, XLNetLM
from xlnet_jax.settings.config import ModelConfig


def build_encoder(config: ModelConfig, name: str | None = None) -> Backbone | BertEncoder:
    """Build the network that returns hidden states. name: module name inside a compact method; None in `setup`."""
    return BertEncoder(config, name=name) if config.network == "bert" else Backbone(config, name=name)


def build_lm(config: ModelConfig) -> XLNetLM | BertLM:
    """Build the network that returns vocabulary logits and hidden states."""
    return BertLM(config) if config.network == "bert" else XLNetLM(config)

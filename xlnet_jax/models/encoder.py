"""The network under every head, chosen by its positions."""

from xlnet_jax.models.bert import BertEncoder, BertLM
from xlnet_jax.models.xlnet import Backbone, XLNetLM
from xlnet_jax.settings.config import ModelConfig


def build_encoder(config: ModelConfig, name: str | None = None) -> Backbone | BertEncoder:
    """Hidden states of a text; name: of the module where another one holds it, None in `setup`."""
    return BertEncoder(config, name=name) if config.network == "bert" else Backbone(config, name=name)


def build_lm(config: ModelConfig) -> XLNetLM | BertLM:
    """The same with vocabulary scores."""
    return BertLM(config) if config.network == "bert" else XLNetLM(config)

"""Words predicted together against words predicted each by itself, with any checkpoint."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xlnet_jax.api.command import CheckpointArgument

if TYPE_CHECKING:
    from xlnet_jax.inference.factorization import Factorizations


@dataclass(frozen=True)
class FactorizeSettings:
    """The paper's example (section 2.6), or your own."""

    checkpoint: CheckpointArgument
    """checkpoint with a tokenizer, in any format, tiny, or a name on the Hugging Face Hub"""
    text: str = "New York is a city"
    """text whose words are known, except the targets"""
    targets: str = "New York"
    """words of the text to predict"""


def factorize_text(settings: FactorizeSettings) -> "Factorizations":
    """Return both factorizations (`inference.factorization.factorize`) with the checkpoint that the settings name."""
    from xlnet_jax.checkpoints.formats import load
    from xlnet_jax.inference.factorization import factorize

    return factorize(load(settings.checkpoint), settings.text, settings.targets)

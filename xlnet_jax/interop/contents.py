"""Contents of a checkpoint: as a reader finds them, under the names of its format, and under ours."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.interop.weights import Weight
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import HeadConfig, ModelConfig


@dataclass(frozen=True)
class Contents:
    """Contents of a checkpoint of any format. `params`: nested dicts of float32 NumPy arrays, under our names."""

    model: ModelConfig
    params: dict[str, Any]
    objective: str  # name of the objective that the weights were pretrained by
    head: HeadConfig | None = None  # None = language modelling
    tokenizer: Tokenizer | None = None
    reuse_len: int | None = None  # positions that became memory in pretraining; None = unknown
    extra: Mapping[str, Any] = field(default_factory=dict)  # Hugging Face's settings that only a conversion back needs
    notes: tuple[str, ...] = field(default=(), compare=False)  # what was dropped or assumed while reading

    @property
    def reads_left_to_right(self) -> bool:
        """True if pieces can be asked for from left to right, and in no other order."""
        return objective_named(self.objective).order == "left to right"

    @property
    def judges_tokens(self) -> bool:
        """True where the network judges tokens by a detector (models/detector.py) and predicts no pieces."""
        return self.head is None and objective_named(self.objective).judges_tokens


def guessed_objective(model: ModelConfig, params: Mapping[str, Any]) -> str:
    """Return the objective that weights were trained by, as they show: for checkpoints that do not name it, which are
    those of other projects and of earlier versions of this one."""
    if model.is_causal:
        return "clm"
    if "detector" in params:
        return "rtd"
    return "plm" if "mask_embedding" in params.get("backbone", {}) else "mlm"


@dataclass(frozen=True)
class Found:
    """Contents of the files of one format, before they are known to fit the network."""

    model: ModelConfig
    head: HeadConfig | None
    table: list[Weight]
    variables: Mapping[str, np.ndarray]
    tokenizer: Tokenizer | None = None
    reuse_len: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def check_sizes(config: ModelConfig, sizes: Mapping[str, Any], where: str) -> None:
    """Raise InputError, with the settings, where a configuration contradicts the sizes of the weights beside it."""
    wrong = [
        f"{name} {getattr(config, name)} (the weights have {size})"
        for name, size in sizes.items()
        if getattr(config, name) != size
    ]
    if wrong:
        raise InputError(f"{where} contradicts its weights: {', '.join(wrong)}")


def notes_on_padding(head: HeadConfig | None, there: str) -> list[str]:
    """Return a note where a network of another project, `there`, reads padding into the summary of a text."""
    if not head or not head.reads_summary or head.summary not in ("first", "mean"):
        return []
    return [f"summary {head.summary}: {there} counts padding as text; give it texts of one length at a time, unpadded"]

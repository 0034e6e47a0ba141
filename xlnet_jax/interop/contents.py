"""Contents of a checkpoint: as a reader finds them, under the names of its format, and under ours."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.interop.weights import Weight
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import HeadConfig, ModelConfig

NULL_THRESHOLD, LABEL_THRESHOLD = "qa.null_threshold", "multilabel.threshold"
Thresholds = Mapping[str, float | None]
"""Settings of finetuning that turn scores into predictions, by name: LABEL_THRESHOLD, and NULL_THRESHOLD where a
question may be unanswerable (None = no value was tuned)"""


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
    thresholds: Thresholds = field(default_factory=dict)

    @property
    def reads_left_to_right(self) -> bool:
        """True if pieces can be asked for from left to right, and in no other order."""
        return objective_named(self.objective).order == "left to right"

    @property
    def judges_tokens(self) -> bool:
        """True where the network judges tokens by a detector (models/detector.py) and predicts no pieces."""
        return self.head is None and objective_named(self.objective).judges_tokens


def guessed_objective(model: ModelConfig, params: Mapping[str, Any]) -> str:
    """Return the objective that weights were trained by, as they show: the checkpoints of other projects do not name
    it."""
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
    thresholds: Thresholds = field(default_factory=dict)


def read_thresholds(content: Any, where: str) -> Thresholds:
    """Return the thresholds in a JSON object. Raises InputError, naming `where`, on anything else."""
    if not isinstance(content, dict) or not content.keys() <= {NULL_THRESHOLD, LABEL_THRESHOLD}:
        raise InputError(f"{where} {content!r:.100} is no object of thresholds: {NULL_THRESHOLD}, {LABEL_THRESHOLD}")
    for name, value in content.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not (is_number or (value is None and name == NULL_THRESHOLD)):
            raise InputError(f"{where}: {name} {value!r:.100} is no number")
        if name == LABEL_THRESHOLD and not 0 < value < 1:
            raise InputError(f"{where}: {name} {value} is no probability between 0 and 1")
    return content


def describe_thresholds(thresholds: Thresholds) -> str:
    """Return e.g. 'qa.null_threshold -1.25', or "" where there are no values."""
    return ", ".join(f"{name} {value:.6g}" for name, value in thresholds.items() if value is not None)


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

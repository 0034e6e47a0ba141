"""Types shared by the files of this folder, each of which turns windows of text into the batches of one objective."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from data_pipelines.objectives.fields import Field
from data_pipelines.stateless import Purpose
from xlnet_jax.dims import Batch
from xlnet_jax.settings.config import DataConfig

Draw = Callable[[Purpose, int], np.ndarray]
"""(purpose, width) -> uniform float64 [B, width] in [0, 1), drawn for the rows of a batch."""


@dataclass(frozen=True)
class Windows:
    """Windows before anything is masked, and what else a batch is made from."""

    arrays: Batch  # as `cut_windows` returns them, is_reversed and, with data.pack, those of `documents_of`
    is_word_start: np.ndarray  # bool [V]
    draw: Draw
    data: DataConfig
    has_memory: bool


@dataclass(frozen=True)
class Filling:
    """Conversion of windows into batches of one objective, and its explanation for `data_pipelines.inspect`."""

    objective: str
    fill: Callable[[Windows], Batch]
    """return the arrays that `fields` names"""
    fields: Mapping[str, Field]
    """arrays that `fill` returns, in compact form"""
    stream: Literal["query", "content"]
    """the stream that predicts; the query stream has a row of its own for each target"""
    target: Literal["own", "next"]
    """token that a row at a target position predicts: the one at that position, or the one after it"""
    mark: str
    """explanation of the marks in the printed text of a window"""
    legend: str
    """explanation below the printed text of a window"""
    caption: str
    """explanation below the picture of a window"""

    @property
    def replaces(self) -> bool:
        """True if input_ids hold something else at targets: a content row would copy the token that it reads."""
        return self.stream == "content" and self.target == "own"

"""What the batches of every objective are drawn with."""

from collections.abc import Callable

import numpy as np

from data_pipelines.stateless import Purpose

Draw = Callable[[Purpose, int], np.ndarray]
"""(purpose, width) -> uniform float64 [B, width] in [0, 1), those of a batch's rows."""

"""Train masked diffusion with one part changed: python -m benchmarks.mdlm_variants VARIANT, then the flags of train.

- bound: the weights L / k of the bound (data.bound_weights), which the other variants have too.
- independent: the masked share of each row is drawn alone, instead of one share from each interval in a batch.
- interval: shares from LEAST to 1 instead of all, so that no weight is above 1 / LEAST.
"""

import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from data_pipelines.objectives import Windows, mdlm
from data_pipelines.stateless import Purpose
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.dims import Batch

LEAST = 0.1


def bound(windows: Windows) -> Batch:
    return mdlm.fill(replace(windows, data=replace(windows.data, bound_weights=True)))


def independent(windows: Windows) -> Batch:
    return bound(replace(windows, stratum_B=None))


def interval(windows: Windows) -> Batch:
    if windows.stratum_B is None:  # held out
        return mdlm.fill(windows)

    def draw(purpose: Purpose, width: int) -> np.ndarray:
        drawn = windows.draw(purpose, width).copy()
        if purpose is Purpose.DIFFUSION:
            shares = (windows.stratum_B + drawn[:, 0]) / windows.data.batch_size
            drawn[:, 0] = LEAST + (1 - LEAST) * shares
        return drawn

    return bound(replace(windows, stratum_B=None, draw=draw))


VARIANTS: dict[str, Callable[[Windows], Batch]] = {"bound": bound, "independent": independent, "interval": interval}

if __name__ == "__main__":
    object.__setattr__(mdlm.FILLING, "fill", VARIANTS[sys.argv[1]])
    sys.exit(COMMANDS["train"].main(sys.argv[2:]))

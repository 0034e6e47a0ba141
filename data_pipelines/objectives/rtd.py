"""Batches of replaced token detection: masked windows for the generator, and a seed for the pieces that the generator
draws (Clark et al. 2020, section 2)."""

from dataclasses import replace

import numpy as np

from data_pipelines.objectives import Field, Windows, mlm
from data_pipelines.stateless import Purpose, choice
from xlnet_jax.dims import Batch


def fill(windows: Windows) -> Batch:
    """Return what `mlm.fill` returns, and noise_seed."""
    return mlm.fill(windows) | {"noise_seed": choice(windows.draw(Purpose.SAMPLES, 1)[:, 0], 2**31).astype(np.int32)}


FILLING = replace(
    mlm.FILLING,
    objective="rtd",
    fill=fill,
    fields={**mlm.FILLING.fields, "noise_seed": Field("B", "int32", "seed of the pieces that a generator draws; rtd")},
    mark="; [<mask>→piece] = what the generator reads → the target",
    legend=f"""{mlm.FILLING.legend}
This describes the generator. The network reads the generator's samples in place of the targets, and predicts for
every token whether it was replaced.""",
)

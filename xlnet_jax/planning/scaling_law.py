"""Predict a run's held-out loss from its size and tokens, by a scaling law fitted to small runs.

`python -m benchmarks.fit_scaling` fits a law to the runs of each recipe and writes them to scaling_law.json beside this
file. A recipe is more than its optimizer (`recipe_of`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from etils import epath

from xlnet_jax.costs import layer_parameters
from xlnet_jax.settings.config import Config
from xlnet_jax.storage.reading import read_json

FILE = Path(__file__).with_name("scaling_law.json")
INTERVAL = 0.9
"""share of the refits that a prediction's interval contains"""


@dataclass(frozen=True)
class Law:
    """Held-out loss E + A / N^alpha + B / D^beta, in nats per target (Hoffmann et al. 2022, equation 2).

    N: weights of the matrices in layers. D: tokens of the windows read.
    """

    E: float
    A: float
    alpha: float
    B: float
    beta: float

    def loss(self, parameters: float, tokens: float) -> float:
        return self.E + self.A / parameters**self.alpha + self.B / tokens**self.beta


@dataclass(frozen=True)
class Fit:
    """Law, refits that show its uncertainty, and the range of the runs it was fitted to."""

    objective: str
    recipe: str
    """how the runs were trained, in messages"""
    vocab_size: int
    """pieces of the runs' tokenizer; with more pieces, a target is harder to predict"""
    law: Law
    refits: tuple[Law, ...]
    """laws fitted to bootstrap samples of the runs"""
    parameters: tuple[float, float]
    """fewest and most of the runs"""
    tokens: tuple[float, float]
    """fewest and most of the runs"""


def predict_loss(config: Config) -> str:
    """Return a sentence with the predicted held-out loss of a run, in nats per target, and a warning if the run is
    larger than those that the law was fitted to."""
    fits = read_fits()
    recipe = recipe_of(config)
    if config.model.positions == "learned" or all(config.objective != fit.objective for fit in fits.values()):
        return "held-out loss: not predicted, because the scaling laws are for plm and the XLNet network"
    if recipe is None:
        return (
            "held-out loss: not predicted, because no scaling law fits this recipe: one is for that of the paper, the "
            "other for that of the modern presets (docs/measured.md)"
        )
    fit = fits[recipe]
    parameters = layer_parameters(config.model)
    tokens = config.steps * config.data.batch_size * config.data.seq_len
    spread = [law.loss(parameters, tokens) for law in fit.refits]
    low, high = np.quantile(spread, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
    found = (
        f"held-out loss after {config.steps:,} steps: {fit.law.loss(parameters, tokens):.2f} nats per target; "
        f"{low:.2f} to {high:.2f} in {INTERVAL:.0%} of the law's refits; on English text in {fit.vocab_size:,} pieces, "
        f"with a sixth of them as targets, trained {fit.recipe} (docs/measured.md)"
    )
    times_parameters, times_tokens = parameters / fit.parameters[1], tokens / fit.tokens[1]
    if max(times_parameters, times_tokens) <= 1:
        return found
    return (
        f"{found}\nEXTRAPOLATED: the run has {times_parameters:,.3g} times the parameters and {times_tokens:,.3g} "
        "times the tokens of the largest runs that the law was fitted to"
    )


def recipe_of(config: Config) -> str | None:
    """Return the optimizer of the recipe that a run has, which names its law; None if no law fits it."""
    data, targets = config.data, config.data.num_slots / config.data.seq_len
    has_memory = data.reuse_len > 0 and config.model.mem_len > 0
    parts = (config.optimizer.method, data.reuse_len > 0, has_memory, round(targets * 6), config.model.zero_init)
    return {("adamw", True, True, 1, False): "adamw", ("muon", False, False, 3, True): "muon"}.get(parts)


@functools.cache
def read_fits() -> dict[str, Fit]:
    """Return the laws in the package by the optimizer of their recipe."""
    return read_json(epath.Path(FILE), dict[str, Fit])

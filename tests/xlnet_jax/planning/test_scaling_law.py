"""Losses that the scaling law predicts, with their uncertainty, and where it does not tell."""

import math
import re
from dataclasses import replace

import pytest

from tests.xlnet_jax.random_models import SMALL
from xlnet_jax.interop.weights import abstract_params
from xlnet_jax.objectives.presets import PRESETS, demo, with_objective
from xlnet_jax.planning import scaling_law
from xlnet_jax.planning.scaling_law import Fit, Law, layer_parameters, predict_loss

LAW = Law(E=2.0, A=40.0, alpha=0.3, B=400.0, beta=0.3)
REFITS = tuple(replace(LAW, E=2.0 + shift / 100) for shift in range(-50, 51))


@pytest.mark.parametrize("model", [SMALL, replace(SMALL, positions="sinusoidal"), replace(SMALL, untie_r=False)])
def test_parameters_are_the_matrices_of_layers(model):
    sizes = {path: math.prod(shape.shape) for path, shape in abstract_params(model, None).items()}
    vectors = ("bias", "biases", "scale", "segment_embedding")
    matrices = [n for path, n in sizes.items() if "/layers/" in path and not path.endswith(vectors)]
    assert layer_parameters(model) == sum(matrices)


def test_a_plan_prints_the_loss_its_uncertainty_and_a_warning_of_extrapolation(monkeypatch):
    parameters, tokens = 13 * 2 * 128**2, 1_000 * 16 * 128  # of demo
    for largest, warning in (
        (parameters, ""),
        (
            parameters / 2,
            "\nEXTRAPOLATED: the run has 2 times the parameters and 2.05e-09 times the tokens of the largest runs "
            "behind the law",
        ),
    ):
        fit = Fit("plm", 8_000, LAW, REFITS, (1e5, largest), (1e6, 1e15))
        monkeypatch.setattr(scaling_law, "read_fit", lambda fit=fit: fit)
        loss = 2 + 40 / parameters**0.3 + 400 / tokens**0.3
        assert predict_loss(demo()) == (
            f"held-out loss after 1,000 steps: {loss:.2f} nats a target; {loss - 0.45:.2f} to {loss + 0.45:.2f} in 90% "
            f"of the law's refits; on English text in 8,000 pieces (docs/results.md){warning}"
        )


@pytest.mark.parametrize("config", [with_objective(demo(), "clm"), PRESETS["bert-base"]()], ids=["clm", "bert"])
def test_the_law_is_of_one_objective_and_network(config):
    assert predict_loss(config).startswith("held-out loss: not predicted, because the scaling law is one of plm and")


def test_the_law_of_the_package_reads_and_predicts():
    """Runs ended between the loss of word frequencies and that of a 5-gram model, or below."""
    assert 2 < float(re.findall(r"steps: ([\d.]+) nats", predict_loss(demo()))[0]) < 6.5

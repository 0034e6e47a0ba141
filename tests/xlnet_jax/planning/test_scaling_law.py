"""Losses that the scaling law predicts, with their uncertainty, and where it does not tell."""

import math
from dataclasses import replace

import pytest

from tests.xlnet_jax.random_models import SMALL
from xlnet_jax.interop.weights import abstract_params
from xlnet_jax.objectives.presets import PRESETS, demo, with_objective
from xlnet_jax.planning import report, scaling_law
from xlnet_jax.planning.report import predicted_loss
from xlnet_jax.planning.scaling_law import Fit, Law, layer_parameters, predict

LAW = Law(E=2.0, A=40.0, alpha=0.3, B=400.0, beta=0.3)
REFITS = tuple(replace(LAW, E=2.0 + shift / 100) for shift in range(-50, 51))


@pytest.fixture
def put_law(monkeypatch):
    """Return a function that puts a law in the place of the package's: of runs up to these sizes."""

    def put(parameters, tokens):
        fit = Fit("plm", 8_000, LAW, REFITS, (1e5, parameters), (1e6, tokens))
        for module in (scaling_law, report):
            monkeypatch.setattr(module, "read_fit", lambda: fit)

    return put


@pytest.mark.parametrize("model", [SMALL, replace(SMALL, positions="sinusoidal"), replace(SMALL, untie_r=False)])
def test_parameters_are_the_matrices_of_layers(model):
    sizes = {path: math.prod(shape.shape) for path, shape in abstract_params(model, None).items()}
    vectors = ("bias", "biases", "scale", "segment_embedding")
    matrices = [n for path, n in sizes.items() if "/layers/" in path and not path.endswith(vectors)]
    assert layer_parameters(model) == sum(matrices)


def test_the_prediction_is_the_laws_with_the_middle_of_its_refits(put_law):
    put_law(parameters=1e12, tokens=1e15)
    found = predict(demo())
    parameters, tokens = 13 * 2 * 128**2, 1_000 * 16 * 128
    assert found.loss == pytest.approx(2 + 40 / parameters**0.3 + 400 / tokens**0.3)
    assert (found.low - found.loss, found.high - found.loss) == pytest.approx((-0.45, 0.45))
    assert (found.times_parameters, found.times_tokens) == pytest.approx((parameters / 1e12, tokens / 1e15))


def test_a_plan_prints_the_loss_its_uncertainty_and_a_warning_of_extrapolation(put_law):
    put_law(parameters=1e12, tokens=1e15)
    found = predict(demo())
    line = (
        f"held-out loss after 1,000 steps: {found.loss:.2f} nats a target; {found.low:.2f} to {found.high:.2f} in 90% "
        "of the law's refits; on English text in 8,000 pieces (docs/results.md)"
    )
    assert predicted_loss(demo()) == line
    put_law(parameters=212_992, tokens=1e15)  # half the parameters of demo
    assert predicted_loss(demo()) == (
        f"{line}\nEXTRAPOLATED: the run has 2 times the parameters and 2.05e-09 times the tokens of the largest runs "
        "behind the law"
    )


@pytest.mark.parametrize("config", [with_objective(demo(), "clm"), PRESETS["bert-base"]()], ids=["clm", "bert"])
def test_the_law_is_of_one_objective_and_network(config):
    assert predicted_loss(config) == (
        "held-out loss: not predicted, because the scaling law is one of plm and the XLNet network"
    )


def test_the_law_of_the_package_reads_and_predicts():
    """Runs ended between the loss of word frequencies and that of a 5-gram model, or below."""
    assert 2 < predict(demo()).loss < 6.5

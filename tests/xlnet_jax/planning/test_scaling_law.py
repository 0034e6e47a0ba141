"""Losses that the scaling law predicts, with their uncertainty, and where it does not tell."""

import math
from dataclasses import replace

import pytest

from tests.xlnet_jax.random_models import SMALL
from xlnet_jax.interop.weights import abstract_params
from xlnet_jax.objectives.presets import PRESETS, demo, with_objective
from xlnet_jax.planning import scaling_law
from xlnet_jax.planning.report import predicted_loss
from xlnet_jax.planning.scaling_law import Fit, Law, layer_parameters, predict

LAW = Law(E=2.0, A=40.0, alpha=0.3, B=400.0, beta=0.3)
REFITS = tuple(replace(LAW, E=2.0 + shift / 100) for shift in range(-50, 51))


@pytest.fixture
def put_law(monkeypatch):
    """Return a function that puts a law in the place of the package's: of runs up to these sizes."""

    def put(parameters, tokens):
        fit = Fit("plm", 8_000, LAW, REFITS, (1e5, parameters), (1e6, tokens))
        monkeypatch.setattr(scaling_law, "read_fit", lambda: fit)

    return put


@pytest.mark.parametrize("model", [SMALL, replace(SMALL, positions="sinusoidal"), replace(SMALL, untie_r=False)])
def test_parameters_are_the_matrices_of_layers(model):
    sizes = {path: math.prod(shape.shape) for path, shape in abstract_params(model, None).items()}
    vectors = ("bias", "biases", "scale", "segment_embedding")
    matrices = [n for path, n in sizes.items() if "/layers/" in path and not path.endswith(vectors)]
    assert layer_parameters(model) == sum(matrices)


def test_the_prediction_is_the_laws_with_the_middle_of_its_refits(put_law):
    put_law(parameters=1e12, tokens=1e15)
    config = demo()
    found = predict(config)
    tokens = config.steps * 16 * 128
    assert found.parameters == 13 * 2 * 128**2
    assert found.loss == pytest.approx(2 + 40 / found.parameters**0.3 + 400 / tokens**0.3)
    assert (found.low - found.loss, found.high - found.loss) == pytest.approx((-0.45, 0.45))
    assert not found.is_extrapolated


@pytest.mark.parametrize(("parameters", "tokens"), [(1e5, 1e15), (1e12, 1e6)])
def test_a_run_beyond_those_of_the_law_is_extrapolated(put_law, parameters, tokens):
    put_law(parameters, tokens)
    found = predict(demo())
    assert found.is_extrapolated
    assert max(found.times_parameters, found.times_tokens) == pytest.approx(
        max(found.parameters / parameters, 2_048_000 / tokens)
    )


@pytest.mark.parametrize("config", [with_objective(demo(), "clm"), PRESETS["bert-base"]()], ids=["clm", "bert"])
def test_the_law_is_of_one_objective_and_network(put_law, config):
    put_law(1e12, 1e15)
    assert predict(config) is None


def test_a_plan_tells_the_loss_and_its_uncertainty(put_law):
    put_law(parameters=1e12, tokens=1e15)
    found = predict(demo())
    assert predicted_loss(demo()) == (
        f"held-out loss after 1,000 steps: {found.loss:.2f} nats a target; {found.low:.2f} to {found.high:.2f} in 90% "
        "of the law's refits; on English text in 8,000 pieces (docs/results.md)"
    )


def test_a_plan_warns_of_extrapolation(put_law):
    put_law(parameters=212_992, tokens=1e15)  # half the parameters of demo
    _, warning = predicted_loss(demo()).splitlines()
    assert warning == (
        "EXTRAPOLATED: the run has 2 times the parameters and 2.05e-09 times the tokens of the largest runs behind the "
        "law"
    )


def test_a_plan_of_another_objective_predicts_no_loss():
    assert predicted_loss(with_objective(demo(), "clm")) == (
        "held-out loss: not predicted, because the scaling law is one of plm and the XLNet network"
    )


def test_the_law_of_the_package_reads_and_predicts():
    """Runs ended between the loss of word frequencies and that of a 5-gram model, or below."""
    assert 2 < predict(demo()).loss < 6.5
